-- The ledger as a stream of changes.

-- name: changes
-- The steps of the ledger after a cursor, in the order of their transactions. The first columns tell the
-- reader up to where all transactions have ended, and how far this read went.
select c.reached, c.edge, c.now, c.position, c.batch, c.version, c.public_id, c.queue, c.at,
       c.from_state, c.to_state, c.reason, c.actor, c.attempt, c.detail, c.late
from helix.read_changes_v1(%(position)s::bigint, %(batch)s::bigint, %(version)s::int, %(queue)s::text,
                           %(span)s::bigint, %(limit)s::int) c;

-- name: changes_lost
-- Whether retention removed steps after a cursor.
select helix.read_changes_lost_v1(%(position)s::bigint, %(batch)s::bigint, %(version)s::int,
                                  %(since)s::timestamptz);

-- name: mark
-- A position after which every transaction begins to write after this time.
select m.position, m.at from helix.change_mark_v1() m;
