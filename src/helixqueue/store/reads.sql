-- What is read about batches, queues and workers. Payloads and results come only when asked for.
--
-- Lists walk an index from the newest on; `%(at)s` and `%(id)s` are where the last page ended, or the
-- time until which is asked for, whichever is earlier. (Of two upper bounds PostgreSQL begins its walk at
-- one, and steps over all that lies between it and the other, row by row.) No list
-- looks at more than a bounded number of rows, however few of them its filters take: what may find
-- too few looks at `%(look)s` rows and tells how far it came, its *edge*, from where the next page goes
-- on. The first two columns are the edge, null where the walk came to its end; the next two the place
-- of a row. What may have an edge gives at least one row, of nulls when nothing was found.
--
-- Ids for people are worked out from keys by whoever asked: in SQL that was half of a long page's time.
--
-- How they are written: every bound of an index is a plain parameter, because a coalesce() counts as
-- leaky and row-level security has it checked row by row. And a row is fetched by a lateral `limit 1`:
-- of a join, PostgreSQL would believe that a page whose length it does not know is a tenth of the
-- table, and read the tables whole.

-- name: batches
-- All of a tenant or a queue, by when they were submitted: the newest of each queue, merged. Only
-- queues whose newest batch is among the page's can have a part in it.
with line as (
  select q.tenant, q.name from helix.queues_of(%(tenant)s::text, %(queue)s::text) q
  cross join lateral (
    select b.created_at, b.id from helix.batch b
    where b.tenant = q.tenant and b.queue = q.name
      and b.created_at >= %(since)s::timestamptz
      and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
    order by b.created_at desc, b.id desc limit 1) newest
  order by newest.created_at desc, newest.id desc limit %(limit)s::int
),
page as (
  select p.id, p.at from line l
  cross join lateral (
    select b.id, b.created_at as at from helix.batch b
    where b.tenant = l.tenant and b.queue = l.name
      and b.created_at >= %(since)s::timestamptz
      and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
    order by b.created_at desc, b.id desc limit %(limit)s::int) p
  order by p.at desc, p.id desc limit %(limit)s::int
)
select null::timestamptz, null::bigint, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from page p cross join lateral (select * from helix.overview v where v.id = p.id limit 1) v
order by p.at desc, p.id desc;

-- name: batches_finished
-- COMPLETED, FAILED or CANCELLED ones, by when they finished; as above.
with line as (
  select q.tenant, q.name from helix.queues_of(%(tenant)s::text, %(queue)s::text) q
  cross join lateral (
    select o.finished_at, o.batch from helix.outcome o
    where o.tenant = q.tenant and o.queue = q.name and o.ending = %(ending)s::smallint
      and o.finished_at >= %(since)s::timestamptz
      and (o.finished_at, o.batch) < (%(at)s::timestamptz, %(id)s::bigint)
    order by o.finished_at desc, o.batch desc limit 1) newest
  order by newest.finished_at desc, newest.batch desc limit %(limit)s::int
),
page as (
  select p.id, p.at from line l
  cross join lateral (
    select o.batch as id, o.finished_at as at from helix.outcome o
    where o.tenant = l.tenant and o.queue = l.name and o.ending = %(ending)s::smallint
      and o.finished_at >= %(since)s::timestamptz
      and (o.finished_at, o.batch) < (%(at)s::timestamptz, %(id)s::bigint)
    order by o.finished_at desc, o.batch desc limit %(limit)s::int) p
  order by p.at desc, p.id desc limit %(limit)s::int
)
select null::timestamptz, null::bigint, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from page p cross join lateral (select * from helix.overview v where v.id = p.id limit 1) v
order by p.at desc, p.id desc;

-- name: batches_finished_by
-- Those that one worker finished. No index knows who finished what, so each queue is looked at for
-- its share of rows. The edge is where the first of them had to stop: what lies behind it waits for
-- the next page, also if another queue was looked at further.
with line as (
  select q.tenant, q.name, greatest(%(look)s::bigint / count(*) over (), 1) as share
  from helix.queues_of(%(tenant)s::text, %(queue)s::text) q
),
seen as materialized (
  select p.id, p.at, p.actor, row_number() over (partition by l.tenant, l.name
                                                 order by p.at desc, p.id desc) = l.share as last
  from line l
  cross join lateral (
    select o.batch as id, o.finished_at as at, o.actor from helix.outcome o
    where o.tenant = l.tenant and o.queue = l.name and o.ending = %(ending)s::smallint
      and o.finished_at >= %(since)s::timestamptz
      and (o.finished_at, o.batch) < (%(at)s::timestamptz, %(id)s::bigint)
    order by o.finished_at desc, o.batch desc limit l.share) p
),
edge as (select s.at, s.id from seen s where s.last order by s.at desc, s.id desc limit 1),
page as (
  select s.id, s.at from seen s left join edge e on true
  where s.actor = %(worker)s::text and (e.id is null or (s.at, s.id) >= (e.at, e.id))
  order by s.at desc, s.id desc limit %(limit)s::int
)
select e.at, e.id, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (page p cross join lateral (
  select * from helix.overview v where v.id = p.id limit 1) v) on true
order by p.at desc, p.id desc;

-- name: batches_leased
-- ASSIGNED and RUNNING ones, of one worker or of all. Leases are looked at from the youngest batch
-- on: there are as many as workers have slots.
with seen as materialized (
  select a.batch as id, a.tenant, a.queue, a.state, a.worker,
         row_number() over (order by a.batch desc) = %(look)s::int as last
  from helix.active a where a.batch < %(id)s::bigint order by a.batch desc limit %(look)s::int
),
edge as (
  select b.at, s.id from seen s
  cross join lateral (select b.created_at as at from helix.batch b where b.id = s.id limit 1) b
  where s.last
),
page as (
  select s.id, b.at from seen s
  cross join lateral (select b.created_at as at from helix.batch b where b.id = s.id limit 1) b
  where (%(state)s::text is null or s.state = %(state)s::helix.state)
    and (%(worker)s::text is null or s.worker = %(worker)s::text)
    and (%(tenant)s::text is null or s.tenant = %(tenant)s::text)
    and (%(queue)s::text is null or s.queue = %(queue)s::text)
    and b.at >= %(since)s::timestamptz and b.at < %(until)s::timestamptz
  order by s.id desc limit %(limit)s::int
)
select e.at, e.id, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (page p cross join lateral (
  select * from helix.overview v where v.id = p.id limit 1) v) on true
order by p.id desc;

-- name: batches_pending
-- PENDING ones of a tenant. Of a queue with few all are taken, however much was finished since. One
-- with many is walked from its newest batch, where pending ones usually are: until they fill a page,
-- or for its share of rows.
with line as (
  select q.tenant, q.name, greatest(%(look)s::int / count(*) over (), 1)::int as share
  from helix.queues_of(%(tenant)s::text, %(queue)s::text) q
),
few as materialized (
  select p.queue, p.batch, count(*) over (partition by p.queue) > l.share as many
  from (select max(l.share) as share from line l) l
  cross join lateral helix.pending_v1(%(tenant)s::text, %(queue)s::text, l.share + 1) p
),
deep as (
  select l.tenant, l.name, l.share from line l
  where l.name in (select f.queue from few f where f.many)
),
seen as materialized (
  select f.batch as id, b.at, f.queue from few f
  cross join lateral (select b.created_at as at from helix.batch b where b.id = f.batch limit 1) b
  where not f.many
    and b.at >= %(since)s::timestamptz
    and (b.at, f.batch) < (%(at)s::timestamptz, %(id)s::bigint)
  union all
  select p.id, p.at, d.name from deep d
  cross join lateral (
    select b.id, b.at
    from (select b.id, b.created_at as at from helix.batch b
          where b.tenant = d.tenant and b.queue = d.name
            and b.created_at >= %(since)s::timestamptz
            and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
          order by b.created_at desc, b.id desc limit d.share) b
    cross join lateral (
      (select 1 from helix.ready r where r.batch = b.id limit 1)
      union all
      (select 1 from helix.waiting w where w.batch = b.id limit 1)
      limit 1) still
    order by b.at desc, b.id desc limit %(limit)s::int) p
),
-- A queue that filled the page by itself was looked at far enough.
edge as (
  select p.at, p.id from deep d
  cross join lateral (
    select b.created_at as at, b.id from helix.batch b
    where b.tenant = d.tenant and b.queue = d.name
      and b.created_at >= %(since)s::timestamptz
      and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
    order by b.created_at desc, b.id desc offset d.share - 1 limit 1) p
  where (select count(*) from seen s where s.queue = d.name) < %(limit)s::int
  order by p.at desc, p.id desc limit 1
),
page as (
  select s.id, s.at from seen s left join edge e on true
  where e.id is null or (s.at, s.id) >= (e.at, e.id)
  order by s.at desc, s.id desc limit %(limit)s::int
)
select e.at, e.id, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (page p cross join lateral (
  select * from helix.overview v where v.id = p.id limit 1) v) on true
order by p.at desc, p.id desc;

-- name: batches_pending_anywhere
-- PENDING ones of all tenants, for operators: the places where they stand are walked by internal id,
-- which is the order in which they were submitted.
with place as (
  (select r.batch as id from helix.ready r
   where r.batch < %(id)s::bigint order by r.batch desc limit %(look)s::int)
  union all
  (select w.batch from helix.waiting w
   where w.batch < %(id)s::bigint order by w.batch desc limit %(look)s::int)
),
seen as materialized (
  select s.id, b.at, b.queue, row_number() over (order by s.id desc) = %(look)s::int as last
  from (select p.id from place p order by p.id desc limit %(look)s::int) s
  cross join lateral (
    select b.created_at as at, b.queue from helix.batch b where b.id = s.id limit 1) b
),
edge as (select s.at, s.id from seen s where s.last),
page as (
  select s.id, s.at from seen s
  where (%(queue)s::text is null or s.queue = %(queue)s::text)
    and s.at >= %(since)s::timestamptz and s.at < %(until)s::timestamptz
  order by s.id desc limit %(limit)s::int
)
select e.at, e.id, p.at, p.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (page p cross join lateral (
  select * from helix.overview v where v.id = p.id limit 1) v) on true
order by p.id desc;

-- name: batches_of_identity
-- Every queue and revision of one identity. It comes in its canonical forms, one a profile. Without
-- a revision the key of each queue finds it; the others have an index, and an identity may have many.
with line as (select q.tenant, q.name from helix.queues_of(%(tenant)s::text, %(queue)s::text) q),
revised as materialized (
  select r.id, r.at, row_number() over (partition by t.tenant, f.form order by r.at desc, r.id desc)
                     = %(look)s::int as last
  from (select distinct l.tenant from line l) t
  cross join unnest(%(identity)s::text[]) as f (form)
  cross join lateral (
    select b.id, b.created_at as at from helix.batch b
    where b.tenant = t.tenant and b.identity = f.form and b.revision <> ''
      and b.created_at >= %(since)s::timestamptz
      and (b.created_at, b.id) < (%(at)s::timestamptz, %(id)s::bigint)
    order by b.created_at desc, b.id desc limit %(look)s::int) r
),
edge as (select r.at, r.id from revised r where r.last order by r.at desc, r.id desc limit 1),
found as (
  select i.batch as id from helix.identity i
  where i.key = any (array(
    select helix.derive_key(l.tenant, l.name, f.form, '')
    from line l cross join unnest(%(identity)s::text[]) as f (form)))
  union
  select r.id from revised r
)
select e.at, e.id, v.created_at, v.id,
       v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from (values (1)) always (one) left join edge e on true
left join (found f cross join lateral (
  select * from helix.overview v where v.id = f.id limit 1) v)
  on (%(state)s::text is null or v.state = %(state)s::helix.state)
  and (%(worker)s::text is null or v.worker = %(worker)s::text
       or %(state)s::text is not null and v.finished_by = %(worker)s::text)
  and (%(queue)s::text is null or v.queue = %(queue)s::text)
  and (%(run)s::bigint is null or v.run = %(run)s::bigint)
  and v.created_at >= %(since)s::timestamptz
  and (v.created_at, v.id) < (%(at)s::timestamptz, %(id)s::bigint)
  and (e.id is null or (v.created_at, v.id) >= (e.at, e.id))
order by v.created_at desc, v.id desc limit %(limit)s::int;

-- name: story
-- Everything on record about one batch, in one snapshot, also after retention. What can come without
-- end (repeats of a submission, writes of a zombie) is cut at its newest.
with found as (
  select l.key, l.batch, l.tenant from helix.locate(%(ids)s::uuid[]) l
  union
  select i.key, i.batch, i.tenant from helix.identity i where i.key = any (%(keys)s::bytea[])
)
select helix.public_id(f.key), f.key, i.fingerprint, f.tenant, v.queue, v.identity, v.raw, v.profile,
       v.revision, v.priority, v.run_at, v.expires_at, v.limit_key, v.actor, v.created_at,
       coalesce(v.state, d.state)::text, coalesce(v.place, 'retired'),
       coalesce(v.version, d.version), coalesce(v.attempt, d.attempt), v.worker, v.deadline,
       v.epoch, v.number, v.cause::text, v.due, coalesce(v.finished_at, d.finished_at),
       v.finished_by, v.failure, v.detail, d.retired_at,
       coalesce((select b.payload is null from helix.batch b where b.id = f.batch), true),
       case when %(payload)s::boolean
            then (select b.payload::text from helix.batch b where b.id = f.batch) end,
       case when %(payload)s::boolean
            then (select o.result::text from helix.outcome o where o.batch = f.batch) end,
       (select json_agg(json_build_array(
                 e.version, e.at, e.from_state, e.to_state, e.reason, e.actor, e.attempt, e.epoch,
                 e.number, e.detail, e.late) order by e.version)
        from (select * from helix.event e where e.batch = f.batch
              order by e.version desc limit %(limit)s::int) e)::text,
       (select json_agg(json_build_array(
                 r.operation, r.worker, r.owner, r.epoch, r.number, r.owner_number, r.state, r.why,
                 r.times, r.first_at, r.last_at) order by r.last_at)
        from (select * from helix.refusal r where r.batch = f.batch
              order by r.last_at desc limit %(limit)s::int) r)::text,
       (select json_agg(json_build_array(c.at, c.kind, c.actor, c.detail) order by c.id)
        from (select * from helix.decision c where c.batch = f.batch
              order by c.id desc limit %(limit)s::int) c)::text
from found f
join helix.identity i on i.key = f.key
left join helix.overview v on v.id = f.batch
left join helix.retired d on d.batch = f.batch;

-- name: outcomes
-- Where batches stand and what they ended with; unknown ids give no row.
select l.public_id, coalesce(o.state, helix.state_of(l.batch))::text, o.attempt, o.finished_at, o.actor,
       o.failure, o.detail, case when %(results)s::boolean then o.result::text end,
       coalesce(o.late, false), o.queue
from helix.locate(%(ids)s::uuid[]) l left join helix.outcome o on o.batch = l.batch;

-- name: events
-- The ledger of some batches, each from its first step.
select l.public_id, e.version, e.at, e.from_state::text, e.to_state::text, e.reason::text, e.actor,
       e.attempt, e.epoch, e.number, e.detail, e.late
from helix.locate(%(ids)s::uuid[]) l join helix.event e on e.batch = l.batch
where e.version > %(after)s::int
order by l.batch, e.version;

-- name: queues
-- Settings beside how much stands where, a page in the order of their names.
select q.tenant, q.name, q.profile, q.lease_seconds, q.max_attempts, q.backoff_seconds,
       q.backoff_max_seconds, q.key_limit, q.unknown, q.paused, q.closed,
       helix.queue_requires_v1(q.tenant, q.name)::text, q.payload_schema::text,
       q.result_schema::text, q.keep_completed_seconds, q.keep_failed_seconds,
       q.keep_cancelled_seconds, q.keep_decisions_seconds,
       c.ready, c.waiting, c.assigned, c.running, c.completed, c.failed, c.cancelled
from helix.queue_counts_v1(%(tenant)s::text, %(queue)s::text, %(bound)s::int,
                           %(after_tenant)s::text, %(after_queue)s::text, %(limit)s::int) c
-- One look each: nobody can tell the planner that these are few.
cross join lateral (
  select * from helix.queue q where q.tenant = c.tenant and q.name = c.queue limit 1) q
order by q.tenant, q.name;

-- name: workers
-- Whoever said hello, by login and name, and how many leases each holds now; steps and edge as in
-- serving.sql. A worker that came over a service is tenant/name here, and its leases are name's.
-- In two branches, because whoever sees one login's alone must not step over those of all others.
with seen as materialized (
  select w.role, w.name, w.free, w.first_seen, w.last_seen,
         row_number() over (order by w.role, w.name) as nth
  from (
    (select * from helix.worker w
     where pg_has_role(session_user, 'helix_operator', 'member')
       and (w.role, w.name) > (%(after_role)s::name, %(after_name)s::text collate "C")
     order by w.role, w.name limit %(look)s::int)
    union all
    (select * from helix.worker w
     where not pg_has_role(session_user, 'helix_operator', 'member')
       and w.role = session_user and w.name > %(after_name)s::text collate "C"
     order by w.role, w.name limit %(look)s::int)) w
),
page as (
  select s.* from seen s where s.last_seen >= %(since)s::timestamptz
  order by s.role, s.name limit %(limit)s::int
),
held as (
  select a.tenant, a.worker, count(*) as leases from helix.active a group by a.tenant, a.worker
),
named as (
  select n.name, sum(n.leases) as leases
  from (select h.worker as name, h.leases from held h
        union all select h.tenant || '/' || h.worker, h.leases from held h) n
  group by n.name
)
select e.role::text, e.name, p.role::text, p.name, p.free::text, p.first_seen, p.last_seen,
       coalesce(n.leases, 0)::bigint
from (values (1)) always (one)
left join seen e on e.nth = %(look)s::int
left join page p on true
left join named n on n.name = p.name collate "C"
order by p.role, p.name;

-- name: tenants
-- Which tenants this role acts for; * alone for all of them, as an operator does. A binding by
-- setting counts for nothing until a transaction names its tenant, which a service does.
select t.tenant from helix.role_tenant t
where t.role = session_user and not t.by_setting
  and not pg_has_role(session_user, 'helix_operator', 'member')
  and (t.tenant = '*' or not exists (select from helix.role_tenant every
                                     where every.role = session_user and every.tenant = '*'
                                       and not every.by_setting))
union all
select '*' where pg_has_role(session_user, 'helix_operator', 'member')
order by 1;
