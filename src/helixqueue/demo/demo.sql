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
grant insert, select on demo.reads to helix_client;

-- name: running_by
-- The worker is in the middle of a batch, with time left to be interrupted.
select a.batch from helix.active a
where a.worker = %s and a.state = 'RUNNING' and a.claimed_at > clock_timestamp() - interval '50 ms';

-- name: completed_by_other
-- The frozen worker's batch is done.
select 1 from helix.outcome o where o.batch = %s and o.state = 'COMPLETED';

-- name: refused
-- The late write was refused, and the refusal is kept.
select 1 from helix.refusal r where r.batch = %s;

-- name: all_done
-- Nothing is pending or running any more.
select 1 where not exists (select from helix.standing s
                           where s.state not in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: samples
-- Each sample with its tries, its effects and the workers that had it.
select coalesce(b.raw, b.identity), o.state::text,
       (select count(*) from helix.event e where e.batch = b.id and e.to_state = 'ASSIGNED')::int,
       (select count(*) from demo.reads r where r.sample = b.identity)::int,
       (select string_agg(e.actor, ' > ' order by e.version) from helix.event e
        where e.batch = b.id and e.to_state = 'ASSIGNED')
from helix.batch b join helix.outcome o on o.batch = b.id
order by 3 desc, 1;

-- name: refusals
-- Who came too late, and who had the batch.
select b.identity, r.worker, r.why from helix.refusal r join helix.batch b on b.id = r.batch
order by r.first_at;

-- name: story
-- One batch's life.
select e.version, to_char(e.at, 'HH24:MI:SS.MS'), coalesce(e.from_state::text, '(new)'),
       e.to_state::text, e.actor, e.reason::text, coalesce(e.detail, '')
from helix.event e where e.batch = %s order by e.version;
