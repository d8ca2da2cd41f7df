-- Statements that open the transactions of connections which are shared by tenants.

-- name: assume_tenant
-- Sets the token's tenant for this transaction, and limits its statements: behind a pooler, settings of the
-- session would apply to the transactions of other clients.
select helix.assume_v1(%s::bytea), set_config('statement_timeout', %s::text, true);

-- name: limit_statement_time
-- The time that is left for the next statements of this transaction.
select set_config('statement_timeout', %s::text, true);

-- name: backend
-- The server process of this connection. A pooler reports another process id to its clients.
select pg_backend_pid();
