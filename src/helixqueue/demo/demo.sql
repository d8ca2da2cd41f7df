-- The demo's table of effects, and what the demo reads. Its login is an operator's, which may select from
-- tables. Every statement is restricted to the demo's tenant and queue: other programs may use the database.

-- name: create_effects
-- No unique constraint: that each sample has exactly one row must follow from the leases alone.
create schema if not exists demo;
create table if not exists demo.reads (
  sample  text not null,
  worker  text not null,
  attempt int not null,
  at      timestamptz not null default clock_timestamp()
);
grant usage on schema demo to helix_operator;
create index if not exists reads_sample on demo.reads (sample);
grant insert, select, delete on demo.reads to helix_operator;

-- name: report
-- Lists of workers show those that report.
select helix.hello_v1(%s, '{"health": {"slots": 1}}', %s);

-- name: write_effect
-- Runs in the transaction that completes the batch.
insert into demo.reads (sample, worker, attempt) values (%s, %s, %s);

-- name: running_by
-- The batch that the worker has just started, with time left to interrupt it.
select v.id, coalesce(v.raw, v.identity) from helix.overview v
where v.tenant = %(tenant)s and v.queue = %(queue)s and v.worker = %(worker)s and v.state = 'RUNNING'
  and v.changed_at > clock_timestamp() - interval '150 ms';

-- name: running_beside
-- A batch that any other worker has just started.
select v.worker, coalesce(v.raw, v.identity) from helix.overview v
where v.tenant = %(tenant)s and v.queue = %(queue)s and v.worker <> %(worker)s and v.state = 'RUNNING'
  and v.changed_at > clock_timestamp() - interval '150 ms'
limit 1;

-- name: completed
-- The worker that completed the batch.
select v.finished_by from helix.overview v where v.id = %(batch)s and v.state = 'COMPLETED';

-- name: refused
-- The refusal of a late write to the batch.
select r.owner from helix.refusal r where r.batch = %(batch)s;

-- name: all_done
-- One row when every batch of the demo is finished.
select 1 where not exists (select from helix.overview v
                           where v.tenant = %(tenant)s and v.queue = %(queue)s
                             and v.state not in ('COMPLETED', 'FAILED', 'CANCELLED'));

-- name: samples
-- Each sample with its attempts, its effects and the workers that held it.
select coalesce(v.raw, v.identity), v.state, cardinality(h.workers),
       (select count(*) from demo.reads r where r.sample = v.identity)::int, h.workers
from helix.overview v
cross join lateral (
  select array_agg(h.actor order by h.version) as workers from helix.history_of(array[v.id]) h
  where h.to_state = 'ASSIGNED') h
where v.tenant = %(tenant)s and v.queue = %(queue)s and v.finished_at is not null
order by v.identity;

-- name: refusals
-- Refused writes: the worker that was too late, and the worker that held the batch next.
select coalesce(b.raw, b.identity), r.worker, coalesce(r.owner, ''), r.why
from helix.refusal r
join helix.batch b on b.id = r.batch
join helix.queue q on q.id = b.queue
where q.tenant = %(tenant)s and q.name = %(queue)s
order by r.first_at;

-- name: public_id
select helix.public_id(b.key) from helix.batch b where b.id = %(batch)s;

-- name: own_batches
-- The demo's batches among those that a replay complains of. Batch 0 is an entry that cannot be read, which
-- concerns every queue.
select b.id from helix.batch b join helix.queue q on q.id = b.queue
where b.id = any (%(batches)s::bigint[]) and q.tenant = %(tenant)s and q.name = %(queue)s
union all
select 0 where 0 = any (%(batches)s::bigint[]);

-- name: delete_old_effects
-- Retention deletes completed batches after five minutes; without this the table would grow without bound.
delete from demo.reads where at < clock_timestamp() - interval '1 hour';

-- name: newest_batch
select coalesce(max(b.id), 0) from helix.batch b;

-- name: status
-- Of the batches after one: completed batches, completed batches that retention deleted, refused writes. Of all:
-- the samples whose number of effects is not one, and the messages for known samples that the intake has reported.
select (select count(*) from helix.ended e join helix.queue q on q.id = e.queue
        where q.tenant = %(tenant)s and q.name = %(queue)s and e.ending = 1 and e.batch > %(after)s),
       (select count(*) from helix.batch b join helix.queue q on q.id = b.queue
        where q.tenant = %(tenant)s and q.name = %(queue)s and b.id > %(after)s and b.retired_at is not null
          and b.state = 'COMPLETED'),
       (select coalesce(sum(r.times), 0)::bigint from helix.refusal r where r.tenant = %(tenant)s
        and r.batch > %(after)s),
       (select count(*) from (select from demo.reads r group by r.sample having count(*) > 1) twice)
       + (select count(*) from helix.ended e
          join helix.queue q on q.id = e.queue
          join helix.batch b on b.id = e.batch
          where q.tenant = %(tenant)s and q.name = %(queue)s and e.ending = 1
            and e.at > clock_timestamp() - interval '10 min'
            and not exists (select from demo.reads r where r.sample = b.identity)),
       (select coalesce(sum((i.figures ->> 'duplicate')::bigint), 0)::bigint from helix.intake i
        where i.tenant = %(tenant)s);
