-- Which login role acts for which tenant. Every other table carries a tenant and a policy that
-- asks here, so a query that forgets its WHERE still returns nothing that is not the caller's.

create table helix.role_tenant (
  role   name not null,
  tenant text not null check (tenant ~ '^([a-z0-9][a-z0-9_.-]{0,62}|\*)$'),
  -- A role that serves many tenants by turns (the HTTP service) must name one per transaction in
  -- the setting helix.tenant; while that is unset or empty it sees no row at all.
  by_setting boolean not null default false,
  primary key (role, tenant)
);
comment on table helix.role_tenant is 'Bindings of login roles to tenants; tenant * binds all.';

-- The tenants this session may act for; null means every tenant. Policies call it in the name of
-- whoever asks, so its search path is pinned: nobody may slip in functions of his own.
create function helix.session_tenants() returns text[]
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  v_named text := nullif(current_setting('helix.tenant', true), '');
  v_fixed text[];   -- tenants that the role is bound to as it is
  v_asked text[];   -- and those of which it must name one
begin
  if pg_has_role(session_user, 'helix_operator', 'member') then
    return null;
  end if;
  select array_agg(bound.tenant) filter (where not bound.by_setting),
         array_agg(bound.tenant) filter (where bound.by_setting)
  into v_fixed, v_asked
  from helix.role_tenant bound where bound.role = session_user;
  if '*' = any (v_fixed) then
    return null;
  end if;
  if v_named is null then
    return coalesce(v_fixed, '{}');
  end if;
  -- One tenant's name and nothing else: a star or a list would widen the scope that `enter` notes.
  if v_named = any (v_fixed)
     or v_named ~ '^[a-z0-9][a-z0-9_.-]{0,62}$' and (v_named = any (v_asked) or '*' = any (v_asked))
  then
    return array[v_named];
  end if;
  return '{}';
end
$$;

-- The first statement of every function that clients call. It works out once whom the caller may
-- act for and notes it for the policies of helix_engine, which would otherwise look it up for every
-- table of every statement: that cost more than the work itself. The note cannot be forged: only
-- these functions run as helix_engine, and each of them writes it before it reads anything.
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

-- Row-level security for one table: the engine sees what `enter` noted, everybody else what their
-- bindings say at this moment (the sub-selects make PostgreSQL ask once a statement, not once a row;
-- the engine's policy does without, because starting a sub-plan costs more than reading a setting).
-- Nobody else has a policy, so the table's owner reads no row at all.
create function helix.protect(p_table regclass) returns void
language plpgsql as $$
begin
  execute format('alter table %s enable row level security', p_table);
  execute format('alter table %s force row level security', p_table);
  execute format($policy$
    create policy engine_scope on %s for all to helix_engine using (
      current_setting('helix.scope', true) = '*'
      or tenant = any (string_to_array(current_setting('helix.scope', true), ',')))
    $policy$, p_table);
  execute format($policy$
    create policy session_tenants on %s for select to helix_client, helix_operator using (
      (select helix.session_tenants()) is null
      or tenant = any ((select helix.session_tenants())::text[]))
    $policy$, p_table);
end
$$;

-- `enter` for functions that are handed a tenant: may the caller act for it? Asked before anything
-- else, so that a stranger gets a clear refusal instead of an empty answer.
create function helix.enter_for(p_tenant text) returns text[]
language plpgsql as $$
declare
  v_tenants text[] := helix.enter();
begin
  if p_tenant <> all (v_tenants) then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not act for tenant %L', session_user, p_tenant),
      hint = 'An operator binds roles to tenants with helix.bind_v1(role, tenant).';
  end if;
  return v_tenants;
end
$$;

-- Bindings are themselves private: a role sees its own.
alter table helix.role_tenant enable row level security;
alter table helix.role_tenant force row level security;
create policy own_bindings on helix.role_tenant for select to public
  using (role = session_user or pg_has_role(session_user, 'helix_operator', 'member'));
create policy operators_bind on helix.role_tenant for all to helix_engine
  using (pg_has_role(session_user, 'helix_operator', 'member'));
