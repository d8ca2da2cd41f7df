-- What the demo does beside the engine: its effects, and what it reads. Its login is an operator's, which may
-- select from tables.

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
select v.id, coalesce(v.raw, v.identity) from helix.overview v
where v.worker = %s and v.state = 'RUNNING' and v.changed_at > clock_timestamp() - interval '150 ms';

-- name: running_beside
-- Any other worker that is in the middle of a batch.
select v.worker, coalesce(v.raw, v.identity) from helix.overview v
where v.worker <> %s and v.state = 'RUNNING' and v.changed_at > clock_timestamp() - interval '150 ms'
limit 1;

-- name: completed
-- The batch is done, by any worker.
select v.finished_by from helix.overview v where v.id = %s and v.state = 'COMPLETED';

-- name: refused
-- The late write was refused, and the refusal is kept.
select r.owner from helix.refusal r where r.batch = %s;

-- name: all_done
-- Nothing is pending or running any more.
select 1 where not exists (select from helix.work w
                           where w.state not in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: samples
-- Each sample with its tries, its effects and the workers that had it.
select coalesce(v.raw, v.identity), v.state, cardinality(h.workers),
       (select count(*) from demo.reads r where r.sample = v.identity)::int, h.workers
from helix.overview v
cross join lateral (
  select array_agg(h.actor order by h.version) as workers from helix.history_of(array[v.id]) h
  where h.to_state = 'ASSIGNED') h
where v.finished_at is not null
order by v.identity;

-- name: refusals
-- Which worker came too late, and which had the batch.
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
select (select count(*) from helix.ended e join helix.queue q on q.id = e.queue
        where q.tenant = %(tenant)s and e.ending = 1),
       (select count(*) from helix.batch b join helix.queue q on q.id = b.queue
        where q.tenant = %(tenant)s and b.retired_at is not null and b.state = 'COMPLETED'),
       (select coalesce(sum(r.times), 0)::bigint from helix.refusal r where r.tenant = %(tenant)s),
       (select count(*) from (select from demo.reads r group by r.sample having count(*) > 1) twice)
       + (select count(*) from helix.ended e
          join helix.queue q on q.id = e.queue
          join helix.batch b on b.id = e.batch
          where q.tenant = %(tenant)s and q.name = %(queue)s and e.ending = 1
            and e.at > clock_timestamp() - interval '10 min'
            and not exists (select from demo.reads r where r.sample = b.identity));
