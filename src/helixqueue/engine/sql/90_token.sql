-- API tokens of the HTTP service. The service logs in as a role that is bound by setting, so it sees no row until
-- a transaction names a tenant; `assume_v1` sets the tenant of the request's token. A client can never choose it.

-- One row per token. Rotation adds the next generation of its name. Rows are never deleted, so that a name in
-- the ledger always leads to its creator and never changes its meaning.
create table helix.api_token (
  tenant       helix.tenant_name not null,
  name         text not null check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
  generation   integer not null check (generation > 0),
  -- A plain SHA-256 is enough for 256 random bits; the token itself is not stored.
  hash         bytea not null unique check (octet_length(hash) = 32),
  scopes       text[] not null check (
    cardinality(scopes) > 0
    -- `metrics` and `seal` are about all tenants, so only operators grant them.
    and scopes <@ array['submit', 'work', 'read', 'payloads', 'operate', 'admin', 'run', 'metrics', 'seal']),
  queues       text[] check (cardinality(queues) between 1 and 100),  -- null: every queue
  created_at   timestamptz not null default clock_timestamp(),
  created_by   text not null,
  expires_at   timestamptz not null,
  revoked_at   timestamptz,
  revoked_by   text,
  reason       text check (octet_length(reason) between 1 and 1000),  -- why it was revoked
  last_used_at timestamptz,  -- to the minute
  -- The session of a person, from a login link with a name. Each login is the next generation.
  person       boolean not null default false,
  primary key (tenant, name, generation)
);

do $$
begin
  perform helix.protect_table('helix.api_token'::regclass, 'helix.guard'::regproc);
  perform helix.audit_table('helix.api_token', '{tenant,name,generation}',
                            '{tenant,name,generation,hash,scopes,queues,created_at,created_by,expires_at,revoked_at,'
                            'revoked_by,reason,person}');
end
$$;

-- Whether this login may serve a tenant's tokens: only if row-level security restricts it to the tenant of each
-- transaction. With a login that sees more, every bug of the service would be a leak.
create function helix.is_service_for(p_tenant text) returns boolean
language sql stable as $$
  select not pg_has_role(session_user, 'helix_operator', 'usage')
     and coalesce(bool_and(b.by_setting) and bool_or(b.tenant in ('*', p_tenant)), false)
  from helix.role_tenant b where b.role = session_user
$$;

-- Application logins cannot create tokens; otherwise they could escalate their own privileges. Operators can,
-- and a service, which requires the scope admin.
create function helix.demand_token_admin(p_tenant text, p_scopes text[] default null) returns void
language plpgsql as $$
begin
  if not pg_has_role(session_user, 'helix_operator', 'usage') and not helix.is_service_for(p_tenant) then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not give or take tokens of tenant %s', session_user, p_tenant),
      hint = 'A login with helix_operator may, and over HTTP a token with the scope admin.';
  end if;
  if p_scopes && '{metrics,seal}' and not pg_has_role(session_user, 'helix_operator', 'usage') then
    raise exception using errcode = 'insufficient_privilege',
      message = 'only an operator may give tokens with the scopes metrics and seal: they cover all tenants',
      hint = 'Use a login with helix_operator.';
  end if;
end
$$;

-- The valid token with this hash. The one look-up that crosses tenants: its purpose is to find the tenant.
create function helix.find_token(p_hash bytea) returns helix.api_token
language plpgsql as $$
declare
  v_scope text := current_setting('helix.scope');
  v_token helix.api_token;
begin
  perform set_config('helix.scope', '*', true);
  select * into v_token from helix.api_token t
  where t.hash = p_hash and t.revoked_at is null and t.expires_at > clock_timestamp()
    and helix.is_service_for(t.tenant);
  perform set_config('helix.scope', v_scope, true);
  return v_token;
end
$$;

-- The first statement of every transaction of the service: sets the token's tenant until the transaction ends.
-- Returns false and sets no tenant if the token is unknown, expired or revoked.
create function helix.assume_v1(p_hash bytea) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_tenant text;
begin
  perform helix.enter();
  v_tenant := (helix.find_token(p_hash)).tenant;
  perform set_config('helix.tenant', coalesce(v_tenant, ''), true);
  return v_tenant is not null;
end
$$;

-- What a token allows; no row if it is invalid. Records its use, at most once a minute and without waiting for
-- a concurrent update.
create function helix.authenticate_v1(p_hash bytea)
returns table (tenant text, name text, generation integer, scopes text[], queues text[],
               expires_at timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_token helix.api_token;
  v_scope text;
begin
  perform helix.enter();
  v_token := helix.find_token(p_hash);
  if v_token.tenant is null then
    return;
  end if;
  if v_token.last_used_at is null or v_token.last_used_at < clock_timestamp() - interval '1 min' then
    v_scope := current_setting('helix.scope');
    perform set_config('helix.scope', v_token.tenant, true);
    update helix.api_token t set last_used_at = clock_timestamp()
    where t.ctid = (select f.ctid from helix.api_token f where f.hash = p_hash
                    for update skip locked);
    perform set_config('helix.scope', v_scope, true);
  end if;
  return query select v_token.tenant::text, v_token.name, v_token.generation, v_token.scopes,
                      v_token.queues, v_token.expires_at;
end
$$;

-- Stores the first generation of a name. Returns false if the name was ever used: the ledger may refer to it.
create function helix.create_token_v1(
  p_tenant text, p_name text, p_hash bytea, p_scopes text[], p_queues text[],
  p_expires_at timestamptz, p_actor text
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_token_admin(p_tenant, p_scopes);
  insert into helix.api_token (tenant, name, generation, hash, scopes, queues, expires_at, created_by)
  values (p_tenant, p_name, 1, p_hash, p_scopes, p_queues, p_expires_at,
          helix.actor_of(p_actor))
  on conflict (tenant, name, generation) do nothing;
  return found;
end
$$;

-- Stores the next generation, with the same rights. The one before stays valid for p_overlap_seconds, so that
-- its users can switch. Returns null if no valid token exists (a person logs in again), or if another call rotated it concurrently: the
-- primary key admits one next generation.
create function helix.rotate_token_v1(
  p_tenant text, p_name text, p_hash bytea, p_expires_at timestamptz, p_overlap_seconds real,
  p_actor text
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_last helix.api_token;
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_token_admin(p_tenant);
  select * into v_last from helix.api_token t where t.tenant = p_tenant and t.name = p_name
  order by t.generation desc limit 1 for update;
  if v_last.tenant is null or v_last.revoked_at is not null or v_last.person then
    return null;
  end if;
  perform helix.demand_token_admin(p_tenant, v_last.scopes);
  insert into helix.api_token (tenant, name, generation, hash, scopes, queues, expires_at, created_by)
  values (p_tenant, p_name, v_last.generation + 1, p_hash, v_last.scopes, v_last.queues, p_expires_at,
          helix.actor_of(p_actor))
  on conflict (tenant, name, generation) do nothing;
  if not found then
    return null;
  end if;
  update helix.api_token t
  set expires_at = least(t.expires_at, clock_timestamp() + make_interval(secs => p_overlap_seconds))
  where t.tenant = p_tenant and t.name = p_name and t.generation <= v_last.generation;
  return v_last.generation + 1;
end
$$;

-- Revokes every generation of a name, with effect from the next statement. Returns how many were valid.
create function helix.revoke_token_v1(p_tenant text, p_name text, p_actor text, p_reason text)
returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_ended integer;
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_token_admin(p_tenant);
  update helix.api_token t
  set revoked_at = clock_timestamp(), revoked_by = helix.actor_of(p_actor), reason = p_reason
  where t.tenant = p_tenant and t.name = p_name and t.revoked_at is null;
  get diagnostics v_ended = row_count;
  return v_ended;
end
$$;

-- Revokes one session or token by its hash, as its holder: signing out.
create function helix.end_session_v1(p_hash bytea) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  update helix.api_token t
  set revoked_at = clock_timestamp(), revoked_by = t.name, reason = 'signed out'
  where t.hash = p_hash and t.revoked_at is null;
end
$$;

-- Resolves a doubt over HTTP. The service's login cannot call resolve_fence_v1; here the token
-- must have the scope, and its name is recorded as the actor.
create function helix.resolve_by_token_v1(
  p_hash bytea, p_key bytea, p_version integer, p_applied boolean, p_reason text,
  p_effect text default null, p_form text default null, p_answer bytea default null,
  p_omitted boolean default false, p_answer_seconds double precision default 86400,
  p_tombstone_seconds double precision default 2592000, p_correct boolean default false
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_token helix.api_token;
begin
  perform helix.enter();
  v_token := helix.find_token(p_hash);
  if v_token.tenant is null or not 'operate' = any (v_token.scopes) then
    raise exception using errcode = 'insufficient_privilege',
      message = 'only a good token with the scope operate decides a doubt';
  end if;
  perform set_config('helix.tenant', v_token.tenant, true);
  return helix.resolve_fence_v1(p_key, p_version, p_applied, v_token.name, p_reason, p_effect, p_form,
                                p_answer, p_omitted, p_answer_seconds, p_tombstone_seconds, p_correct);
end
$$;
