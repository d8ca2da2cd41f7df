-- Invariants that need the keys of fingerprints, which only the owner of the database may read. Each is a
-- query for violations that the connection runs itself. Notes as in engine/sql/85_check.sql.

-- name: payload_edited
-- promise: G7
-- means: The payload is not what was submitted: its fingerprint does not match.
-- action: Cancel the batch and submit a new revision with the right payload.
select b.id as batch, b.queue from helix.batch b join helix.secret s on s.id = b.secret
where b.payload is not null and b.fingerprint <> helix.fingerprint(s, b.payload::text);

-- name: limit_key_edited
-- promise: G2
-- means: The limit key is not what was submitted, or was removed, and no decision records its erasure: the batch is
--        counted under another key or none.
-- action: Cancel the batch and submit a new revision with the right limit key.
select b.id as batch, b.queue from helix.batch b join helix.secret s on s.id = b.secret
where (b.limit_key is not null or b.limit_print is not null)
  and case when b.limit_key is not null then b.limit_print is distinct from helix.fingerprint(s, b.limit_key)
           else b.retired_at is null
                and not exists (select from helix.decision d where d.batch = b.id and d.kind = 'identity_erased') end;

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
