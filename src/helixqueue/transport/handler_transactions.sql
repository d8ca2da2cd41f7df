-- Statements of a worker inside the transactions of its handlers.

-- name: abort
-- After a refused settlement the transaction must not commit, even if the handler catches the error: a
-- failing statement ensures that. (The client ignores this error and raises LeaseLost.)
do $$ begin raise exception using errcode = 'QH004', message = 'the lease was lost'; end $$;

-- name: settle_in_caller_transaction
-- From here on the caller's transaction holds the row of the lease, so the batch cannot be reassigned. If the
-- worker freezes now, the server ends the transaction when it has been idle for the length of the lease.
-- One statement, to save a round trip. A rollback to a savepoint would undo the failure of
-- `abort`, and the rest of the transaction could commit, so a savepoint is refused. No driver knows every
-- savepoint, but the server does: pg_export_snapshot fails inside one (SQLSTATE 25001). It also makes
-- PREPARE TRANSACTION fail: a prepared transaction would hold the row of the lease without a time limit.
with bound as materialized (
  select pg_catalog.set_config('idle_in_transaction_session_timeout', %s::text, true), pg_catalog.pg_export_snapshot())
select s.batch, s.answer, s.owner, s.state::text, s.late, s.mismatch
from bound,
     helix.settle_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
                     %s::text[], %s::text[], %s::text[], %s::bool[], %s::real[]) s;
