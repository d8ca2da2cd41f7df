-- What a worker says inside the transactions of its handlers.

-- name: doom
-- After a refused settle the transaction must not be committed, also by a program that catches the
-- error: a statement that fails sees to that. (The client runs it, ignores its error and raises
-- LeaseLost.)
do $$ begin raise exception using errcode = 'QH004', message = 'the lease was lost'; end $$;

-- name: settle
-- From the settle on the transaction holds the lease's row, and nobody can take the batch back while
-- it does. A worker that is frozen just then must not hold it for ever, so the server ends a
-- transaction that idles here longer than the lease. In one statement, to save a round trip.
with bound as materialized (
  select set_config('idle_in_transaction_session_timeout', %s::text, true))
select s.batch, s.answer, s.owner, s.state::text, s.late, s.mismatch
from bound,
     helix.settle_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
                     %s::text[], %s::text[], %s::text[], %s::bool[], %s::real[]) s;

-- name: settle_of_caller
-- The same in a transaction that the caller began. Inside a savepoint the failure of `doom` could be
-- undone and the rest of the transaction committed, so a savepoint is refused. No driver knows of every
-- savepoint, but the server does: pg_export_snapshot fails inside one (SQLSTATE 25001). For the same
-- reason such a transaction cannot be prepared (two-phase commit), which would hold the lease's row
-- without any time limit.
with bound as materialized (
  select set_config('idle_in_transaction_session_timeout', %s::text, true), pg_export_snapshot())
select s.batch, s.answer, s.owner, s.state::text, s.late, s.mismatch
from bound,
     helix.settle_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
                     %s::text[], %s::text[], %s::text[], %s::bool[], %s::real[]) s;
