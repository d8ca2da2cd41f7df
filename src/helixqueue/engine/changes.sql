-- The ledger as a stream of changes.

-- name: changes
-- The steps of the ledger after a cursor, in the order of their transactions. The first columns tell the
-- reader up to where all transactions have ended, how far this read went, and the epoch.
select c.reached, c.edge, c.now, c.epoch, c.xid, c.batch, c.version, c.public_id, c.queue, c.at,
       c.from_state, c.to_state, c.reason, c.actor, c.attempt, c.detail, c.late
from helix.read_changes_v1(%(xid)s::bigint, %(batch)s::bigint, %(version)s::int, %(queue)s::text,
                           %(span)s::bigint, %(limit)s::int) c;

-- name: changes_lost
-- Whether retention removed steps after a cursor.
select helix.read_changes_lost_v1(%(xid)s::bigint, %(batch)s::bigint, %(version)s::int,
                                  %(since)s::timestamptz);

-- name: mark
-- A point in both orders, of transactions and of time: every later transaction began to write after
-- now(). It takes a transaction id to know that. A snapshot is not enough: its xmax follows the last
-- transaction that *ended*, and running transactions beyond it may have begun long ago.
select pg_current_xact_id()::text::bigint, now();
