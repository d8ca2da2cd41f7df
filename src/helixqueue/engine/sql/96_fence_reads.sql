-- Reads about fences. 92_reads.sql explains how reads are written, 93_scans.sql pages and edges.

-- A fence as lists and detail pages show it.
create view helix.fence_overview with (security_invoker = true) as
  select f.key::bytea as key, f.tenant::text as tenant, f.name::text as name, f.identity::text as identity,
         f.state::text as state, f.version, f.attempt, f.actor::text as actor, f.reason::text as reason,
         case when helix.sees_payloads() then f.detail::text end as detail, f.first_at, f.changed_at, f.deadline, f.effect::text as effect,
         f.form::text as form, f.digest::bytea as digest,
         f.answer is not null and f.answer_until > clock_timestamp() as answer_kept, f.answer_until, f.until,
         f.quiet_seconds::real as quiet_seconds, f.fingerprint,
         case when f.state = 'SEALED'
              then helix.fence_receipt(f.tenant, f.name, f.identity, f.key, f.fingerprint, f.effect, f.form, f.digest,
                                       f.first_at, f.sealed_at) end as receipt,
         f.sealed_at,
         f.life
  from helix.fence f;

-- One fence by its key, or at most two between two keys: a prefix of a key is unique if it finds one.
create function helix.read_fence_v1(p_key bytea, p_last bytea default null) returns setof helix.fence_overview
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
begin
  return query select * from helix.fence_overview f
               where f.key >= p_key and f.key <= coalesce(p_last, p_key) order by f.key limit 2;
end
$$;

-- The version of a fence and whether it has a live holder: for callers that wait between two claims.
create function helix.read_fence_holder_v1(p_key bytea) returns table (version integer, held boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select f.version, f.state in ('CLAIMED', 'EFFECT_STARTED') and f.deadline > clock_timestamp()
    from helix.fence f where f.key = p_key;
end
$$;

-- The tenants whose fences are read: the requested tenant, those of the session, or all that have fences,
-- found by one index look-up each. A session for some tenants must not scan the fences of others.
create function helix.read_fence_tenants(p_tenant text) returns setof text
language plpgsql stable rows 10 as $$
declare
  v_tenants text[] := case when p_tenant is null then helix.session_tenants() else array[p_tenant] end;
begin
  if v_tenants is not null then
    return query select unnest(v_tenants);
    return;
  end if;
  return query
    with recursive next (tenant) as (
      (select f.tenant::text from helix.fence f order by f.tenant limit 1)
      union all
      select (select f.tenant::text from helix.fence f where f.tenant > n.tenant order by f.tenant limit 1)
      from next n where n.tenant is not null
    )
    select n.tenant from next n where n.tenant is not null;
end
$$;

-- A page of fences, newest first. Each tenant is scanned by one index for its share of p_look rows: `doubt`
-- for fences in doubt, which are few, `name` for those of a name, `age` for anything else.
create function helix.read_fences_v1(
  p_scan text, p_tenant text default null, p_name text default null, p_state text default null,
  p_life bigint default 9223372036854775807, p_look integer default 1000, p_limit integer default 50
)
returns table (edge bigint, place bigint, fence helix.fence_overview)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_limit integer := least(p_limit, 1001);
  v_look  integer := least(greatest(p_look, v_limit), 10000);
begin
  if p_scan not in ('age', 'name', 'doubt') then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected the scan age, name or doubt, got %L', p_scan);
  end if;
  return query
    with line as (
      select t.tenant, greatest(v_look / count(*) over (), 1) as share
      from helix.read_fence_tenants(p_tenant) as t (tenant)
    ),
    seen as materialized (
      select l.tenant, p.life, p.name, p.state,
             row_number() over (partition by l.tenant order by p.life desc) = l.share as last
      from line l
      cross join lateral (
        (select f.life, f.name, f.state::text as state from helix.fence f
         where p_scan = 'age' and f.tenant = l.tenant and f.life < p_life
         order by f.life desc limit l.share)
        union all
        (select f.life, f.name, f.state::text from helix.fence f
         where p_scan = 'name' and f.tenant = l.tenant and f.name = p_name and f.life < p_life
         order by f.life desc limit l.share)
        union all
        (select f.life, f.name, f.state::text from helix.fence f
         where p_scan = 'doubt' and f.state = 'IN_DOUBT' and f.tenant = l.tenant and f.life < p_life
         order by f.life desc limit l.share)) p
    ),
    edge as (select max(s.life) as life from seen s where s.last),
    page as (
      select s.tenant, s.life from seen s cross join edge e
      where (p_name is null or s.name = p_name) and (p_state is null or s.state = p_state)
        and (e.life is null or s.life >= e.life)
      order by s.life desc limit v_limit
    )
    select e.life, p.life, f.fence
    from edge e
    left join page p on true
    left join lateral (select f as fence from helix.fence_overview f
                       where f.tenant = p.tenant and f.life = p.life limit 1) f on true
    order by p.life desc;
end
$$;

-- The history of one fence: its steps, and the decisions that changed no state; the first thousand.
create function helix.read_fence_history_v1(p_key bytea)
returns table (
  at timestamptz, what text, from_state text, to_state text, attempt integer, actor text, detail text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_life bigint := (select f.life from helix.fence f where f.key = p_key);
  v_sees boolean := helix.sees_payloads();
begin
  return query
    select h.at, h.what, h.from_state, h.to_state, h.attempt, h.actor,
           case when v_sees then h.detail end
    from (select e.at, e.reason::text as what, e.from_state::text, e.to_state::text, e.attempt, e.actor,
                 e.detail, e.version::bigint as place
          from helix.fence_event e where e.life = v_life
          union all
          select d.at, d.kind::text, null, null, null, d.actor::text, d.detail::text, d.id
          from helix.fence_decision d where d.life = v_life
          union all
          select c.at, c.kind, null, null, null, c.actor, c.detail::text, c.id
          from helix.answer_count c where c.life = v_life) h
    order by h.at, h.place limit 1000;
end
$$;

-- For gauges: the fences that have not ended by name and state, and the age in seconds of the oldest. At
-- most ten thousand of each kind are counted, by the indexes that hold nothing else.
create function helix.read_fence_counts_v1()
returns table (name text, state text, number bigint, seconds double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select f.name::text, f.state::text, count(*),
           extract(epoch from clock_timestamp() - min(f.changed_at))::double precision
    from ((select f.name, f.state, f.changed_at from helix.fence f
           where f.state = 'IN_DOUBT' order by f.changed_at limit 10000)
          union all
          (select f.name, f.state, f.changed_at from helix.fence f
           where f.state in ('CLAIMED', 'EFFECT_STARTED') order by f.deadline limit 10000)) f
    group by f.name, f.state order by 1, 2;
end
$$;

-- For gauges: the seconds by which leases, answers and tombstones are past their time.
create function helix.read_fence_lag_v1()
returns table (leases double precision, answers double precision, tombstones double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_now timestamptz := clock_timestamp();
begin
  return query
    select coalesce(extract(epoch from v_now - (
             select min(f.deadline) from helix.fence f
             where f.state in ('CLAIMED', 'EFFECT_STARTED') and f.deadline < v_now)), 0)::double precision,
           coalesce(extract(epoch from v_now - (
             select min(f.answer_until) from helix.fence f
             where f.sealed_at is not null and (f.answer is not null or f.request is not null)
               and f.answer_until < v_now)), 0)::double precision,
           coalesce(extract(epoch from v_now - (
             select min(f.until) from helix.fence f
             where f.until is not null and f.until < v_now)), 0)::double precision;
end
$$;
