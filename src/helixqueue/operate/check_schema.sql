-- Invariants of the schema itself: the objects that protect the rows must exist, be enabled and be those of
-- this release. Notes as in engine/sql/85_check.sql. They read catalogues only, so any login can run
-- them on its own connection.

-- name: trigger_tampered
-- promise: G3
-- means: A guard, or a trigger that checks steps or writes the ledger, is missing, disabled, not ENABLE
--        ALWAYS or changed: rows can change without a ledger entry.
-- action: Create it again as in operate/expected_schema.json and enable it always, then run helixq replay, which
--         shows what happened meanwhile.
with differing as (/* differing */)
select split_part(d.name, '.', 1) as "table", split_part(d.name, '.', 2) as trigger,
       case when d.what = 'changed' and d.found like 'D %%' then 'disabled'
            when d.what = 'changed' and d.found not like 'A %%' then 'not enable always'
            else d.what end as what
from differing d where d.kind = 'trigger';

-- name: rule_present
-- promise: G3
-- means: A table of the engine has a rewrite rule: statements do something else than they say.
-- action: Drop the rule.
select c.relname as table, r.rulename as rule
from pg_rewrite r join pg_class c on c.oid = r.ev_class
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p');

-- name: unique_missing
-- promise: G2
-- means: A primary key or unique index that a guarantee needs is missing or invalid.
-- action: Create it again; if that fails, there are duplicate rows, and other invariants show which.
select w.name as table, w.columns
from (values ('batch', '{id}'::text[]), ('batch', '{key}'), ('work', '{batch}'),
             ('result', '{batch,version}'),
             ('ended', '{queue,ending,at,batch}'), ('entry', '{id,part}'), ('queue', '{id}'),
             ('queue', '{tenant,name}'), ('lane', '{queue,class,priority,twin}'), ('key_limit', '{queue,key}'),
             ('request', '{id}'), ('epoch', '{number}'), ('fence', '{key}'),
             ('fence_event', '{life,version}')) as w (name, columns)
where not exists (
  select from pg_index i
  where i.indrelid = to_regclass('helix.' || w.name)
    and i.indisunique and i.indisvalid and i.indisready and i.indpred is null
    and (select array_agg(a.attname::text order by k.place)
         from unnest(i.indkey::int2[]) with ordinality as k (number, place)
         join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number) = w.columns);

-- name: row_security_off
-- promise: G10
-- means: Row-level security is not enabled and forced on a table that holds rows of tenants: each role that
--        may read the table sees all of them.
-- action: Enable and force it, as helix.protect does.
select c.relname as table, c.relrowsecurity as enabled, c.relforcerowsecurity as forced
from pg_class c
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
  and not (c.relrowsecurity and c.relforcerowsecurity)
  and (c.relname in ('requirement_class', 'entry')
       or exists (select from pg_attribute a
                  where a.attrelid = c.oid and not a.attisdropped
                    and (a.attname in ('tenant', 'role')
                         or a.attname = 'queue' and a.atttypid = 'int4'::regtype)));

-- name: policy_tampered
-- promise: G10
-- means: The policies of a table are not those of this release: one was added, dropped or changed.
-- action: Drop its policies and create them again as in operate/expected_schema.json.
with differing as (/* differing */)
select split_part(d.name, '.', 1) as "table", split_part(d.name, '.', 2) as policy, d.what
from differing d where d.kind = 'policy';

-- name: schema_differs
-- promise: G3
-- means: An object of schema helix is not that of this release: a table, a column, a default, a CHECK, a
--        domain, an index, a child table, a privilege, a role attribute or another object was added, dropped
--        or changed. A default, an index or a CHECK runs code with every write.
-- action: Restore the object as in operate/expected_schema.json, then run helixq replay.
with differing as (/* differing */)
select d.kind, d.name, d.what, left(d.found, 300) as found, left(d.expected, 300) as expected
from differing d where d.kind not in ('trigger', 'policy', 'function grant');

-- name: role_member
-- promise: G3
-- means: A role that is neither a superuser nor allowed to create schemas in this database may act as a role of
--        the engine, or a role of the engine may act as another role: it can create functions that the guards let
--        through. Or a login of clients has a role of the server, such as pg_read_all_data, that passes by the
--        functions.
-- action: revoke the membership. A login that migrates keeps it: the owner of the database grants it CREATE on
--         the database.
select r.rolname as role, m.rolname as member
from pg_auth_members a
join pg_roles r on r.oid = a.roleid
join pg_roles m on m.oid = a.member
where r.rolname in ('helix_owner', 'helix_engine', 'helix_reader')
      and not m.rolsuper
      -- Since PostgreSQL 16 the creator of a role may grant it, which does not let it act as the role.
      and (coalesce(to_jsonb(a) ->> 'set_option', 'true') = 'true' or to_jsonb(a) ->> 'inherit_option' = 'true')
      -- A login that migrates, by a grant to itself.
      and not exists (select from pg_database d
                      cross join aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) acl
                      where d.datname = current_database() and acl.grantee = m.oid
                        and acl.privilege_type = 'CREATE')
   or m.rolname ~ '^helix_(owner|engine|reader|submit|work|read|payloads|operate|admin|intake|delegate|operator)$'
union all
-- A login of clients that may read or write all tables, or files and programs of the server.
select p.rolname, m.rolname
from pg_roles m
join pg_roles p on p.rolname in ('pg_read_all_data', 'pg_write_all_data', 'pg_maintain', 'pg_read_server_files',
                                 'pg_write_server_files', 'pg_execute_server_program')
where m.rolcanlogin and not m.rolsuper and pg_has_role(m.oid, p.oid, 'member')
  and exists (select from pg_roles c
              where c.rolname ~ '^helix_(submit|work|read|payloads|operate|admin|intake|delegate)$'
                and pg_has_role(m.oid, c.oid, 'usage'));

-- name: function_tampered
-- promise: G3
-- means: A function of the engine is not that of this release: its body, its settings, its SECURITY
--        DEFINER or its owner differ, or it is missing or unknown.
-- action: Run helixq migrate if the release is newer; otherwise it was replaced, so create it again from
--         engine/sql.
select coalesce(found.name, release.name) as function,
       case when found.name is null then 'missing'
            when release.name is null then 'unknown'
            when found.body <> release.body then 'body'
            when found.definer <> release.definer then 'security definer'
            when found.settings <> release.settings then 'settings'
            else 'owner' end as what
from (select p.proname::text as name, p.prosrc as body, p.prosecdef as definer,
             coalesce((select string_agg(c.setting, ';' order by c.setting collate "C")
                       from (select lower(replace(c, ' ', '')) from unnest(p.proconfig) c) c (setting)),
                      '') as settings,
             p.proowner::regrole::text as owner
      from pg_proc p where p.pronamespace = 'helix'::regnamespace) found
full join unnest(%(function_name)s::text[], %(function_body)s::text[],
                 %(function_definer)s::bool[], %(function_settings)s::text[])
  as release (name, body, definer, settings) on release.name = found.name
where found.name is null or release.name is null or found.body <> release.body
   or found.definer <> release.definer or found.settings <> release.settings
   -- The owners that 99_grants.sql sets.
   or found.owner <> case when found.name in ('protect', 'protect_table', 'audit_table') then 'helix_owner'
                         when starts_with(found.name, 'read_') then 'helix_reader'
                         else 'helix_engine' end
union all
-- The guards trust every function that runs as helix_engine, and policies every one of helix_reader.
select p.oid::regprocedure::text, 'outside of schema helix' from pg_proc p
where (p.proowner::regrole::text in ('helix_owner', 'helix_engine', 'helix_reader')
       -- SET ROLE as a setting of a function.
       or exists (select from unnest(p.proconfig) c
                  where c ~ '^(role|session_authorization)=("?)helix_(owner|engine|reader)'))
  and p.pronamespace <> 'helix'::regnamespace;

-- name: table_owner
-- promise: G3
-- means: A table, view or sequence belongs to another role than helix_owner, which can then change or drop
--        it.
-- action: alter table ... owner to helix_owner.
select c.relname as name, c.relkind as kind, c.relowner::regrole::text as owner from pg_class c
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
  and c.relowner::regrole::text <> 'helix_owner';

-- name: role_unsafe
-- promise: G3
-- means: A role of the engine may log in, is a superuser or bypasses row-level security.
-- action: alter role ... nologin nosuperuser nobypassrls.
select r.rolname as role, r.rolcanlogin as login, r.rolsuper as superuser, r.rolbypassrls as bypass
from pg_roles r
where r.rolname in ('helix_owner', 'helix_engine', 'helix_reader', 'helix_submit', 'helix_work', 'helix_read',
                    'helix_payloads', 'helix_operate', 'helix_admin', 'helix_run', 'helix_intake', 'helix_webhook', 'helix_delegate',
                    'helix_operator')
  and (r.rolcanlogin or r.rolsuper or r.rolbypassrls);

-- name: open_to_public
-- promise: G10
-- means: Something in schema helix is granted to PUBLIC: every login role of the server may use it.
-- action: Revoke it.
select o.kind, o.name, acl.privilege_type as privilege
from (select 'schema' as kind, n.nspname::text as name, n.nspacl as acl from pg_namespace n
      where n.nspname = 'helix'
      union all
      select 'table', c.relname::text, c.relacl from pg_class c
      where c.relnamespace = 'helix'::regnamespace
      union all
      select 'column', c.relname || '.' || a.attname, a.attacl
      from pg_attribute a join pg_class c on c.oid = a.attrelid
      where c.relnamespace = 'helix'::regnamespace
      union all
      -- No list means the default, and the default of a function is PUBLIC.
      select 'function', p.proname::text, coalesce(p.proacl, acldefault('f', p.proowner))
      from pg_proc p where p.pronamespace = 'helix'::regnamespace) o
cross join lateral aclexplode(o.acl) acl
where acl.grantee = 0;

-- name: table_granted
-- promise: G10
-- means: A role besides the engine, the reader and operators has a privilege on a table, a column or a
--        sequence: it can bypass the functions, and EXPLAIN shows it the rows of other tenants.
-- action: Revoke it; clients need no privilege on tables.
select o.name, acl.grantee::regrole::text as role, acl.privilege_type as privilege
from (select c.relname::text as name, c.relacl as acl from pg_class c
      where c.relnamespace = 'helix'::regnamespace
      union all
      select c.relname || '.' || a.attname, a.attacl
      from pg_attribute a join pg_class c on c.oid = a.attrelid
      where c.relnamespace = 'helix'::regnamespace) o
cross join lateral aclexplode(o.acl) acl
where acl.grantee <> 0
  and acl.grantee::regrole::text not in ('helix_owner', 'helix_engine', 'helix_reader', 'helix_operator');

-- name: function_granted
-- promise: G10
-- means: The roles that may call a function of the engine are not those of this release.
-- action: Grant or revoke it, as in the list at the end of 99_grants.sql.
with differing as (/* differing */)
select d.name as function, d.what, d.found, d.expected from differing d where d.kind = 'function grant';

-- name: secret_readable
-- promise: G2
-- means: A role besides the engine may read the secret part of live tokens, the keys of fingerprints, or
--        hashes of API tokens and login codes: a token could be stolen, a payload guessed.
-- action: Revoke it.
select o.name, acl.grantee::regrole::text as role
from (select c.relname::text as name, c.relacl as acl from pg_class c
      where c.oid in ('helix.work'::regclass, 'helix.fence'::regclass, 'helix.secret'::regclass,
                      'helix.api_token'::regclass, 'helix.login'::regclass)
      union all
      select a.attrelid::regclass || '.' || a.attname, a.attacl from pg_attribute a
      where a.attrelid in ('helix.work'::regclass, 'helix.fence'::regclass, 'helix.secret'::regclass,
                           'helix.api_token'::regclass, 'helix.login'::regclass)
        and (a.attname in ('nonce', 'hash') or a.attrelid = 'helix.secret'::regclass)) o
cross join lateral aclexplode(o.acl) acl
where acl.privilege_type = 'SELECT'
  and acl.grantee not in (select r.oid from pg_roles r where r.rolname in ('helix_owner', 'helix_engine'));
