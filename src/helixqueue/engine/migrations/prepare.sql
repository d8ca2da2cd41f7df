-- Runs before the first revision of every migration: settings of the session, then the requirements on the
-- server and on the migrating role. Nothing changes before all of them are met.

-- Names below are written in full, and comparisons such as 'helix.event' = oid::regclass::text only
-- hold while no database or role setting puts schema helix on the path.
set search_path = pg_catalog, pg_temp;
-- A revision that cannot get a lock soon gives up: every reader and writer of a table would queue behind a
-- waiting ALTER TABLE.
set lock_timeout = '5s';
-- A limit that a role or database sets for its requests would interrupt a long revision.
set statement_timeout = 0;
set idle_in_transaction_session_timeout = 0;
set client_min_messages = warning;
set check_function_bodies = on;

do $$
declare
  -- As in engine/sql/10_roles.sql.
  c_roles constant name[] := '{helix_owner,helix_engine,helix_reader,helix_submit,helix_work,helix_read,'
                             'helix_payloads,helix_operate,helix_admin,helix_run,helix_intake,helix_webhook,helix_delegate,'
                             'helix_operator}';
  v_number integer := current_setting('server_version_num')::integer;
  v_me     pg_roles;
  v_lacks  text;
  v_remedy text;
begin
  if v_number < 150000 then
    raise exception using errcode = 'feature_not_supported',
      message = format('expected PostgreSQL 15 or newer, got %s', current_setting('server_version')),
      hint = 'Upgrade the server, or use another one.';
  end if;

  -- Identities are compared by normalised Unicode; other encodings have no normal form.
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception using errcode = 'feature_not_supported',
      message = format('expected a database with encoding UTF8, got %s in database %s',
                       current_setting('server_encoding'), current_database()),
      hint = format('Create another one: create database %I encoding ''UTF8'' template template0;',
                    current_database() || '_utf8');
  end if;

  if pg_is_in_recovery() then
    raise exception using errcode = 'read_only_sql_transaction',
      message = 'expected the primary server, got a standby',
      hint = 'Name the primary, or add target_session_attrs=read-write to the DSN.';
  end if;

  select * into v_me from pg_roles where rolname = current_user;
  if to_regnamespace('helix') is null
     and not has_database_privilege(current_database(), 'CREATE')
  then
    raise exception using errcode = 'insufficient_privilege',
      message = format('expected a role that may create a schema in database %s, got %s',
                       current_database(), current_user),
      hint = format('Migrate as the owner of the database, or: grant create on database %I to %I;',
                    current_database(), current_user);
  end if;

  -- Each role must exist, and the migrating role must be able to hand objects over to it. CREATEROLE
  -- gives both up to PostgreSQL 15; since 16 it gives the second only for roles it created itself.
  select string_agg(wanted.name || case when r.oid is null then ' does not exist'
                                        else ' is not granted to ' || current_user end,
                    ', ' order by wanted.place),
         coalesce(string_agg(format('create role %I nologin;', wanted.name), ' ' order by wanted.place)
                    filter (where r.oid is null) || ' ', '')
         || format('grant %s to %I;', string_agg(wanted.name, ', ' order by wanted.place), current_user)
  into v_lacks, v_remedy
  from unnest(c_roles) with ordinality as wanted (name, place)
  left join pg_roles r on r.rolname = wanted.name
  where not v_me.rolsuper
    and case
      when r.oid is null then not v_me.rolcreaterole
      when v_number >= 160000 then not pg_has_role(r.oid, 'SET')
                               and not pg_has_role(r.oid, 'MEMBER WITH ADMIN OPTION')
      else not pg_has_role(r.oid, 'MEMBER') and not v_me.rolcreaterole
    end;
  if v_lacks is not null then
    raise exception using errcode = 'insufficient_privilege',
      message = format('expected role %s to have CREATEROLE or to be granted the roles of '
                       'HelixQueue, got: %s', current_user, v_lacks),
      hint = format('An administrator of the server runs once: %s', v_remedy);
  end if;
end
$$;

-- The version table. It cannot live in schema helix: every table there refuses writes that do
-- not come from the engine's own functions.
create schema if not exists helix_migration;
