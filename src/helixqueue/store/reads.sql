-- What is read about batches, queues and workers. Payloads and results come only when asked for.
-- Lists walk an index from the newest on; `%(at)s` and `%(id)s` are where the last page ended.

-- name: batches
-- All of a tenant or a queue, by when they were submitted: the newest of each queue, merged.
with page as (
  select p.id, p.at from helix.queue q
  cross join lateral (
    select b.id, b.created_at as at from helix.batch b
    where b.tenant = q.tenant and b.queue = q.name
      and b.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
      and b.created_at < coalesce(%(until)s::timestamptz, 'infinity')
      and (b.created_at, b.id) < (coalesce(%(at)s::timestamptz, 'infinity'), %(id)s::bigint)
    order by b.created_at desc, b.id desc limit %(limit)s::int) p
  where (%(tenant)s::text is null or q.tenant = %(tenant)s::text)
    and (%(queue)s::text is null or q.name = %(queue)s::text)
  order by p.at desc, p.id desc limit %(limit)s::int
)
select p.at, p.id, v.public_id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from page p join helix.overview v on v.id = p.id
order by p.at desc, p.id desc;

-- name: batches_finished
-- COMPLETED, FAILED or CANCELLED ones, by when they finished.
with page as (
  select p.id, p.at from helix.queue q
  cross join lateral (
    select o.batch as id, o.finished_at as at from helix.outcome o
    where o.tenant = q.tenant and o.queue = q.name and o.state = %(state)s::helix.state
      and o.finished_at >= coalesce(%(since)s::timestamptz, '-infinity')
      and o.finished_at < coalesce(%(until)s::timestamptz, 'infinity')
      and (o.finished_at, o.batch) < (coalesce(%(at)s::timestamptz, 'infinity'), %(id)s::bigint)
      and (%(worker)s::text is null or o.actor = %(worker)s::text)
    order by o.finished_at desc, o.batch desc limit %(limit)s::int) p
  where (%(tenant)s::text is null or q.tenant = %(tenant)s::text)
    and (%(queue)s::text is null or q.name = %(queue)s::text)
  order by p.at desc, p.id desc limit %(limit)s::int
)
select p.at, p.id, v.public_id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from page p join helix.overview v on v.id = p.id
order by p.at desc, p.id desc;

-- name: batches_leased
-- ASSIGNED and RUNNING ones, of one worker or of all: as few as there are leases.
select v.created_at, v.id, v.public_id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision,
       v.state::text, v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due,
       v.finished_at, v.finished_by, v.failure, v.detail
from helix.active a join helix.overview v on v.id = a.batch
where (%(state)s::text is null or a.state = %(state)s::helix.state)
  and (%(worker)s::text is null or a.worker = %(worker)s::text)
  and (%(tenant)s::text is null or a.tenant = %(tenant)s::text)
  and (%(queue)s::text is null or a.queue = %(queue)s::text)
  and v.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
  and v.created_at < coalesce(%(until)s::timestamptz, 'infinity')
  and (v.created_at, v.id) < (coalesce(%(at)s::timestamptz, 'infinity'), %(id)s::bigint)
order by v.created_at desc, v.id desc limit %(limit)s::int;

-- name: batches_pending
-- PENDING ones. Only the place where they stand is walked, not all that was ever finished; that
-- gives them by internal id, which is the order in which they were submitted.
with place as (
  (select r.batch as id, b.created_at as at from helix.ready r join helix.batch b on b.id = r.batch
   where r.batch < %(id)s::bigint
     and (%(tenant)s::text is null or r.tenant = %(tenant)s::text)
     and (%(queue)s::text is null or b.queue = %(queue)s::text)
     and b.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
     and b.created_at < coalesce(%(until)s::timestamptz, 'infinity')
   order by r.batch desc limit %(limit)s::int)
  union all
  (select w.batch, b.created_at from helix.waiting w join helix.batch b on b.id = w.batch
   where w.batch < %(id)s::bigint
     and (%(tenant)s::text is null or w.tenant = %(tenant)s::text)
     and (%(queue)s::text is null or w.queue = %(queue)s::text)
     and b.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
     and b.created_at < coalesce(%(until)s::timestamptz, 'infinity')
   order by w.batch desc limit %(limit)s::int)
),
page as (select p.id, p.at from place p order by p.id desc limit %(limit)s::int)
select p.at, p.id, v.public_id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision, v.state::text,
       v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due, v.finished_at,
       v.finished_by, v.failure, v.detail
from page p join helix.overview v on v.id = p.id
order by p.id desc;

-- name: batches_of_identity
-- Every queue and revision of one identity. It comes in its canonical forms, one a profile. Without
-- a revision the key of each queue finds it; the others have an index.
with found as (
  select i.batch as id from helix.identity i
  where i.key = any (array(
    select helix.derive_key(q.tenant, q.name, f.form, '')
    from helix.queue q cross join unnest(%(identity)s::text[]) as f (form)
    where (%(tenant)s::text is null or q.tenant = %(tenant)s::text)
      and (%(queue)s::text is null or q.name = %(queue)s::text)))
  union
  select b.id from helix.batch b
  where b.identity = any (%(identity)s::text[]) and b.revision <> ''
)
select v.created_at, v.id, v.public_id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision,
       v.state::text, v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause::text, v.due,
       v.finished_at, v.finished_by, v.failure, v.detail
from found f join helix.overview v on v.id = f.id
where (%(state)s::text is null or v.state = %(state)s::helix.state)
  and (%(worker)s::text is null or coalesce(v.worker, v.finished_by) = %(worker)s::text)
  and (%(tenant)s::text is null or v.tenant = %(tenant)s::text)
  and (%(queue)s::text is null or v.queue = %(queue)s::text)
  and v.created_at >= coalesce(%(since)s::timestamptz, '-infinity')
  and v.created_at < coalesce(%(until)s::timestamptz, 'infinity')
  and (v.created_at, v.id) < (coalesce(%(at)s::timestamptz, 'infinity'), %(id)s::bigint)
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
-- Settings beside how much stands where.
select q.tenant, q.name, q.profile, q.lease_seconds, q.max_attempts, q.backoff_seconds,
       q.backoff_max_seconds, q.key_limit, q.unknown, q.paused, q.closed,
       helix.queue_requires_v1(q.tenant, q.name)::text, q.payload_schema::text,
       q.result_schema::text, q.keep_completed_seconds, q.keep_failed_seconds,
       q.keep_cancelled_seconds, q.keep_decisions_seconds,
       c.ready, c.waiting, c.assigned, c.running, c.completed, c.failed, c.cancelled
from helix.queue_counts_v1(%(tenant)s::text, %(queue)s::text, %(bound)s::int) c
join helix.queue q on q.tenant = c.tenant and q.name = c.queue
order by q.tenant, q.name;

-- name: workers
-- Whoever said hello, and how many leases each holds now.
select w.name, w.role::text, w.free::text, w.first_seen, w.last_seen, coalesce(a.leases, 0)
from helix.worker w
left join (select a.worker, count(*) as leases from helix.active a group by a.worker) a
  on a.worker = w.name
where w.last_seen >= coalesce(%(since)s::timestamptz, '-infinity')
order by w.last_seen desc, w.name limit %(limit)s::int;

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
