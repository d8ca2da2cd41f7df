-- What people and services read: no rule rests on any of it. Everything here obeys row-level
-- security, and every read is a bounded walk of an index, however many batches there are: of
-- batch_arrival, batch_revision, batch_run, outcome_age and waiting_delay, which stand beside their tables.

-- A batch beside where it stands. Of the four places exactly one has it.
create view helix.overview with (security_invoker = true) as
  select b.id, b.key, b.tenant, b.queue, b.identity, b.raw, b.profile, b.revision,
         b.priority, b.run_at, b.expires_at, b.limit_key, b.run, b.actor, b.created_at,
         coalesce(o.state, a.state, r.state, w.state) as state,
         case when o.batch is not null then 'outcome' when a.batch is not null then 'active'
              when r.batch is not null then 'ready' else 'waiting' end as place,
         coalesce(o.version, a.version, r.version, w.version) as version,
         coalesce(o.attempt, a.attempt, r.attempt, w.attempt) as attempt,
         a.worker, a.deadline, a.claimed_at, a.epoch, a.number, w.cause, w.due,
         o.actor as finished_by, o.finished_at, o.failure, o.late,
         coalesce(o.detail, r.detail, w.detail) as detail
  from helix.batch b
  left join helix.outcome o on o.batch = b.id
  left join helix.active a on a.batch = b.id
  left join helix.ready r on r.batch = b.id
  left join helix.waiting w on w.batch = b.id;

-- A tenant's queues, or everybody's, or those of one name. In two branches, because `null or` hides the
-- index from a plan that is kept; of the one that does not apply nothing is read.
create function helix.queues_of(p_tenant text, p_queue text) returns table (tenant text, name text)
language sql stable as $$
  select q.tenant, q.name from helix.queue q
  where q.tenant = p_tenant and (p_queue is null or q.name = p_queue)
  union all
  select q.tenant, q.name from helix.queue q
  where p_tenant is null and (p_queue is null or q.name = p_queue)
$$;

-- How much stands where, queue by queue: those behind p_after, at most p_limit of them. Nothing is
-- counted past p_bound, so that a look at a queue of ten million costs what a look at one of ten
-- thousand does; a count above it means "or more".
-- It runs as the engine because `ready` knows lanes, and lanes are no client's to read.
create function helix.queue_counts_v1(
  p_tenant text, p_queue text, p_bound integer default 10000,
  p_after_tenant text default '', p_after_queue text default '', p_limit integer default 1000
)
returns table (
  tenant text, queue text, ready bigint, waiting bigint, assigned bigint, running bigint,
  completed bigint, failed bigint, cancelled bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  v_past integer := least(greatest(p_bound, 0), 100000) + 1;
begin
  perform helix.enter();
  return query
    -- In branches, as queues_of has it: each is a walk of the key, and of those that do not apply
    -- nothing is read.
    with page as materialized (
      (select q.tenant, q.name from helix.queue q where q.tenant = p_tenant and q.name = p_queue)
      union all
      (select q.tenant, q.name from helix.queue q
       where p_queue is null and q.tenant = p_tenant
         and (q.tenant, q.name) > (p_after_tenant, p_after_queue)
       order by q.tenant, q.name limit p_limit)
      union all
      (select q.tenant, q.name from helix.queue q
       where p_tenant is null and (p_queue is null or q.name = p_queue)
         and (q.tenant, q.name) > (p_after_tenant, p_after_queue)
       order by q.tenant, q.name limit p_limit)
    ),
    -- There are as many leases as workers have slots: few enough for one pass.
    leased as materialized (
      select a.tenant, a.queue, count(*) filter (where a.state = 'ASSIGNED') as assigned,
             count(*) filter (where a.state = 'RUNNING') as running
      from helix.active a where p_tenant is null or a.tenant = p_tenant
      group by a.tenant, a.queue
    )
    select q.tenant, q.name,
      -- Lane after lane, and no further once there are enough.
      (select count(*) from (
         select from helix.lane l
         cross join lateral (select from helix.ready r
                             where r.lane = l.id and r.tenant = q.tenant limit v_past) one
         where l.queue = q.name limit v_past) one),
      -- Each cause has an index of its own.
      (select count(*) from (
         (select from helix.waiting w
          where w.cause = 'delay' and w.tenant = q.tenant and w.queue = q.name limit v_past)
         union all
         (select from helix.waiting w
          where w.cause = 'limit' and w.tenant = q.tenant and w.queue = q.name limit v_past)
         union all
         (select from helix.waiting w
          where w.cause = 'paused' and w.tenant = q.tenant and w.queue = q.name limit v_past)
         limit v_past) one),
      least(coalesce(a.assigned, 0), v_past), least(coalesce(a.running, 0), v_past),
      c.completed, c.failed, c.cancelled
    from page q
    left join leased a on a.tenant = q.tenant and a.queue = q.name
    cross join lateral (
      select max(n.number) filter (where n.ending = 1) as completed,
             max(n.number) filter (where n.ending = 2) as failed,
             max(n.number) filter (where n.ending = 3) as cancelled
      from (select s.ending, (select count(*) from (
                     select from helix.outcome o
                     where o.tenant = q.tenant and o.queue = q.name and o.ending = s.ending
                     limit v_past) one) as number
            from unnest('{1,2,3}'::smallint[]) as s (ending)) n) c
    order by q.tenant, q.name;
end
$$;

-- The pending batches of a tenant's queues, in no order and at most p_bound of each: of a queue with
-- fewer, all. Lane by lane and cause by cause, so that nothing finished is passed by.
create function helix.pending_v1(p_tenant text, p_queue text, p_bound integer)
returns table (queue text, batch bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
declare
  v_bound integer := least(greatest(p_bound, 0), 10000);
begin
  perform helix.enter();
  return query
    select q.name, p.batch from helix.queue q
    cross join lateral (
      (select r.batch from helix.lane l
       cross join lateral (select r.batch from helix.ready r
                           where r.lane = l.id and r.tenant = q.tenant limit v_bound) r
       where l.queue = q.name)
      union all
      (select w.batch from helix.waiting w
       where w.cause = 'delay' and w.tenant = q.tenant and w.queue = q.name limit v_bound)
      union all
      (select w.batch from helix.waiting w
       where w.cause = 'limit' and w.tenant = q.tenant and w.queue = q.name limit v_bound)
      union all
      (select w.batch from helix.waiting w
       where w.cause = 'paused' and w.tenant = q.tenant and w.queue = q.name limit v_bound)
      limit v_bound) p
    where q.tenant = p_tenant and (p_queue is null or q.name = p_queue);
end
$$;
