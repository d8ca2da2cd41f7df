-- Login links for single use. `helixq up` prints one; opening it exchanges its code for a short-lived token. A
-- used code is invalid, so a link in a history or a log opens nothing.

-- One row per code, by its hash: the code itself is not stored.
create table helix.login (
  hash          bytea primary key check (octet_length(hash) = 32),
  tenant        helix.tenant_name not null,
  scopes        text[] not null check (
    cardinality(scopes) > 0
    -- Not `metrics`, which no page shows. `seal` is for links that an operator offers.
    and scopes <@ array['submit', 'work', 'read', 'payloads', 'operate', 'admin', 'run', 'seal']),
  token_seconds double precision not null check (token_seconds between 1 and 86400),
  created_by    text not null,
  person        text check (person ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),  -- who logs in; null: unnamed
  -- At most an hour: a code is used by the operator who just created it.
  expires_at    timestamptz not null,
  used_at       timestamptz
);

do $$
begin
  perform helix.protect_table('helix.login'::regclass, 'helix.guard'::regproc);
end
$$;

-- Whether the name belongs to a token of a program: it means one holder in the ledger, and no person gets it.
create function helix.is_program(p_tenant text, p_name text) returns boolean
language sql stable as $$
  select exists (select from helix.api_token t
                 where t.tenant = p_tenant and t.name = p_name and not t.person)
$$;

-- Stores a code for a tenant, valid for p_seconds; its token will be valid for p_token_seconds and have the name
-- of p_person. Returns null if that is the name of a program's token.
create function helix.offer_login_v1(
  p_tenant text, p_hash bytea, p_scopes text[], p_seconds double precision,
  p_token_seconds double precision, p_actor text, p_person text default null
) returns timestamptz
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_until timestamptz := clock_timestamp() + make_interval(secs => least(greatest(p_seconds, 1), 3600));
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_token_admin(p_tenant, p_scopes);
  if helix.is_program(p_tenant, p_person) then
    return null;
  end if;
  insert into helix.login (hash, tenant, scopes, token_seconds, created_by, person, expires_at)
  values (p_hash, p_tenant, p_scopes, p_token_seconds, helix.actor_of(p_actor), p_person, v_until);
  return v_until;
end
$$;

-- Exchanges a code for a token with the given hash; no row if the code is unknown, used or expired. Of concurrent
-- exchanges the update admits one. Like `find_token` it looks across tenants, to find the tenant. The token has the
-- name of the person; without one, a name derived from the code, so that the ledger leads from an action to the
-- creator of the link.
create function helix.redeem_login_v1(p_hash bytea, p_token_hash bytea)
returns table (tenant text, name text, scopes text[], expires_at timestamptz)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_now   timestamptz := clock_timestamp();
  v_login helix.login;
  v_name  text;
  v_scope text;
begin
  perform helix.enter();
  v_scope := current_setting('helix.scope');
  perform set_config('helix.scope', '*', true);
  update helix.login l set used_at = v_now
  where l.hash = p_hash and l.used_at is null and l.expires_at > v_now and helix.is_service_for(l.tenant)
  returning l.* into v_login;
  v_name := coalesce(v_login.person, 'login-' || left(encode(p_hash, 'hex'), 16));
  -- The primary key admits one next generation; of concurrent logins of a person the others try the one after. A
  -- token of a program may have got the name since the link was offered: then there is no login.
  while v_login.tenant is not null and not helix.is_program(v_login.tenant, v_name) loop
    return query
      insert into helix.api_token as t (tenant, name, generation, hash, scopes, expires_at, created_by, person)
      select v_login.tenant, v_name, coalesce(max(o.generation), 0) + 1, p_token_hash, v_login.scopes,
             v_now + make_interval(secs => v_login.token_seconds), v_login.created_by, true
      from helix.api_token o where o.tenant = v_login.tenant and o.name = v_name
      on conflict (tenant, name, generation) do nothing
      returning t.tenant::text, t.name, t.scopes, t.expires_at;
    exit when found;
  end loop;
  perform set_config('helix.scope', v_scope, true);
end
$$;

-- Deletes codes a day after they expired; their tokens keep the record.
create function helix.delete_old_logins(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.login l
  where l.hash in (select o.hash from helix.login o
                   where o.expires_at < clock_timestamp() - interval '1 day'
                   limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;
