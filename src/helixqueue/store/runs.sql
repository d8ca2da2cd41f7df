-- What is read of runs; how lists are written stands in reads.sql.

-- name: batches_of_run
-- One run's, whatever became of them, by when they were submitted. The index knows the run; every
-- other filter is asked of the rows that are looked at.
with seen as materialized (
  select r.id, r.at, row_number() over (partition by t.tenant order by r.at desc, r.id desc)
                     = %(look)s::int as last
  from (select distinct q.tenant from helix.queues_of(%(tenant)s::text, %(queue)s::text) q) t
  cross join lateral (
    select b.id, b.created_at as at from helix.batch b
    where b.tenant = t.tenant and b.run = %(run)s::bigint
      and b.created_at >= %(since)s::timestamptz
      and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
    order by b.created_at desc, b.id desc limit %(look)s::int) r
),
edge as (select s.at, s.id from seen s where s.last order by s.at desc, s.id desc limit 1)
select e.at, e.id, v.created_at, v.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (seen s cross join lateral (
  select * from helix.overview v where v.id = s.id limit 1) v)
  on (%(state)s::text is null or v.state = %(state)s::helix.state)
  and (%(worker)s::text is null or v.worker = %(worker)s::text
       or %(state)s::text is not null and v.finished_by = %(worker)s::text)
  and (%(queue)s::text is null or v.queue = %(queue)s::text)
  and (e.id is null or (s.at, s.id) >= (e.at, e.id))
order by v.created_at desc, v.id desc limit %(limit)s::int;
