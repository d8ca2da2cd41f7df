-- Seals that services made; the functions are in engine/sql/89_seal.sql.

-- name: seals
select s.number, s.at, s.actor, s.digest, s.to_position, s.document
from helix.seals_v1(%s::bigint, %s::int, %s::bool) s;

-- name: add_seal
select helix.add_seal_v1(%s::bigint, %s::text, %s::bytea, %s::bigint, %s::text);
