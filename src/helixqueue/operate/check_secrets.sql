-- Invariants that need the keys of fingerprints, which only the owner of the database may read. Each is a
-- query for violations that the connection runs itself. Notes as in engine/sql/85_check.sql.

-- name: payload_edited
-- promise: G7
-- means: The payload is not what was submitted: its fingerprint does not match.
-- action: Cancel the batch and submit a new revision with the right payload.
select b.id as batch, b.queue from helix.batch b join helix.secret s on s.id = b.secret
where b.payload is not null and b.fingerprint <> helix.fingerprint(s, b.payload::text);

-- name: fingerprint_without_secret
-- promise: G7
-- means: The key of this fingerprint is missing, so a repeat can no longer be compared.
-- action: Restore helix.secret from a backup.
select b.id as batch, b.secret from helix.batch b
where not exists (select from helix.secret s where s.id = b.secret);

-- name: fence_request_edited
-- promise: G7
-- means: The stored request is not the one that was made first: its fingerprint does not match.
-- action: Restore it from a backup; until then refused requests show a wrong diff.
select f.life, f.tenant, f.name from helix.fence f join helix.secret s on s.id = f.secret
where f.request is not null and f.fingerprint <> helix.fingerprint(s, f.request::text);
