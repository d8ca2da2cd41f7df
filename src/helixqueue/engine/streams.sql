-- Consumer groups of streams, as `helixqueue.engine.streams` calls them.

-- name: knows_group
-- Whether an intake has read this group before.
select helix.knows_group_v1(%s::text, %s::text, %s::text);

-- name: count
-- Adds to the counters of a group; null: nothing to add.
select helix.count_stream_v1(%s::text, %s::text, %s::text, %s::bigint, %s::bigint, %s::bigint);

-- name: look
-- Stores what a look at Redis found.
select helix.look_stream_v1(%s::text, %s::text, %s::text, %s::float8, %s::jsonb, %s::boolean);

-- name: groups
-- Groups of every tenant whose last look is that long ago.
select g.tenant, g.stream, g.group_name from helix.stream_groups_v1(%s::float8, true) g;
