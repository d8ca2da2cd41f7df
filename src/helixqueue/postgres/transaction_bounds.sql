-- Statements that limit a transaction of the product, and that end those past their limit.

-- name: limit_transaction
-- Settings and announcement last until the transaction ends, also behind a pooler. PostgreSQL before 17 has no
-- transaction_timeout: there the placeholder takes the value. tcp_user_timeout has no effect on a Unix socket.
-- The announcement is a shared advisory lock: it needs no privilege, every login can read it in pg_locks, and its
-- second number is the limit. If an application holds the lock exclusively, the transaction is not announced.
select pg_catalog.set_config('idle_in_transaction_session_timeout', %s::text, true),
       pg_catalog.set_config('tcp_user_timeout', %s::text, true),
       pg_catalog.set_config(
         case when pg_catalog.current_setting('transaction_timeout', true) is null
              then 'helix.transaction_timeout' else 'transaction_timeout' end,
         coalesce(%s::text, pg_catalog.current_setting('transaction_timeout', true), '0'), true),
       pg_catalog.set_config('lock_timeout',
                             coalesce(%s::text, pg_catalog.current_setting('lock_timeout')), true),
       pg_catalog.pg_try_advisory_xact_lock_shared(1214606456, %s::integer);

-- name: end_overdue
-- Ends the announced transactions of this login in this database for whose client the server has waited longer than
-- announced, and returns their processes. A server before 17 does not do that itself while a pipeline has no end,
-- and no server does while it writes to a client on a Unix socket. `state_change` is the last statement's begin or end.
with overdue as materialized (
  select a.pid
  from pg_catalog.pg_locks l
  join pg_catalog.pg_stat_activity a on a.pid = l.pid and a.datid = l.database
  where l.locktype = 'advisory' and l.classid = 1214606456 and l.objsubid = 2 and l.granted
    and a.datname = pg_catalog.current_database() and a.usename = session_user
    and a.pid <> pg_catalog.pg_backend_pid() and a.wait_event_type = 'Client'
    and a.state_change < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => l.objid::bigint / 1000.0)
)
select o.pid from overdue o where pg_catalog.pg_terminate_backend(o.pid);
