-- Everything that the catalogues know about schema helix, one row per object: its kind, its name, its
-- definition. `make schema` writes the rows of a migrated database into expected_schema.json; `check` compares,
-- and a seal has their digest. Only texts that are the same on every supported PostgreSQL: storage
-- parameters are left out (operators tune them), privileges of an owner too (newer versions have more).

-- name: schema_objects
with rel as (
  select c.* from pg_class c where c.relnamespace = to_regnamespace('helix')
),
acl (kind, name, owner, list) as (
  select 'schema', n.nspname::text, n.nspowner, n.nspacl from pg_namespace n where n.nspname = 'helix'
  union all
  select 'relation', c.relname::text, c.relowner, c.relacl from rel c where c.relkind in ('r', 'p', 'v', 'm', 'S', 'f')
  union all
  select 'column', c.relname || '.' || a.attname, c.relowner, a.attacl
  from rel c join pg_attribute a on a.attrelid = c.oid
  union all
  select 'function', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
  from pg_proc p where p.pronamespace = to_regnamespace('helix')
  union all
  select 'type', t.typname::text, t.typowner, coalesce(t.typacl, acldefault('T', t.typowner))
  from pg_type t where t.typnamespace = to_regnamespace('helix') and t.typtype in ('e', 'd')
  union all
  select 'default privileges', coalesce(d.defaclnamespace::regnamespace::text, '') || ' ' || d.defaclobjtype::text,
         d.defaclrole, d.defaclacl
  from pg_default_acl d
  where d.defaclnamespace = to_regnamespace('helix') or starts_with(d.defaclrole::regrole::text, 'helix_')
)
-- Tables, views and sequences: kind, persistence (an unlogged table is emptied by a crash), row-level security.
select 'relation' as kind, c.relname::text as name,
       concat_ws(' ', c.relkind, c.relpersistence, c.relowner::regrole,
                 case when c.relrowsecurity then 'row-security' end,
                 case when c.relforcerowsecurity then 'forced' end,
                 case when c.relreplident <> 'd' then 'replica identity ' || c.relreplident::text end,
                 -- Marks that an edit of pg_class removes, so that the server ignores what they stand for.
                 case when not c.relhastriggers and exists (select from pg_trigger g where g.tgrelid = c.oid)
                      then 'triggers ignored' end,
                 case when not c.relhasindex and exists (select from pg_index i where i.indrelid = c.oid)
                      then 'indexes ignored' end,
                 case when c.relchecks <> (select count(*) from pg_constraint k
                                           where k.conrelid = c.oid and k.contype = 'c')
                      then 'checks ignored' end) as definition
from rel c where c.relkind in ('r', 'p', 'v', 'm', 'S', 'f', 'c')
union all
select 'column', c.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), case when a.attnotnull then 'not null' end,
                 'default ' || pg_get_expr(d.adbin, d.adrelid), nullif(a.attidentity::text, ''),
                 nullif(a.attgenerated::text, ''),
                 case when a.attcollation not in (0, 100) then a.attcollation::regcollation::text end)
from rel c join pg_attribute a on a.attrelid = c.oid
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
where c.relkind in ('r', 'p', 'v', 'm', 'f', 'c') and a.attnum > 0 and not a.attisdropped
union all
-- A sequence that counts down or in a cycle gives a number twice.
select 'sequence', c.relname::text,
       concat_ws(' ', format_type(q.seqtypid, null), q.seqstart, q.seqincrement, q.seqmin, q.seqmax, q.seqcache,
                 case when q.seqcycle then 'cycle' end)
from rel c join pg_sequence q on q.seqrelid = c.oid
union all
-- A subscription writes rows without statement triggers, and so without the guards.
select 'subscription', c.relname::text, '' from rel c join pg_subscription_rel s on s.srrelid = c.oid
union all
-- A foreign key of another schema makes retention fail or wait.
select 'foreign key', k.conrelid::regclass || '.' || k.conname, pg_get_constraintdef(k.oid)
from pg_constraint k join rel c on c.oid = k.confrelid where k.connamespace <> c.relnamespace
union all
-- CHECKs and keys of tables and domains. Not-null constraints have rows since PostgreSQL 18 only.
select 'constraint', coalesce(c.relname, t.typname) || '.' || k.conname,
       pg_get_constraintdef(k.oid) || case when k.convalidated then '' else ' not valid' end
from pg_constraint k
left join rel c on c.oid = k.conrelid
left join pg_type t on t.oid = k.contypid
where k.connamespace = to_regnamespace('helix') and k.contype not in ('n', 't')
union all
select 'type', t.typname::text,
       concat_ws(' ', t.typtype, t.typowner::regrole,
                 case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) end,
                 case when t.typnotnull then 'not null' end, 'default ' || t.typdefault,
                 (select string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_enum e
                  where e.enumtypid = t.oid))
from pg_type t where t.typnamespace = to_regnamespace('helix') and t.typtype in ('e', 'd', 'r')
union all
select 'index', c.relname::text,
       pg_get_indexdef(c.oid) || case when i.indisvalid and i.indisready then '' else ' invalid' end
from rel c join pg_index i on i.indexrelid = c.oid
union all
select 'trigger', c.relname || '.' || g.tgname, g.tgenabled::text || ' ' || pg_get_triggerdef(g.oid)
from rel c join pg_trigger g on g.tgrelid = c.oid and not g.tgisinternal
union all
select 'rule', c.relname || '.' || r.rulename,
       r.ev_enabled::text || ' ' || case when c.relkind = 'v' and r.rulename = '_RETURN'
                                         then 'view ' || md5(coalesce(
                                           regexp_replace(v.body, '\m' || v.alias || '\.', '', 'g'), v.body))
                                         else pg_get_ruledef(r.oid) end
from rel c join pg_rewrite r on r.ev_class = c.oid
-- The columns of a view of one table have its alias or not, depending on the version of PostgreSQL.
cross join lateral (select pg_get_viewdef(c.oid) as body,
                           substring(pg_get_viewdef(c.oid) from 'FROM \S+ (\w+);$') as alias) v
union all
select 'policy', c.relname || '.' || p.polname,
       concat_ws(' ', case when not p.polpermissive then 'restrictive' end, p.polcmd,
                 (select string_agg(case o when 0 then 'public' else o::regrole::text end, ',' order by o::regrole::text)
                  from unnest(p.polroles) o),
                 'using ' || pg_get_expr(p.polqual, p.polrelid),
                 'check ' || pg_get_expr(p.polwithcheck, p.polrelid))
from rel c join pg_policy p on p.polrelid = c.oid
union all
select 'function', p.oid::regprocedure::text,
       concat_ws(' ', l.lanname, p.provolatile, p.proparallel, p.proowner::regrole,
                 case when p.prosecdef then 'security definer' end,
                 case when p.proleakproof then 'leakproof' end, case when p.proisstrict then 'strict' end,
                 pg_get_function_result(p.oid), 'defaults ' || pg_get_expr(p.proargdefaults, 0),
                 array_to_string(p.proconfig, ' '), md5(p.prosrc))
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = to_regnamespace('helix')
union all
-- A child table would show its rows in every read of its parent, wherever it is; an update of a parent changes
-- the rows of a child without the child's statement triggers.
select 'child', h.inhparent::regclass::text || ' <- ' || h.inhrelid::regclass, ''
from pg_inherits h join rel c on c.oid in (h.inhparent, h.inhrelid) where c.relkind in ('r', 'p')
union all
select o.kind, o.name, ''
from (select 'operator' as kind, x.oprname::text as name, x.oprnamespace as at from pg_operator x
      union all select 'collation', x.collname::text, x.collnamespace from pg_collation x
      union all select 'conversion', x.conname::text, x.connamespace from pg_conversion x
      union all select 'operator class', x.opcname::text, x.opcnamespace from pg_opclass x
      union all select 'statistics', x.stxname::text, x.stxnamespace from pg_statistic_ext x) o
where o.at = to_regnamespace('helix')
union all
select a.kind || ' grant', a.name,
       string_agg(concat_ws(' ', case g.grantee when 0 then 'public' else g.grantee::regrole::text end,
                            g.privilege_type, case when g.is_grantable then 'grantable' end), ', '
                  order by g.grantee::regrole::text, g.privilege_type)
from acl a cross join lateral aclexplode(a.list) g
where g.grantee <> a.owner
group by a.kind, a.name
union all
-- Settings of the database, or of a login in it, that switch off what the engine relies on.
select 'setting', coalesce(nullif(s.setrole, 0)::regrole::text, 'database') || '.' || split_part(c.setting, '=', 1),
       c.setting
from pg_db_role_setting s cross join lateral unnest(s.setconfig) as c (setting)
where s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
  and c.setting ~* '^(row_security|session_replication_role|role|session_authorization)='
union all
select 'role', r.rolname::text,
       concat_ws(' ', case when r.rolsuper then 'superuser' end, case when r.rolcanlogin then 'login' end,
                 case when r.rolcreaterole then 'createrole' end, case when r.rolcreatedb then 'createdb' end,
                 case when r.rolreplication then 'replication' end,
                 case when r.rolbypassrls then 'bypassrls' end,
                 (select string_agg(array_to_string(s.setconfig, ' '), ' ') from pg_db_role_setting s
                  where s.setrole = r.oid))
from pg_roles r
where r.rolname ~ '^helix_(owner|engine|reader|submit|work|read|payloads|operate|admin|intake|delegate|operator)$';
