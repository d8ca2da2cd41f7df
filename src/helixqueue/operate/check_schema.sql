-- Invariants of the schema itself: what keeps the rows right must be there, switched on and as this
-- release made it. Same form as check_rows.sql.

-- name: trigger_tampered
-- promise: G3
-- means: A guard, or the trigger that writes the ledger, is missing, off, not ENABLE ALWAYS or
--        changed: rows can change without an event.
-- action: Put it back as in 07_record.sql and 08_guard.sql (enclose, always_on), then run
--         helixq replay: it says what happened meanwhile.
with tables as (
  select c.oid, c.relname, c.relname ~ '^(event(_\d+)?|fence_event)$' as of_ledger from pg_class c
  where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
),
-- tgtype: 1 for each row, 2 before, 4 insert, 8 delete, 16 update, 32 truncate.
wanted as (
  select t.oid, t.relname, w.name, w.kind, w.only_when,
         case when w.guard then case when t.of_ledger then 'guard_ledger' else 'guard' end
              else w.function end as function
  from tables t
  join (values ('a_guard', 30, true, null, null, null),
               ('a_guard_truncate', 34, true, null, null, null),
               ('record', 4, false, 'record', '{ready,waiting,outcome}'::name[], null),
               ('record', 4, false, 'record_leases', '{active}', null),
               ('record_update', 16, false, 'record', '{ready,waiting,active,outcome}', null),
               ('record', 4, false, 'record_fence', '{fence}', null),
               ('record_update', 16, false, 'record_fence', '{fence}', null),
               ('count_lease', 5, false, 'count_lease', '{active}', 'new.limit_key IS NOT NULL'),
               ('count_lease_ended', 9, false, 'count_lease', '{active}',
                'old.limit_key IS NOT NULL'))
    as w (name, kind, guard, function, only_on, only_when) on w.only_on is null or t.relname = any (w.only_on)
),
here as (
  select g.*, p.pronamespace = 'helix'::regnamespace as ours, p.proname
  from pg_trigger g join tables t on t.oid = g.tgrelid join pg_proc p on p.oid = g.tgfoid
  where not g.tgisinternal
)
select w.relname as table, w.name as trigger,
       case when h.oid is null then 'missing'
            when h.tgenabled = 'D' then 'disabled'
            when h.tgenabled <> 'A' then 'not enable always'
            else 'changed' end as what
from wanted w left join here h on h.tgrelid = w.oid and h.tgname = w.name
where h.oid is null or h.tgenabled <> 'A' or h.tgtype <> w.kind
   or (h.tgqual is null) <> (w.only_when is null)
   or strpos(pg_get_triggerdef(h.oid), 'WHEN ((' || w.only_when || ')) EXECUTE') = 0
   or h.tgattr <> ''::int2vector or not h.ours or h.proname <> w.function
union all
select t.relname, h.tgname, 'unknown' from here h join tables t on t.oid = h.tgrelid
where not exists (select from wanted w where w.oid = h.tgrelid and w.name = h.tgname);

-- name: rule_present
-- promise: G3
-- means: A rewrite rule stands on a table of the engine: statements are not what they seem.
-- action: Drop the rule.
select c.relname as table, r.rulename as rule
from pg_rewrite r join pg_class c on c.oid = r.ev_class
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p');

-- name: unique_missing
-- promise: G2
-- means: A primary key or unique index that a promise rests on is missing or invalid.
-- action: Create it again; that it fails means the damage is done, and the witnesses above show it.
select w.name as table, w.columns
from (values ('identity', '{key}'::text[]), ('batch', '{id}'), ('ready', '{batch}'),
             ('waiting', '{batch}'), ('active', '{batch}'), ('outcome', '{batch}'),
             ('retired', '{batch}'), ('key_limit', '{tenant,queue,key}'),
             ('request', '{id}'), ('epoch', '{number}'), ('event', '{batch,version}'),
             ('fence', '{key}'), ('fence_event', '{life,version}')) as w (name, columns)
where not exists (
  select from pg_index i
  where i.indrelid = to_regclass('helix.' || w.name)
    and i.indisunique and i.indisvalid and i.indisready and i.indpred is null
    and (select array_agg(a.attname::text order by k.place)
         from unnest(i.indkey::int2[]) with ordinality as k (number, place)
         join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number) = w.columns);

-- name: row_security_off
-- promise: G10
-- means: Row-level security is not enabled and forced on a table that holds words of tenants: its
--        rows are open to whoever may read the table.
-- action: Enable and force it, as helix.protect does.
select c.relname as table, c.relrowsecurity as enabled, c.relforcerowsecurity as forced
from pg_class c
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
  and not (c.relrowsecurity and c.relforcerowsecurity)
  and (c.relname = 'requirement_class'
       or exists (select from pg_attribute a
                  where a.attrelid = c.oid and a.attname in ('tenant', 'role')
                    and not a.attisdropped));

-- name: policy_tampered
-- promise: G10
-- means: A table's policies are not those that the other tables of tenants have: somebody added,
--        dropped or changed one.
-- action: Drop its policies and call helix.protect for it.
with tables as (
  select c.oid, c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid
  where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')
    and a.attname = 'tenant' and not a.attisdropped and c.relname <> 'role_tenant'
),
signed as (
  -- Casts and parentheses depend on whether the tenant is a text or a domain over it.
  select t.oid, t.relname, string_agg(regexp_replace(concat_ws(
           ' ', p.polname, p.polcmd, p.polpermissive, p.polroles::regrole[]::text,
           pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)),
           '::text|[()]', '', 'g'), E'\n' order by p.polname) as policies
  from tables t left join pg_policy p on p.polrelid = t.oid
  group by t.oid, t.relname
),
usual as (select mode() within group (order by policies) as policies from signed)
select s.relname as table, s.policies from signed s cross join usual u
where s.policies is distinct from u.policies
union all
-- The mode says nothing once every table was changed, but a policy that is always true says it all.
select c.relname, p.polname from pg_policy p join pg_class c on c.oid = p.polrelid
where c.relnamespace = 'helix'::regnamespace and pg_get_expr(p.polqual, p.polrelid) = 'true'
  and p.polroles <> array['helix_engine'::regrole::oid]
union all
select c.relname, null from pg_class c
where c.relnamespace = 'helix'::regnamespace and c.relrowsecurity
  and not exists (select from pg_policy p where p.polrelid = c.oid);

-- name: function_tampered
-- promise: G3
-- means: A function of the engine is not that of this release: its body, its settings, its SECURITY
--        DEFINER or its owner differ, or it is missing or unknown.
-- action: Run helixq migrate if the release is newer; otherwise somebody replaced it, so create it
--         again from store/sql.
select coalesce(here.name, release.name) as function,
       case when here.name is null then 'missing'
            when release.name is null then 'unknown'
            when here.body <> release.body then 'body'
            when here.definer <> release.definer then 'security definer'
            when here.settings <> release.settings then 'settings'
            else 'owner' end as what
from (select p.proname::text as name, p.prosrc as body, p.prosecdef as definer,
             coalesce((select string_agg(replace(c, ' ', ''), ';' order by c)
                       from unnest(p.proconfig) c), '') as settings,
             p.proowner::regrole::text as owner
      from pg_proc p where p.pronamespace = 'helix'::regnamespace) here
full join unnest(%(function_name)s::text[], %(function_body)s::text[],
                 %(function_definer)s::bool[], %(function_settings)s::text[])
  as release (name, body, definer, settings) on release.name = here.name
where here.name is null or release.name is null or here.body <> release.body
   or here.definer <> release.definer or here.settings <> release.settings
   or here.owner not in ('helix_engine', 'helix_owner')
   or (right(here.name, 3) = '_v1' and here.owner <> 'helix_engine')
union all
-- The guards trust whatever runs as helix_engine.
select p.oid::regprocedure::text, 'outside of schema helix' from pg_proc p
where p.proowner::regrole::text = 'helix_engine' and p.pronamespace <> 'helix'::regnamespace;

-- name: table_owner
-- promise: G3
-- means: A table, view or sequence belongs to somebody else than helix_owner, who can then change or
--        drop it.
-- action: alter table ... owner to helix_owner.
select c.relname as name, c.relkind as kind, c.relowner::regrole::text as owner from pg_class c
where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
  and c.relowner::regrole::text <> 'helix_owner';

-- name: role_unsafe
-- promise: G3
-- means: A role that owns the engine may log in, is a superuser or bypasses row-level security.
-- action: alter role ... nologin nosuperuser nobypassrls.
select r.rolname as role, r.rolcanlogin as login, r.rolsuper as superuser, r.rolbypassrls as bypass
from pg_roles r
where r.rolname in ('helix_owner', 'helix_engine', 'helix_client', 'helix_operator')
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

-- name: secret_readable
-- promise: G2
-- means: Somebody besides the engine may read the secret part of live tokens, or the keys of the
--        fingerprints: a token could be stolen, a payload guessed.
-- action: Revoke it.
select c.relname || '.nonce' as what, acl.grantee::regrole::text as role
from pg_class c cross join lateral aclexplode(c.relacl) acl
where c.oid in ('helix.active'::regclass, 'helix.fence'::regclass) and acl.privilege_type = 'SELECT'
  and acl.grantee::regrole::text not in ('helix_owner', 'helix_engine')
union all
select a.attrelid::regclass || '.nonce', acl.grantee::regrole::text
from pg_attribute a cross join lateral aclexplode(a.attacl) acl
where a.attrelid in ('helix.active'::regclass, 'helix.fence'::regclass) and a.attname = 'nonce'
  and acl.grantee::regrole::text not in ('helix_owner', 'helix_engine')
union all
select 'secret', acl.grantee::regrole::text
from pg_class c cross join lateral aclexplode(c.relacl) acl
where c.oid = 'helix.secret'::regclass
  and acl.grantee::regrole::text not in ('helix_owner', 'helix_engine');
