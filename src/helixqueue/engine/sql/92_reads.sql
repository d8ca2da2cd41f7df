-- Reads about single batches and about queues. No rule of the engine depends on any read.
--
-- Clients have no privilege on tables, so every read is a function `read_..._v1`. It runs as helix_reader,
-- which row-level security restricts to the caller's tenants. How these functions are written:
--   * Each reads a bounded part of an index, however many batches there are. The indexes are described
--     beside their tables.
--   * Every bound of an index is a plain parameter or variable. Row-level security lets only leakproof
--     operators use an index: coalesce() and comparisons of enums are not leakproof.
--   * A row is fetched by a lateral sub-select with `limit 1`. PostgreSQL takes a page of unknown length
--     for a tenth of the table; a join would then read whole tables.
--   * The settings of a function exclude plans that suit small tables, and keep one plan for all values of
--     the parameters: planning anew took longer than reading.
-- Functions without `_v1` are parts of others; clients cannot call them.

-- A batch and its state. Retired batches are not in it: they have no row in helix.work.
create view helix.overview with (security_invoker = true) as
  select b.id, b.key::bytea as key, q.tenant, q.name as queue, b.identity::text as identity, b.raw,
         b.revision::text as revision, w.state::text as state, w.attempt, b.priority::smallint as priority,
         b.created_at, case when s.leased then w.actor end as worker,
         case when s.leased then w.deadline end as deadline, w.cause::text as cause, w.due,
         case when s.finished then w.changed_at end as finished_at,
         case when s.finished then w.actor end as finished_by,
         case when s.finished then r.failure::text end as failure, case when helix.sees_payloads() then r.detail::text end as detail,
         -- Lists show the columns up to here.
         q.profile, b.run, b.run_at::timestamptz as run_at, b.expires_at::timestamptz as expires_at,
         b.limit_key::text as limit_key, b.actor, w.version, w.changed_at,
         case when w.pending then 'ready' when w.cause is not null then 'waiting'
              when s.leased then 'active' else 'outcome' end as place,
         case when s.leased then w.epoch end as epoch, case when s.leased then w.number end as number,
         s.finished and w.late as late
  from helix.batch b
  join helix.work w on w.batch = b.id
  join helix.queue q on q.id = b.queue
  cross join lateral (select w.state in ('ASSIGNED', 'RUNNING') as leased,
                             w.state in ('COMPLETED', 'FAILED', 'CANCELLED') as finished) s
  left join helix.result r on r.batch = w.batch and r.version = w.version;

-- Everything on record about one batch, in one snapshot, also after retention. Parts without a natural
-- bound (the history, repeated submissions, refused writes) are cut to their newest p_limit rows.
create function helix.read_batch_v1(
  p_ids uuid[], p_keys bytea[], p_payload boolean default false, p_limit integer default 1000
)
returns table (
  public_id uuid, key bytea, fingerprint bytea, tenant text, queue text, identity text, raw text,
  profile text, revision text, priority smallint, run_at timestamptz, expires_at timestamptz,
  limit_key text, actor text, created_at timestamptz, state text, place text, version integer,
  attempt smallint, worker text, deadline timestamptz, epoch integer, number bigint, cause text,
  due timestamptz, finished_at timestamptz, finished_by text, failure text, detail text,
  retired_at timestamptz, erased boolean, payload text, result text, events json, refusals json,
  decisions json, differences json, sources json
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_sees boolean := helix.sees_payloads();
begin
  perform helix.demand_payloads(p_payload);
  return query
    with found as (
      select l.batch as id from helix.locate(p_ids) l
      union
      select b.id from helix.batch b where b.key = any (p_keys)
    )
    select helix.public_id(b.key), b.key::bytea, b.fingerprint::bytea, q.tenant, v.queue, v.identity, v.raw,
           v.profile, v.revision, v.priority, v.run_at, v.expires_at, v.limit_key, v.actor, v.created_at,
           coalesce(v.state, b.state::text), coalesce(v.place, 'retired'), coalesce(v.version, b.version),
           coalesce(v.attempt, b.attempt), v.worker, v.deadline, v.epoch, v.number, v.cause, v.due,
           coalesce(v.finished_at, b.ended_at), v.finished_by, v.failure, v.detail, b.retired_at,
           b.payload is null, case when p_payload then b.payload::text end,
           case when p_payload
                then (select r.result::text from helix.result r
                      where r.batch = f.id and r.version = v.version) end,
           (select json_agg(json_build_array(
                     h.version, h.at, h.from_state, h.to_state, h.reason, h.actor, h.attempt, h.epoch,
                     h.number, case when v_sees then h.detail end, h.late) order by h.version)
            from (select * from helix.history_of(array[f.id]) h order by h.version desc limit p_limit) h),
           (select json_agg(json_build_array(
                     r.operation, r.worker, r.owner, r.epoch, r.number, r.owner_number, r.state, r.why,
                     r.times, r.first_at, r.last_at) order by r.last_at)
            from (select * from helix.refusal r where r.batch = f.id
                  order by r.last_at desc limit p_limit) r),
           (select json_agg(json_build_array(d.at, d.kind, d.actor, d.detail, d.times, d.last_at) order by d.id)
            from ((select d.id, d.at, d.kind, d.actor, d.detail, d.times, d.last_at from helix.decision d
                   where d.batch = f.id order by d.id desc limit p_limit)
                  union all
                  select c.id, c.at, c.kind, c.actor, c.detail, c.times, c.last_at from helix.answer_count c
                  where c.batch = f.id) d),
           (select json_agg(json_build_array(d.at, d.actor, case when v_sees then d.changes::json end) order by d.id)
            from helix.difference d where d.batch = f.id),
           (select json_agg(json_build_array(s.kind, s.name, s.id, s.decision, s.times, s.first_at,
                                             s.last_at, s.actor) order by s.first_at)
            from (select * from helix.source s where s.batch = f.id and s.kind is not null
                  order by s.first_at desc limit p_limit) s)
    from found f
    cross join lateral (select * from helix.batch b where b.id = f.id limit 1) b
    cross join lateral (select q.tenant from helix.queue q where q.id = b.queue limit 1) q
    left join lateral (select * from helix.overview v where v.id = f.id limit 1) v on true;
end
$$;

-- States of batches and, once finished, their results. Unknown ids return no row.
create function helix.read_outcomes_v1(p_ids uuid[], p_results boolean default false)
returns table (
  public_id uuid, state text, attempt smallint, finished_at timestamptz, finished_by text, failure text,
  detail text, result text, late boolean, queue text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  perform helix.demand_payloads(p_results);
  return query
    select l.public_id, coalesce(v.state, helix.state_of(l.batch)::text), o.attempt, o.finished_at,
           o.finished_by, o.failure, o.detail,
           case when p_results and o.finished_at is not null
                then (select r.result::text from helix.result r
                      where r.batch = l.batch and r.version = o.version) end,
           coalesce(o.late, false), o.queue
    from helix.locate(p_ids) l
    left join lateral (select * from helix.overview v where v.id = l.batch limit 1) v on true
    left join lateral (select v.* where v.finished_at is not null) o on true;
end
$$;

-- Some batches with payload and result, each row of one snapshot: for exports.
create function helix.read_contents_v1(p_ids uuid[])
returns table (
  public_id uuid, key bytea, fingerprint bytea, tenant text, queue text, identity text, raw text,
  profile text, revision text, state text, version integer, attempt smallint, priority smallint,
  created_at timestamptz, actor text, finished_at timestamptz, finished_by text, failure text, detail text,
  payload text, result text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select l.public_id, b.key::bytea, b.fingerprint::bytea, v.tenant, v.queue, v.identity, v.raw, v.profile,
           v.revision, v.state, v.version, v.attempt, v.priority, v.created_at, v.actor, v.finished_at,
           v.finished_by, v.failure, v.detail, b.payload::text, r.result::text
    from helix.locate(p_ids) l
    cross join lateral (select * from helix.batch b where b.id = l.batch limit 1) b
    cross join lateral (select * from helix.overview v where v.id = l.batch limit 1) v
    left join lateral (select r.result from helix.result r
                       where r.batch = l.batch and r.version = v.version and v.finished_at is not null
                       limit 1) r on true;
end
$$;

-- The history of some batches, each from the step after p_after.
create function helix.read_events_v1(p_ids uuid[], p_after integer default 0)
returns table (
  public_id uuid, version integer, at timestamptz, from_state text, to_state text, reason text, actor text,
  attempt smallint, epoch integer, number bigint, detail text, late boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_sees boolean := helix.sees_payloads();
begin
  return query
    with found as materialized (select distinct l.batch, l.public_id from helix.locate(p_ids) l)
    select f.public_id, h.version, h.at, h.from_state::text, h.to_state::text, h.reason::text, h.actor,
           h.attempt, h.epoch, h.number, case when v_sees then h.detail end, h.late
    from helix.history_of(array(select f.batch from found f)) h
    join found f on f.batch = h.batch
    where h.version > p_after
    order by h.batch, h.version;
end
$$;

-- The queues of a tenant, or of all the caller's tenants where p_tenant is null; or those of one name.
-- Three statements, because a condition such as `p_queue is null or ...` hides the index.
create function helix.read_queue_ids(p_tenant text, p_queue text)
returns table (id integer, tenant text, name text)
language plpgsql stable rows 10 as $$
#variable_conflict use_column
declare
  v_tenants text[] := case when p_tenant is null then helix.session_tenants() else array[p_tenant] end;
begin
  if v_tenants is null then
    return query select q.id, q.tenant, q.name from helix.queue q where p_queue is null or q.name = p_queue;
  elsif p_queue is null then
    return query select q.id, q.tenant, q.name from helix.queue q where q.tenant = any (v_tenants);
  else
    return query select q.id, q.tenant, q.name from helix.queue q
                 where q.tenant = any (v_tenants) and q.name = p_queue;
  end if;
end
$$;

-- The requirements of a class. It runs as the engine: under row-level security, a reader would search all
-- its queues for each class that it may see. Only helix_reader calls it.
create function helix.requires_of(p_class integer) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select c.requires from helix.requirement_class c where c.id = p_class
$$;

-- A queue's settings: every column of helix.queue, and its requirements.
create view helix.queue_settings with (security_invoker = true) as
  select q.*, helix.requires_of(q.class) as requires from helix.queue q;

-- The settings of one queue; no row when there is none.
create function helix.read_queue_v1(p_tenant text, p_queue text) returns setof helix.queue_settings
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select * from helix.queue_settings s where s.tenant = p_tenant and s.name = p_queue
$$;

-- Batches that recent claims leased, with the lease numbers; the caller looks each up in helix.work. No index
-- has which rows of helix.work are leased, but `request.due` is set as long as a claim has leases, and
-- up to ten seconds longer. Claims that the reaper has seen with live leases come first, then the newest.
-- p_queues: null for all. p_limit: null for no bound.
create function helix.read_claimed(p_queues integer[], p_limit integer)
returns table (batch bigint, number bigint)
language sql stable as $$
  select u.batch, r.number
  from (select r.number from helix.request r where r.due is not null
        order by r.due desc, r.number desc) r
  cross join lateral (select e.batch, e.queue from helix.entry e
                      where e.id = r.number and (p_queues is null or e.queue && p_queues)) e
  cross join lateral unnest(e.batch, e.queue) as u (batch, queue)
  where p_queues is null or u.queue = any (p_queues)
  limit p_limit
$$;

-- Queues by tenant and name, after (p_after_tenant, p_after_queue), at most p_limit, with the number of
-- batches in each state. Counting stops at p_bound, so a queue of ten million batches costs what one of ten
-- thousand does; a count above p_bound means "or more". `leases_cut`: the look at leases was cut, so the
-- numbers of ASSIGNED and RUNNING batches may be higher.
create function helix.read_queues_v1(
  p_tenant text, p_queue text, p_bound integer default 10000,
  p_after_tenant text default '', p_after_queue text default '', p_limit integer default 1000
)
returns table (
  settings helix.queue_settings, ready bigint, waiting bigint, assigned bigint, running bigint,
  completed bigint, failed bigint, cancelled bigint, leases_cut boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_tenants text[] := case when p_tenant is null then helix.session_tenants() else array[p_tenant] end;
  v_limit   integer := least(p_limit, 1001);
  v_past    integer := least(greatest(p_bound, 0), 100000) + 1;
  v_look    integer := greatest(4 * v_past, 50);
  v_page    integer[];
begin
  -- Each branch scans the index of (tenant, name); branches that do not apply read nothing.
  v_page := array(
    select p.id from (
      (select q.id, q.tenant, q.name from helix.queue q
       where q.tenant = any (v_tenants) and q.name = p_queue
         and (q.tenant, q.name) > (p_after_tenant, p_after_queue))
      union all
      (select q.id, q.tenant, q.name from unnest(v_tenants) as t (tenant)
       cross join lateral (
         select q.id, q.tenant, q.name from helix.queue q
         where q.tenant = t.tenant and (q.tenant, q.name) > (p_after_tenant, p_after_queue)
         order by q.tenant, q.name limit v_limit) q
       where p_queue is null)
      union all
      (select q.id, q.tenant, q.name from helix.queue q
       where v_tenants is null and (p_queue is null or q.name = p_queue)
         and (q.tenant, q.name) > (p_after_tenant, p_after_queue)
       order by q.tenant, q.name limit v_limit)) p
    order by p.tenant, p.name limit v_limit);
  return query
    with claimed as materialized (select c.batch, c.number from helix.read_claimed(v_page, v_look + 1) c),
    leased as materialized (
      select w.queue, count(*) filter (where w.state = 'ASSIGNED') as assigned,
             count(*) filter (where w.state = 'RUNNING') as running
      from (select c.batch, c.number from claimed c limit v_look) c
      cross join lateral (
        select w.queue, w.state from helix.work w where w.batch = c.batch and w.number = c.number limit 1) w
      group by w.queue
    ),
    cut as (select count(*) > v_look as is_cut from claimed c)
    select s.settings,
           (select count(*) from (select from helix.work w
                                  where w.pending and w.queue = p.id limit v_past) w),
           (select count(*) from (select from helix.work w
                                  where w.cause is not null and w.queue = p.id limit v_past) w),
           least(coalesce(l.assigned, 0), v_past), least(coalesce(l.running, 0), v_past),
           (select count(*) from (select from helix.ended e
                                  where e.queue = p.id and e.ending = 1 limit v_past) e),
           (select count(*) from (select from helix.ended e
                                  where e.queue = p.id and e.ending = 2 limit v_past) e),
           (select count(*) from (select from helix.ended e
                                  where e.queue = p.id and e.ending = 3 limit v_past) e),
           cut.is_cut
    from unnest(v_page) with ordinality as p (id, place)
    cross join lateral (select q.tenant, q.name from helix.queue q where q.id = p.id limit 1) q
    cross join lateral (select s as settings from helix.queue_settings s
                        where s.tenant = q.tenant and s.name = q.name limit 1) s
    cross join cut
    left join leased l on l.queue = p.id
    order by p.place;
end
$$;

-- The tenants that the caller acts for; * alone for all of them. A binding by setting counts for nothing
-- until a transaction names its tenant.
create function helix.read_tenants_v1() returns setof text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select t.tenant from helix.role_tenant t
  where t.role = session_user and not t.by_setting
    and not pg_has_role(session_user, 'helix_operator', 'usage')
    and (t.tenant = '*' or not exists (select from helix.role_tenant a
                                       where a.role = session_user and a.tenant = '*'
                                         and not a.by_setting))
  union all
  select '*' where pg_has_role(session_user, 'helix_operator', 'usage')
  order by 1
$$;
