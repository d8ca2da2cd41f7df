-- Roles. They belong to the whole server, so this file only creates the missing ones. It needs
-- CREATEROLE (a plain database owner has it on most managed servers); without it, an administrator
-- runs this file once and `helixq migrate` does the rest.

do $$
declare
  wanted record;
begin
  for wanted in
    select * from (values
      -- Owns the schema and its tables. It cannot log in, and the guards refuse even its DML.
      ('helix_owner'),
      -- Owns the functions that write. The guards let only its statements through.
      ('helix_engine'),
      -- Owns the functions that read. Row-level security restricts it to the caller's tenants.
      ('helix_reader'),
      -- The scopes of API tokens, for logins: each may execute the functions that 99_grants.sql lists for it.
      ('helix_submit'),
      ('helix_work'),
      ('helix_read'),
      ('helix_payloads'),
      ('helix_operate'),
      ('helix_admin'),
      ('helix_run'),
      -- Granted to the login of an intake: it submits messages and writes dead letters, nothing else.
      ('helix_intake'),
      -- Granted to the login that receives webhooks: it reads the secrets of their sources.
      ('helix_webhook'),
      -- Granted to the login of a service: it names others as actors and serves their API tokens.
      ('helix_delegate'),
      -- Granted to the login of an operator: every function, all tenants, and others as actors.
      ('helix_operator')
    ) as role (name)
  loop
    if not exists (select from pg_roles where rolname = wanted.name) then
      begin
        execute format('create role %I nologin', wanted.name);
      exception
        -- Another database of this server may be migrating at the same moment.
        when duplicate_object or unique_violation then null;
      end;
    end if;
    -- Changing the owner of an object requires the right to act as the new owner. A superuser has
    -- it; a database owner grants it to itself (since PostgreSQL 16 CREATEROLE no longer implies it).
    if not pg_has_role(current_user, wanted.name, 'member')
       or (current_setting('server_version_num')::int >= 160000
           and not pg_has_role(current_user, wanted.name, 'set'))
    then
      execute format('grant %I to current_user', wanted.name);
    end if;
  end loop;
end
$$;
