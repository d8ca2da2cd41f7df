-- Lists that clients read: batches and workers. 93_scans.sql explains pages and edges.

-- A page of batches. Finished ones (scans `finished` and `finished_by`) are listed by the time of their end,
-- all others by the time of submission; p_since, p_until and p_at mean that same time. The scan names the
-- index: all, finished, finished_by (p_worker, p_failure), leased, pending, identity (p_identity) or run
-- (p_run). Of a finished batch, last_worker held it last: the actor of its last claim, where finished_by may be the
-- reaper. `refused`: a late write of it is on record. p_failure restricts FAILED batches to one failure class.
-- Positions and edges are internal numbers and for cursors only. Public ids are derived from keys by the
-- caller: in SQL that took half of the time of a long page.
create function helix.read_batches_v1(
  p_scan text, p_tenant text default null, p_queue text default null, p_state text default null,
  p_worker text default null, p_failure text default null, p_identity text[] default null,
  p_run bigint default null,
  p_since timestamptz default '-infinity', p_until timestamptz default 'infinity',
  p_at timestamptz default 'infinity', p_id bigint default 9223372036854775807,
  p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge_at timestamptz, edge_id bigint, at timestamptz, id bigint, key bytea, tenant text, queue text,
  identity text, raw text, revision text, state text, attempt smallint, priority smallint,
  created_at timestamptz, worker text, deadline timestamptz, cause text, due timestamptz,
  finished_at timestamptz, finished_by text, failure text, detail text, last_worker text, refused boolean
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_state  helix.state := p_state::helix.state;
  v_ending smallint := helix.ending(v_state);
  v_limit  integer := least(p_limit, 1001);
  v_look   integer := least(greatest(p_look, v_limit), 10000);
  v_page   helix.list_place[];
begin
  v_page := case p_scan
    when 'all' then array(
      select w from helix.read_newest(p_tenant, p_queue, p_since, p_at, p_id, v_limit) w)
    when 'finished' then array(
      select w from helix.read_finished(p_tenant, p_queue, v_ending, p_since, p_at, p_id, v_limit) w)
    when 'finished_by' then array(
      select w from helix.read_finished_by(p_tenant, p_queue, v_ending, p_worker, p_failure, p_since, p_at,
                                           p_id, v_look, v_limit) w)
    when 'leased' then array(
      select w from helix.read_leased(p_tenant, p_queue, v_state, p_worker, p_since, p_until, p_id, v_look,
                                      v_limit) w)
    when 'pending' then array(
      select w from helix.read_pending(p_tenant, p_queue, p_since, p_at, p_id, v_look, v_limit) w)
    when 'identity' then array(
      select w from helix.read_of_identity(p_tenant, p_queue, p_identity, p_run, v_state, p_worker, p_failure,
                                           p_since, p_at, p_id, v_look, v_limit) w)
    when 'run' then array(
      select w from helix.read_of_run(p_tenant, p_queue, p_run, v_state, p_worker, p_failure, p_since,
                                      p_at, p_id, v_look, v_limit) w)
    end;
  if v_page is null then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected a walk such as all, finished or leased, got %L', p_scan);
  end if;
  return query
    select p.edge_at, p.edge_id, p.at, p.id, v.key, v.tenant, v.queue, v.identity, v.raw, v.revision,
           v.state, v.attempt, v.priority, v.created_at, v.worker, v.deadline, v.cause, v.due,
           v.finished_at, v.finished_by, v.failure, v.detail, c.actor,
           exists (select from helix.refusal r where r.batch = p.id)
    from unnest(v_page) as p
    left join lateral (select * from helix.overview v where v.id = p.id limit 1) v on true
    left join lateral (
      -- The number of a lease is the ledger entry of its claim.
      select e.actor from helix.work w join helix.entry e on e.id = w.number
      where w.batch = p.id and v.finished_at is not null limit 1) c on true
    order by p.at desc, p.id desc;
end
$$;

-- How many leases each worker of the caller's tenants holds now. At most 20,000 leases of recent claims are
-- looked up.
create function helix.read_lease_counts() returns table (tenant text, worker text, leases bigint)
language plpgsql stable as $$
#variable_conflict use_column
declare
  v_queues integer[];
begin
  if not exists (select from helix.request r where r.due is not null) then
    return;   -- Nothing is leased; a tenant's queues, which may be many, need not be read.
  end if;
  v_queues := helix.session_queues();
  return query
    select q.tenant, w.actor, count(*)
    from helix.read_claimed(v_queues, 20000) c
    cross join lateral (
      select w.queue, w.actor, w.state from helix.work w
      where w.batch = c.batch and w.number = c.number limit 1) w
    cross join lateral (select q.tenant from helix.queue q where q.id = w.queue limit 1) q
    where w.state in ('ASSIGNED', 'RUNNING')
    group by q.tenant, w.actor;
end
$$;

-- The report of a worker for a reader. `busy` is what it holds now: its report may be 15 seconds old. The report of a
-- worker that serves several tenants names queues, batches and errors of all of them, so the reader of some of them
-- gets its resources and slots.
create function helix.read_report(p_worker helix.worker, p_all boolean, p_leases bigint) returns jsonb
language sql stable as $$
  select case when p_worker.shared and not p_all
              then p_worker.free - 'progress' || jsonb_build_object('health', jsonb_strip_nulls(h.health))
              else p_worker.free || jsonb_strip_nulls(jsonb_build_object('health', p_worker.free -> 'health' || h.health))
         end
  from (select case when jsonb_typeof(p_worker.free -> 'health' -> 'slots') = 'number'
                    then jsonb_build_object('slots', p_worker.free -> 'health' -> 'slots', 'busy',
                                            least((p_worker.free -> 'health' -> 'slots')::numeric, p_leases))
                    else '{}' end as health) h
$$;

-- A page of workers by tenant, name and login, of one tenant or of all tenants of the session, with the number of
-- leases that each holds of these tenants. A worker that serves every tenant is in the list of each.
create function helix.read_workers_v1(
  p_tenant text default null, p_after_tenant text default '', p_after_name text default '',
  p_after_role name default '', p_since timestamptz default '-infinity',
  p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge_tenant text, edge_name text, edge_role text, tenant text, name text, role text, status text, free jsonb,
  first_seen timestamptz, last_seen timestamptz, ended_at timestamptz, leases bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_session text[] := helix.session_tenants();
  v_tenants text[] := case when p_tenant is null then v_session else array[p_tenant] end;
  v_limit   integer := least(p_limit, 1001);
  v_look    integer := least(greatest(p_look, v_limit), 10000);
begin
  return query
    with seen as materialized (
      select w.line, row_number() over (order by w.tenant, w.name, w.role) as place
      from (
        (select w as line, w.tenant, w.name, w.role from helix.worker w
         where v_tenants is null
           and (w.tenant, w.name, w.role) > (p_after_tenant collate "C", p_after_name collate "C", p_after_role)
         order by w.tenant, w.name, w.role limit v_look)
        union all
        -- Each tenant by itself: PostgreSQL before 17 sorts all rows of a list of tenants.
        (select w.* from unnest(v_tenants || '*'::text) as t (tenant)
         cross join lateral (
           select w as line, w.tenant, w.name, w.role from helix.worker w
           where w.tenant = t.tenant collate "C"
             and (w.tenant, w.name, w.role) > (p_after_tenant collate "C", p_after_name collate "C", p_after_role)
           order by w.tenant, w.name, w.role limit v_look) w
         where v_tenants is not null
         order by w.tenant, w.name, w.role limit v_look)) w
    ),
    page as (
      select (s.line).*, s.line, s.place from seen s where (s.line).last_seen >= p_since order by s.place limit v_limit
    ),
    held as materialized (
      select h.tenant, h.worker, h.leases from helix.read_lease_counts() h
      where p_tenant is null or h.tenant = p_tenant
    )
    select (e.line).tenant, (e.line).name, (e.line).role::text, p.tenant, p.name, p.role::text,
           helix.worker_status(p.line), helix.read_report(p.line, v_session is null, l.leases),
           p.first_seen, p.last_seen, p.ended_at, l.leases
    from (values (1)) as always (one)
    left join seen e on e.place = v_look
    left join page p on true
    left join lateral (
      select coalesce(sum(h.leases), 0)::bigint as leases from held h
      where h.worker = p.name collate "C" and (p.tenant = '*' or h.tenant = p.tenant)) l on true
    order by p.place;
end
$$;
