-- What the demo does beside the engine: its effects, and the looks it takes.

-- name: create_effects
-- No unique constraint, on purpose: that each sample has one row is the lease's doing alone.
create schema if not exists demo;
create table if not exists demo.reads (
  sample  text not null,
  worker  text not null,
  attempt int not null,
  at      timestamptz not null default clock_timestamp()
);
grant usage on schema demo to helix_client;
create index if not exists reads_sample on demo.reads (sample);
grant insert, select, delete on demo.reads to helix_client;

-- name: write_effect
-- In the transaction that completes the batch.
insert into demo.reads (sample, worker, attempt) values (%s, %s, %s);

-- name: running_by
-- The worker is in the middle of a batch, with time left to be interrupted.
select a.batch, coalesce(b.raw, b.identity) from helix.active a join helix.batch b on b.id = a.batch
where a.worker = %s and a.state = 'RUNNING' and a.claimed_at > clock_timestamp() - interval '150 ms';

-- name: running_beside
-- Any other worker that is in the middle of a batch.
select a.worker, coalesce(b.raw, b.identity) from helix.active a join helix.batch b on b.id = a.batch
where a.worker <> %s and a.state = 'RUNNING' and a.claimed_at > clock_timestamp() - interval '150 ms'
limit 1;

-- name: completed
-- The batch is done, by whomever.
select o.actor from helix.outcome o where o.batch = %s and o.state = 'COMPLETED';

-- name: refused
-- The late write was refused, and the refusal is kept.
select r.owner from helix.refusal r where r.batch = %s;

-- name: all_done
-- Nothing is pending or running any more.
select 1 where not exists (select from helix.standing s
                           where s.state not in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: samples
-- Each sample with its tries, its effects and the workers that had it.
select coalesce(b.raw, b.identity), o.state::text,
       (select count(*) from helix.event e where e.batch = b.id and e.to_state = 'ASSIGNED')::int,
       (select count(*) from demo.reads r where r.sample = b.identity)::int,
       (select array_agg(e.actor order by e.version) from helix.event e
        where e.batch = b.id and e.to_state = 'ASSIGNED')
from helix.batch b join helix.outcome o on o.batch = b.id
order by b.identity;

-- name: refusals
-- Who came too late, and who had the batch.
select coalesce(b.raw, b.identity), r.worker, coalesce(r.owner, ''), r.why
from helix.refusal r join helix.batch b on b.id = r.batch
order by r.first_at;

-- name: public_id
-- The batch by the name that people use.
select helix.public_id(b.key) from helix.batch b where b.id = %s;

-- name: old_effects
-- What the ledger no longer tells of; it would grow for ever.
delete from demo.reads where at < clock_timestamp() - interval '1 hour';

-- name: lab
-- How the lab stands: batches that are done, that were done and went by retention, late writes; and the
-- samples whose effects are not exactly one, of which there must be none.
select (select count(*) from helix.outcome o where o.tenant = %(tenant)s and o.state = 'COMPLETED'),
       (select count(*) from helix.retired r where r.tenant = %(tenant)s and r.state = 'COMPLETED'),
       (select coalesce(sum(r.times), 0)::bigint from helix.refusal r where r.tenant = %(tenant)s),
       (select count(*) from (select from demo.reads r group by r.sample having count(*) > 1) twice)
       + (select count(*) from helix.outcome o join helix.batch b on b.id = o.batch
          where o.tenant = %(tenant)s and o.queue = %(queue)s and o.state = 'COMPLETED'
            and o.finished_at > clock_timestamp() - interval '10 min'
            and not exists (select from demo.reads r where r.sample = b.identity));
