-- User ledgers and feeds.

-- name: declare_ledger
-- Creates a ledger, or adds kinds and arrows to it.
select tenant, name, machine::text, initial, is_strict, gaps, bound, ignored, created_at, created_by
from helix.declare_ledger_v1(%s::text, %s::text, %s::text, %s::jsonb, %s::text[], %s::boolean,
                             %s::boolean, %s::text[], %s::text);

-- name: append
-- Any number of events, one answer each.
select place, decision, key, version, state, seq, rules, payload
from helix.append_v1(%s::text, %s::text, %s::text, %s::text[], %s::bigint[], %s::text[],
                     string_to_array(%s::text, chr(30)), %s::text[]);

-- name: append_one
-- One event.
select place, decision, key, version, state, seq, rules, payload
from helix.append_one_v1(%s::text, %s::text, %s::text, %s::text, %s::bigint, %s::text, %s::text, %s::text);

-- name: ledgers
-- Ledgers, by tenant and name.
select tenant, name, machine::text, initial, is_strict, gaps, bound, ignored, created_at, created_by
from helix.read_ledgers_v1(%s::text, %s::text, %s::text, %s::text, %s::int);

-- name: entity
-- The state of one entity.
select entity, state, seq, events, encode(hash, 'hex'), changed_at
from helix.read_entity_v1(%s::text, %s::text, %s::text);

-- name: events
-- Events in the order of (entity, version), with what their hashes cover.
select entity, seq, kind, version, payload, node, actor, at, violations, key, fingerprint, hash, position,
       feed_position
from helix.read_ledger_events_v1(%s::text, %s::text, %s::text, %s::text, %s::int, %s::int);

-- name: head
-- The position of a ledger, and digests of its entities.
select reached, bucket, entities, events, digest
from helix.read_ledger_head_v1(%s::text, %s::text, %s::bigint);

-- name: declare_feed
-- Creates a feed.
select helix.declare_feed_v1(%s::text, %s::text, %s::text, %s::text, %s::text, %s::boolean);

-- name: take_feed
-- The next events, and the position moved behind them, in this transaction.
select position, number, version, key, entity, seq, kind, payload, node, actor, at, violations
from helix.take_feed_v1(%s::text, %s::text, %s::int);

-- name: read_feed
-- The next events, and the position before the first.
select position, number, version, key, entity, seq, kind, payload, node, actor, at, violations, from_position,
       from_number, from_version
from helix.read_feed_v1(%s::text, %s::text, %s::int);

-- name: advance_feed
-- Moves the position behind events that were read.
select helix.advance_feed_v1(%s::text, %s::text, %s::bigint, %s::bigint, %s::int, %s::bigint, %s::bigint,
                             %s::int, %s::int, %s::uuid);

-- name: hold_feed
-- Holds a feed for one process.
select helix.hold_feed_v1(%s::text, %s::text, %s::text, %s::real);

-- name: set_feed
-- Pauses, resumes or rewinds a feed.
select helix.set_feed_v1(%s::text, %s::text, %s::text, %s::text, %s::boolean, %s::boolean,
                         %s::timestamptz);

-- name: feeds
-- Feeds, by tenant and name, and how far they are behind.
select tenant, name, ledger, queue, paused, delivered, lag, oldest_at, moved_at, holder
from helix.read_feeds_v1(%s::text, %s::text, %s::boolean, %s::text, %s::text, %s::int);

-- name: hint_key
-- The epoch, and the key of this ledger's cached hints.
select epoch, key from helix.ledger_hint_key_v1(%s::text, %s::text);
