-- Dead letters: what nobody tries any more. Written, and led on by an edge, as the lists of reads.sql
-- are.

-- name: letters
-- Dead letters, by when they failed. No index knows classes of failures, so each queue that has any is
-- looked at for its share of rows; the edge is where the first had to stop. Who had a batch last stands
-- in the step before its last one, which may be somebody else's: of whoever found that the lease had run
-- out.
with line as (
  select q.tenant, q.name, greatest(%(look)s::bigint / count(*) over (), 1) as share
  from helix.queues_of(%(tenant)s::text, %(queue)s::text) q
  cross join lateral (
    select from helix.outcome o
    where o.tenant = q.tenant and o.queue = q.name and o.ending = 2  -- FAILED
      and o.finished_at >= %(since)s::timestamptz
      and (o.finished_at, o.batch) < (%(at)s::timestamptz, %(id)s::bigint)
    order by o.finished_at desc, o.batch desc limit 1) newest
),
seen as materialized (
  select p.id, p.at, p.failure, row_number() over (partition by l.tenant, l.name
                                                   order by p.at desc, p.id desc) = l.share as last
  from line l
  cross join lateral (
    select o.batch as id, o.finished_at as at, o.failure from helix.outcome o
    where o.tenant = l.tenant and o.queue = l.name and o.ending = 2  -- FAILED
      and o.finished_at >= %(since)s::timestamptz
      and (o.finished_at, o.batch) < (%(at)s::timestamptz, %(id)s::bigint)
    order by o.finished_at desc, o.batch desc limit l.share) p
),
edge as (select s.at, s.id from seen s where s.last order by s.at desc, s.id desc limit 1),
page as (
  select s.id, s.at from seen s left join edge e on true
  where (%(failure)s::text is null or s.failure = %(failure)s::text)
    and (e.id is null or (s.at, s.id) >= (e.at, e.id))
  order by s.at desc, s.id desc limit %(limit)s::int
)
select e.at, e.id, p.at, p.id,
       b.key, b.tenant, b.queue, b.identity, b.revision, o.attempt, o.failure,
       o.detail, h.worker, o.finished_at
from (values (1)) always (one) left join edge e on true
left join (page p
  cross join lateral (select * from helix.batch b where b.id = p.id limit 1) b
  cross join lateral (select * from helix.outcome o where o.batch = p.id limit 1) o
  left join lateral (
    select v.actor as worker from helix.event v
    where v.batch = p.id and v.version = o.version - 1 limit 1) h on true) on true
order by p.at desc, p.id desc;
