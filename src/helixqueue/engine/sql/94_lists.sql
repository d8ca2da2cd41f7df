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

-- A page of workers by login and name, and the number of leases that each holds now. A worker of a service
-- is named tenant/name here, and its leases are name's. Other logins than operators see their own workers;
-- the two branches keep them from stepping over those of all others.
create function helix.read_workers_v1(
  p_after_role name default '', p_after_name text default '', p_since timestamptz default '-infinity',
  p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge_role text, edge_name text, role text, name text, free jsonb, first_seen timestamptz,
  last_seen timestamptz, leases bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_all   boolean := pg_has_role(session_user, 'helix_operator', 'member');
  v_limit integer := least(p_limit, 1001);
  v_look  integer := least(greatest(p_look, v_limit), 10000);
begin
  return query
    with seen as materialized (
      select w.role, w.name, w.free, w.first_seen, w.last_seen,
             row_number() over (order by w.role, w.name) as place
      from (
        (select * from helix.worker w
         where v_all and (w.role, w.name) > (p_after_role, p_after_name collate "C")
         order by w.role, w.name limit v_look)
        union all
        (select * from helix.worker w
         where not v_all and w.role = session_user and w.name > p_after_name collate "C"
         order by w.role, w.name limit v_look)) w
    ),
    page as (
      select s.* from seen s where s.last_seen >= p_since order by s.role, s.name limit v_limit
    ),
    held as materialized (
      select h.tenant, h.worker, h.leases from helix.read_lease_counts() h
    ),
    named as (
      select n.name, sum(n.leases)::bigint as leases
      from (select h.worker as name, h.leases from held h
            union all select h.tenant || '/' || h.worker, h.leases from held h) n
      group by n.name
    )
    select e.role::text, e.name::text, p.role::text, p.name::text, p.free, p.first_seen, p.last_seen,
           coalesce(n.leases, 0)
    from (values (1)) as always (one)
    left join seen e on e.place = v_look
    left join page p on true
    left join named n on n.name = p.name collate "C"
    order by p.role, p.name;
end
$$;

-- A page of one tenant's workers at a login that serves many tenants, where they are named tenant/worker; the
-- policy of helix.worker hides all others. In the order of names, so that a worker which announces itself
-- between two pages does not move. `0` is the character after `/`.
create function helix.read_tenant_workers_v1(
  p_tenant text, p_after text default '', p_since timestamptz default '-infinity',
  p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge text, name text, role text, free jsonb, first_seen timestamptz, last_seen timestamptz, leases bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_limit integer := least(p_limit, 1001);
  v_look  integer := least(greatest(p_look, v_limit), 10000);
  v_from  text := p_tenant || '/' || p_after;
  v_to    text := p_tenant || '0';
  v_start integer := length(p_tenant) + 2;   -- where the name of the worker starts
begin
  return query
    with seen as materialized (
      select substr(w.name, v_start) as name, w.role, w.free, w.first_seen, w.last_seen,
             row_number() over (order by w.name) as place
      from helix.worker w
      where w.role = session_user and w.name > v_from collate "C" and w.name < v_to collate "C"
      order by w.name limit v_look
    ),
    page as (
      select s.* from seen s where s.last_seen >= p_since order by s.place limit v_limit
    ),
    held as materialized (
      select h.worker, h.leases from helix.read_lease_counts() h
      where h.tenant = p_tenant
    )
    select e.name, p.name, p.role::text, p.free, p.first_seen, p.last_seen, coalesce(h.leases, 0)
    from (values (1)) as always (one)
    left join seen e on e.place = v_look
    left join page p on true
    left join held h on h.worker = p.name collate "C"
    order by p.place;
end
$$;
