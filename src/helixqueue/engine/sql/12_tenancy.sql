-- Which login role acts for which tenant. Clients have no privilege on any table: they call functions.
--   Functions that read run as helix_reader, which row-level security restricts to the caller's tenants:
--   a read that forgets its WHERE still returns nothing of another tenant.
--   Functions that write run as helix_engine. On tables with a tenant, row-level security restricts it
--   to the tenants that `enter` recorded. On the hot tables (batch, work, entry, result, ended) it sees every row,
--   to save the cost of the policy per row, and four functions restrict it instead: `enter_for`
--   (submit), `claimable_queues` (claim), `lock_leases` (calls with a token), `locate` (calls by public id).

create table helix.role_tenant (
  role   name not null,
  tenant text not null check (tenant ~ '^([a-z0-9][a-z0-9_.-]{0,62}|\*)$'),
  -- A role that serves one tenant per transaction (the HTTP service) must name one per transaction in the
  -- setting helix.tenant; while that is unset or empty it sees no row at all.
  by_setting boolean not null default false,
  primary key (role, tenant)
);
comment on table helix.role_tenant is 'Bindings of login roles to tenants; tenant * binds all.';

-- The tenants this session may act for; null means every tenant. Called by policies under the caller's
-- search path, so its own is pinned: a caller's function must not be able to replace a built-in one.
create function helix.session_tenants() returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_named text;
  -- Tenants that the role is bound to; after a `=`, which no name contains, those of which it must name one
  -- in the setting. One array without an aggregate: every call determines its tenants.
  v_bound text[];
begin
  if pg_has_role(session_user, 'helix_operator', 'usage') then
    return null;
  end if;
  v_bound := array(select case when bound.by_setting then '=' else '' end || bound.tenant
                   from helix.role_tenant bound where bound.role = session_user);
  if '*' = any (v_bound) then
    return null;
  end if;
  v_named := nullif(current_setting('helix.tenant', true), '');
  if v_named is null then
    if strpos(array_to_string(v_bound, ','), '=') = 0 then
      return v_bound;
    end if;
    return array(select bound from unnest(v_bound) bound where not starts_with(bound, '='));
  end if;
  -- The setting names one tenant: a star or a list is not accepted, it would widen the scope.
  if v_named ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'
     and (v_named = any (v_bound) or '=' || v_named = any (v_bound) or '=*' = any (v_bound))
  then
    return array[v_named];
  end if;
  return '{}';
end
$$;

-- The queues of those tenants, by internal id; null means every queue. Hot tables carry the queue's id
-- in place of the tenant's name.
create function helix.session_queues() returns integer[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_tenants text[] := helix.session_tenants();
begin
  if v_tenants is null then
    return null;
  end if;
  return array(select q.id from helix.queue q where q.tenant = any (v_tenants));
end
$$;

-- The first statement of every function that writes. It records the tenants of the session for the policies
-- of helix_engine, which would otherwise look them up for every table of every statement. The record cannot
-- be forged: only these functions run as helix_engine, and each of them writes it before it reads.
create function helix.enter() returns text[]
language plpgsql as $$
declare
  v_tenants text[] := helix.session_tenants();
  v_scope   text;
begin
  v_scope := set_config('helix.scope', coalesce(array_to_string(v_tenants, ','), '*'), true);
  return v_tenants;
end
$$;

-- `enter` for functions that take a tenant: a login without that binding gets a clear error instead of
-- an empty answer. It repeats `enter` to save every submission a function call.
create function helix.enter_for(p_tenant text) returns text[]
language plpgsql as $$
declare
  v_tenants text[] := helix.session_tenants();
  v_scope   text;
begin
  v_scope := set_config('helix.scope', coalesce(array_to_string(v_tenants, ','), '*'), true);
  if p_tenant <> all (v_tenants) then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not act for tenant %L', session_user, p_tenant),
      hint = 'An operator binds roles to tenants with helix.bind_v1(role, tenant).';
  end if;
  return v_tenants;
end
$$;

-- The actor or worker that the ledger records for a call. The login is part of it, whatever the caller writes:
-- without the right to act for others, a name that the caller passes follows the name of the login (lab_app/ann).
create function helix.actor_of(p_actor text) returns text
language sql stable as $$
  -- Bounded: every row that an actor writes carries the name.
  select (case when p_actor is null or p_actor = session_user then session_user::text
               when pg_has_role(session_user, 'helix_delegate', 'usage')
                    or pg_has_role(session_user, 'helix_operator', 'usage')
                    or starts_with(p_actor, session_user || '/') then p_actor
               else session_user || '/' || p_actor end)::helix.short_text
$$;

-- Whether a call of another login than the one that claimed names the same worker: `actor_of` puts the login before
-- the name.
create function helix.is_same_name(p_actor text, p_worker text) returns boolean
language sql stable as $$
  select p_actor = n.name or right(p_actor, length(n.name) + 1) = '/' || n.name
  from (select case when starts_with(p_worker, session_user || '/')
                    then substr(p_worker, length(session_user) + 2) else p_worker end as name) n
$$;

-- Whether the worker of a lease is the one that a call names. A handler may settle on a connection of another login.
-- One expression, which the planner inlines: every row of a settlement is compared.
create function helix.is_worker(p_actor text, p_worker text) returns boolean
language sql stable as $$
  select p_actor = p_worker or helix.is_same_name(p_actor, p_worker)
$$;

-- Whether the login may read payloads, results and failure details. Reads return null in place of details
-- that it may not see.
create function helix.sees_payloads() returns boolean
language sql stable as $$
  select pg_has_role(session_user, 'helix_payloads', 'usage')
      or pg_has_role(session_user, 'helix_operator', 'usage')
$$;

-- A read that is asked for payloads or results refuses a login that may not see them: null would mean "erased".
create function helix.demand_payloads(p_wanted boolean) returns void
language plpgsql stable as $$
begin
  if p_wanted and not helix.sees_payloads() then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not read payloads and results', session_user),
      hint = format('An administrator grants the right: grant helix_payloads to %I;', session_user);
  end if;
end
$$;

-- Row-level security of one table. The owner has no policy, so it reads no row; operators read all.
-- The sub-selects make PostgreSQL evaluate a function once per statement instead of once per row. A session
-- for all tenants has a null there; asking `is null or ...` would evaluate the function twice, which took a
-- third of a read's time. The columns themselves are never null.
create function helix.protect(p_table regclass) returns void
language plpgsql as $$
declare
  v_by_tenant boolean := exists (select from pg_attribute
                                 where attrelid = p_table and attname = 'tenant');
begin
  execute format('alter table %s enable row level security', p_table);
  execute format('alter table %s force row level security', p_table);
  execute format('create policy operator on %s for select to helix_operator using (true)', p_table);
  if v_by_tenant then
    execute format($policy$
      create policy engine on %s for all to helix_engine using (
        current_setting('helix.scope', true) = '*'
        or tenant = any (string_to_array(current_setting('helix.scope', true), ',')))
      $policy$, p_table);
    execute format($policy$
      create policy reader on %s for select to helix_reader using (
        coalesce(tenant = any ((select helix.session_tenants())::text[]), true))
      $policy$, p_table);
  else
    execute format('create policy engine on %s for all to helix_engine using (true)', p_table);
    execute format($policy$
      create policy reader on %s for select to helix_reader using (
        coalesce(queue = any ((select helix.session_queues())::integer[]), true))
      $policy$, p_table);
  end if;
end
$$;

-- Bindings are private too: a session reads its own, and only operators change them.
alter table helix.role_tenant enable row level security;
alter table helix.role_tenant force row level security;
create policy own_bindings on helix.role_tenant for select to helix_engine, helix_reader, helix_operator
  using (role = session_user or pg_has_role(session_user, 'helix_operator', 'usage'));
create policy operators_bind on helix.role_tenant for all to helix_engine
  using (pg_has_role(session_user, 'helix_operator', 'usage'));
