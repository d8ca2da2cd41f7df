-- The queries of `helixq doctor`. Every statement works for any login role; values that a role may not see
-- are null, and the finding reports that.

-- name: server
select current_setting('server_version') as version,
       current_setting('server_version_num')::integer as number,
       current_setting('server_encoding') as encoding,
       pg_is_in_recovery() as standby,
       current_setting('TimeZone') as timezone,
       pg_backend_pid() as pid;

-- name: durability
-- The three settings without which an acknowledged commit can be lost or torn by a crash.
select current_setting('fsync') as fsync,
       current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit;

-- name: standbys
-- Streaming standbys that may be promoted. Roles without pg_read_all_stats see the number of rows, not
-- whether they are synchronous, so the setting decides.
select current_setting('synchronous_standby_names') as names, count(*) as standbys
from pg_stat_replication;

-- name: role
-- Roles that row-level security does not restrict, that could disable it, or that can read tables directly.
select session_user as name, r.rolsuper as superuser, r.rolbypassrls as bypassrls,
       (select o.rolname
        from unnest(array['helix_owner', 'helix_engine', 'helix_reader']::name[]) as o (rolname)
        where exists (select from pg_roles p where p.rolname = o.rolname
                      and not r.rolsuper
                      -- Since PostgreSQL 16 a member that may only grant the role does not act as it.
                      and case when current_setting('server_version_num')::integer < 160000
                               then pg_has_role(r.oid, p.oid, 'member')
                               else pg_has_role(r.oid, p.oid, 'usage') or pg_has_role(r.oid, p.oid, 'set') end)
        limit 1) as owner_by,
       (select pg_has_role(r.oid, d.datdba, 'usage') from pg_database d
        where d.datname = current_database()) as owns_database
from pg_roles r where r.rolname = session_user;

-- name: grants
select array(select p.rolname::text
             from unnest(array['helix_submit', 'helix_work', 'helix_read', 'helix_payloads', 'helix_operate',
                               'helix_admin', 'helix_run', 'helix_intake', 'helix_webhook', 'helix_delegate',
                               'helix_operator']) with ordinality
               as known (name, place)
             join pg_roles p on p.rolname = known.name and pg_has_role(session_user, p.oid, 'usage')
             order by known.place) as roles;

-- name: bindings
-- A role sees its own bindings only.
select b.tenant, b.by_setting from helix.read_bindings_v1() b;

-- name: duties
select * from helix.read_duties_v1();

-- name: connections
select current_setting('max_connections')::integer as most,
       current_setting('superuser_reserved_connections')::integer as reserved,
       (select count(*) from pg_stat_activity where backend_type = 'client backend'
        or backend_type is null and usename is not null) as used;

-- name: autovacuum
-- Queue tables update their rows often; without vacuum every claim reads the dead rows too.
select current_setting('autovacuum') as autovacuum, current_setting('track_counts') as track_counts,
       (select string_agg(c.relname, ', ' order by c.relname) from pg_class c
        where c.relnamespace = to_regnamespace('helix')
          and c.reloptions && array['autovacuum_enabled=false', 'autovacuum_enabled=off']) as disabled;

-- name: horizon
-- The oldest snapshot that keeps dead rows from being removed, and its holder.
select pg_has_role(session_user, 'pg_read_all_stats', 'usage') as visible,
       held.age, held.holder, held.seconds
from (values (1)) as always (row)
left join lateral (
  select * from (
    select age(a.backend_xmin) as age, format('process %s of role %s', a.pid, a.usename) as holder,
           extract(epoch from clock_timestamp() - a.xact_start)::bigint as seconds
    from pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid()
    union all
    select age(p.transaction), format('prepared transaction %s', p.gid),
           extract(epoch from clock_timestamp() - p.prepared)::bigint
    from pg_prepared_xacts p
    union all
    select age(s.xmin), format('replication slot %s', s.slot_name), null
    from pg_replication_slots s where s.xmin is not null
  ) every order by age desc limit 1) held on true;

-- name: prepared
select count(*) as prepared,
       extract(epoch from clock_timestamp() - min(prepared))::bigint as seconds
from pg_prepared_xacts where database = current_database();

-- name: unlogged
-- An unlogged table is emptied by crash recovery.
select string_agg(relname, ', ' order by relname) as tables
from pg_class
where relnamespace = to_regnamespace('helix') and relpersistence = 'u' and relkind in ('r', 'S');

-- name: clock
select extract(epoch from clock_timestamp())::double precision as now;

-- name: archiving
select current_setting('wal_level') as wal_level, current_setting('archive_mode') as archive_mode,
       a.failed_count, current_setting('archive_mode') <> 'off'
         and coalesce(a.last_failed_time > coalesce(a.last_archived_time, '-infinity'), false) as fails
from pg_stat_archiver a;

-- name: listens
select current_setting('listen_addresses') as addresses;

-- name: may_read_rules
select has_function_privilege('pg_hba_file_rules()', 'execute') as allowed;

-- name: trust_rules
-- Only for roles that may read the rules.
select string_agg(format('line %s: %s %s', r.line_number, r.type, r.address), ', ') as rules
from pg_hba_file_rules() r where starts_with(r.type, 'host') and r.auth_method = 'trust';

-- name: dead_rows
select string_agg(format('%s: %s dead, %s live', t.relname, t.n_dead_tup, t.n_live_tup), ', ') as tables
from pg_stat_user_tables t
where t.schemaname = 'helix' and t.n_dead_tup > 100000 and t.n_dead_tup > t.n_live_tup / 2;

-- name: long_transaction
-- The oldest transaction of a session; those of other roles are shown to members of pg_read_all_stats.
select t.holder, t.seconds, t.state
from (values (1)) as always (row)
left join lateral (
  select format('process %s of role %s', a.pid, a.usename) as holder, a.state,
         extract(epoch from clock_timestamp() - a.xact_start)::bigint as seconds
  from pg_stat_activity a
  where a.xact_start is not null and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
  order by a.xact_start limit 1) t on true;

-- name: destinations
-- Where files of completed batches wait for their publication, also those that no publisher has looked at.
select m.destination, count(*) as manifests, string_agg(distinct m.queue, ', ') as queues
from (select g.* from helix.read_manifests_v1(null, p_state => 'granted', p_limit => 1000) g
      union all
      select r.* from helix.read_manifests_v1(null, p_state => 'registered', p_limit => 1000) r) m
where m.state = 'granted' group by m.destination order by m.destination;
