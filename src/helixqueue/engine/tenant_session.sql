-- What the HTTP service asks besides calls and reads: on connections that serve many tenants by
-- turns, each transaction begins with `assume`.

-- name: assume
-- Names the token's tenant for this transaction, and bounds its statements: through a pooler a
-- session's settings are somebody else's.
select helix.assume_v1(%s::bytea), set_config('statement_timeout', %s::text, true);

-- name: bound
-- What is left of the time for several statements of one transaction.
select set_config('statement_timeout', %s::text, true);

-- name: workers
-- A page of a tenant's workers by name, with the number of leases that each holds. The first column is the
-- edge.
select w.edge, w.name, w.role, w.free::text, w.first_seen, w.last_seen, w.leases
from helix.read_tenant_workers_v1(%(tenant)s::text, %(after)s::text, %(since)s::timestamptz,
                                  %(look)s::int, %(limit)s::int) w;

-- name: names
-- What people call the leases that a worker names: public id, queue, run, and the number of the attempt.
select n.batch, n.key, n.queue, n.run, n.attempt
from helix.read_lease_names_v1(%s::bigint[], %s::int[], %s::bigint[]) n;

-- name: changes
-- The steps of the ledger behind a cursor, in the order of their transactions. The first columns tell the
-- reader how far it may go, and how far this look went.
select c.reached, c.edge, c.now, c.xid, c.batch, c.version, c.public_id, c.queue, c.at, c.from_state,
       c.to_state, c.reason, c.actor, c.attempt, c.detail, c.late
from helix.read_changes_v1(%(xid)s::bigint, %(batch)s::bigint, %(version)s::int, %(queue)s::text,
                           %(span)s::bigint, %(limit)s::int) c;

-- name: gone
-- Whether retention took steps away behind a cursor.
select helix.read_changes_lost_v1(%(xid)s::bigint, %(batch)s::bigint, %(version)s::int,
                                  %(since)s::timestamptz);

-- name: mark
-- A point in both orders, of transactions and of time: every later transaction began to write after
-- now(). It takes a transaction's number to know that. A snapshot does not tell: its xmax is behind the
-- last one that *ended*, and others beyond may have been at work for long.
select pg_current_xact_id()::text::bigint, now();

-- name: ready
-- Whether this login is bound as a service must be. The schema's revision is compared elsewhere.
select helix.read_can_serve_v1();

-- name: backend
-- The process behind this connection. A pooler tells clients another number than the server does.
select pg_backend_pid();

-- name: revision
-- The revision of the schema, and how far back it reaches; any role may ask.
select r.version_num, o.oldest from helix_migration.revision r, helix_migration.reach o;
