-- Who exists. Roles belong to the whole server, so this file only adds what is missing.
-- It needs CREATEROLE (a plain database owner has it on most managed servers); where that is not
-- given, an administrator runs this file once and `helixq migrate` does the rest.

do $$
declare
  wanted record;
begin
  for wanted in
    select * from (values
      -- Owns the schema and its tables. Nobody logs in as it, and the guards refuse even its DML.
      ('helix_owner'),
      -- Owns the functions. The only role whose statements the guards let through.
      ('helix_engine'),
      -- What an application's login role is granted, so that it may call the functions.
      ('helix_client'),
      -- What a person's or the service's login role is granted to act for all tenants.
      ('helix_operator')
    ) as role (name)
  loop
    if not exists (select from pg_roles where rolname = wanted.name) then
      begin
        execute format('create role %I nologin', wanted.name);
      exception
        -- Roles are the server's: another database may be migrating at this very moment.
        when duplicate_object or unique_violation then null;
      end;
    end if;
    -- Handing objects over to a role takes the right to act as it. A superuser has it already;
    -- a database owner gives it to itself (PostgreSQL 16 no longer implies it by CREATEROLE).
    if not pg_has_role(current_user, wanted.name, 'member')
       or (current_setting('server_version_num')::int >= 160000
           and not pg_has_role(current_user, wanted.name, 'set'))
    then
      execute format('grant %I to current_user', wanted.name);
    end if;
  end loop;
end
$$;
