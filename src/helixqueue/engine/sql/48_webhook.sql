-- Sources of webhooks and the secrets that sign their deliveries.

create table helix.webhook_source (
  tenant     helix.tenant_name not null,
  name       text not null check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
  scheme     text not null check (scheme in ('standard', 'stripe', 'github', 'slack', 'hmac')),
  definition text not null check (octet_length(definition) between 2 and 65536),  -- webhook/source.py reads it
  applied_at timestamptz not null default clock_timestamp(),
  applied_by text not null,
  primary key (tenant, name)
);

-- A rotation adds the next secret and ends the earlier ones. The secret of an ended row is deleted by the next rotation.
create table helix.webhook_secret (
  tenant      helix.tenant_name not null,
  source      text not null,
  number      integer not null check (number > 0),
  secret      bytea check (octet_length(secret) between 16 and 1024),
  valid_from  timestamptz not null default clock_timestamp(),
  valid_until timestamptz,  -- null: until the next rotation
  created_by  text not null,
  primary key (tenant, source, number)
);

do $$
begin
  perform helix.protect_table('helix.webhook_source'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.webhook_secret'::regclass, 'helix.guard'::regproc);
end
$$;

-- Creates or replaces the definition of a source: created | changed | unchanged.
create function helix.apply_webhook_v1(
  p_tenant text, p_name text, p_scheme text, p_definition text, p_actor text
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_created boolean;
begin
  perform helix.enter_for(p_tenant);
  insert into helix.webhook_source as s (tenant, name, scheme, definition, applied_by)
  values (p_tenant, p_name, p_scheme, p_definition, helix.actor_of(p_actor))
  on conflict (tenant, name) do update
  set scheme = excluded.scheme, definition = excluded.definition, applied_at = excluded.applied_at,
      applied_by = excluded.applied_by
  where (s.scheme, s.definition) is distinct from (excluded.scheme, excluded.definition)
  returning s.xmax = 0 into v_created;
  return case v_created when true then 'created' when false then 'changed' else 'unchanged' end;
end
$$;

-- Adds a secret; the earlier ones stay valid for p_overlap_seconds. Returns its number, null without such a source. A
-- repeat with the secret that was added last changes nothing.
create function helix.rotate_webhook_v1(
  p_tenant text, p_name text, p_secret bytea, p_overlap_seconds double precision, p_actor text
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_last helix.webhook_secret;
begin
  perform helix.enter_for(p_tenant);
  perform from helix.webhook_source s where s.tenant = p_tenant and s.name = p_name for update;
  if not found then
    return null;
  end if;
  select * into v_last from helix.webhook_secret s where s.tenant = p_tenant and s.source = p_name
  order by s.number desc limit 1;
  if v_last.secret = p_secret and v_last.valid_until is null then
    return v_last.number;
  end if;
  update helix.webhook_secret s
  set valid_until = least(s.valid_until, v_now + make_interval(secs => p_overlap_seconds)),
      secret = case when least(s.valid_until, v_now + make_interval(secs => p_overlap_seconds)) > v_now then s.secret end
  where s.tenant = p_tenant and s.source = p_name and s.secret is not null;
  insert into helix.webhook_secret (tenant, source, number, secret, valid_from, created_by)
  values (p_tenant, p_name, coalesce(v_last.number, 0) + 1, p_secret, v_now, helix.actor_of(p_actor));
  return coalesce(v_last.number, 0) + 1;
end
$$;

-- Whether the login receives webhooks. Operators may execute every function of clients, but secrets are for receivers.
create function helix.receives_webhooks() returns boolean
language sql stable as $$
  select pg_has_role(session_user, 'helix_webhook', 'member')
$$;

-- The first statement of each transaction of a service that serves a delivery: sets the tenant that the path names.
-- Returns false and sets none if that tenant has no such source, or the service does not serve it.
create function helix.assume_webhook_v1(p_tenant text, p_name text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_known boolean;
begin
  perform set_config('helix.scope', '*', true);
  v_known := helix.receives_webhooks() and helix.is_service_for(p_tenant)
             and exists (select from helix.webhook_source s where s.tenant = p_tenant and s.name = p_name);
  perform set_config('helix.tenant', case when v_known then p_tenant else '' end, true);
  perform helix.enter();
  return v_known;
end
$$;

-- The definition of a source and its valid secrets, newest first; no row without such a source.
create function helix.webhook_v1(p_tenant text, p_name text)
returns table (definition text, secrets bytea[])
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.enter_for(p_tenant);
  if not helix.receives_webhooks() then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not read the secrets of webhooks', session_user),
      hint = format('An administrator grants the right: grant helix_webhook to %I;', session_user);
  end if;
  return query
    select s.definition,
           array(select x.secret from helix.webhook_secret x
                 where x.tenant = p_tenant and x.source = p_name and x.secret is not null
                   and coalesce(x.valid_until > v_now, true)
                 order by x.number desc limit 5)
    from helix.webhook_source s where s.tenant = p_tenant and s.name = p_name;
end
$$;
