-- Refused identities, and the identities of a queue.

-- name: refused
-- A page of refused identities, newest first.
select r.id, r.tenant, r.at, r.actor, r.raw_hex, r.why, r.times, r.last_at
from helix.read_refused_v1(%s::text, %s::text, %s::bigint, %s::int) r;

-- name: identities
-- A page of identities in the order of their arrival.
select i.created_at, i.id, helix.public_id(i.key), i.identity, i.raw
from helix.read_identities_v1(%s::text, %s::text, %s::timestamptz, %s::bigint, %s::int) i;
