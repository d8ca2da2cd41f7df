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

-- One sub-select a statement decides for roles that see every tenant; the list of tenants is only
-- built when that said no. Both are written out in each policy instead of in a function, because
-- PostgreSQL then evaluates them once a statement and not once a row.
create function helix.protect(p_table regclass) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  execute format('alter table %s enable row level security', p_table);
  execute format('alter table %s force row level security', p_table);
  execute format($policy$
    create policy tenant_of_session on %s for all to public using (
      (select pg_has_role(session_user, 'helix_operator', 'member')
           or exists (select from helix.role_tenant bound
                      where bound.role = session_user and bound.tenant = '*'
                        and not bound.by_setting))
      or tenant in (
        select bound.tenant from helix.role_tenant bound
        where bound.role = session_user and not bound.by_setting
          and coalesce(nullif(current_setting('helix.tenant', true), ''), bound.tenant)
              = bound.tenant
        union all
        select current_setting('helix.tenant', true) from helix.role_tenant bound
        where bound.role = session_user and bound.by_setting
          and bound.tenant in ('*', current_setting('helix.tenant', true)))
    )$policy$, p_table);
end
$$;

-- May the caller act for this tenant? Functions that are handed a tenant ask before anything else,
-- so that a stranger gets a clear refusal instead of an empty answer.
create function helix.may_act_for(p_tenant text) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
  select pg_has_role(session_user, 'helix_operator', 'member')
      or exists (
        select from helix.role_tenant bound
        where bound.role = session_user
          and bound.tenant in ('*', p_tenant)
          and case when bound.by_setting
                   then current_setting('helix.tenant', true) = p_tenant
                   else coalesce(nullif(current_setting('helix.tenant', true), ''), p_tenant)
                        = p_tenant
              end);
$$;

-- Bindings are themselves private: a role sees its own.
alter table helix.role_tenant enable row level security;
alter table helix.role_tenant force row level security;
create policy own_bindings on helix.role_tenant for select to public
  using (role = session_user or pg_has_role(session_user, 'helix_operator', 'member'));
create policy engine_binds on helix.role_tenant for all to helix_engine
  using (role = session_user or pg_has_role(session_user, 'helix_operator', 'member'))
  with check (pg_has_role(session_user, 'helix_operator', 'member'));
