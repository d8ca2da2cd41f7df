-- The engine's functions as clients call them. Columns are named, never *, so that a function can get
-- another column; enums are cast to text because drivers cannot read our types in binary. Arrays are
-- passed as literals (arrays.py).

-- name: submit
-- Any number of submissions, one result each. The public id is derived from the key, because a caller's
-- connection may have its own adapter for uuid. Payloads are passed as one text (arrays.json_texts).
select place, decision, key, fingerprint, state::text, payload, note, differs
from helix.submit_v1(%s::text, %s::text, %s::text, %s::text, %s::text[],
                     pg_catalog.string_to_array(%s::text, pg_catalog.chr(30)), %s::text[], %s::text[],
                     %s::smallint[], %s::timestamptz[], %s::timestamptz[], %s::text[], %s::text[]);

-- name: submit_from
-- The same for submissions with sources.
select place, decision, key, fingerprint, state::text, payload, note, differs
from helix.submit_from_v1(%s::text, %s::text, %s::text, %s::text, %s::text[], %s::text[], %s::text[],
                          %s::text[], string_to_array(%s::text, chr(30)), %s::text[], %s::text[],
                          %s::smallint[], %s::timestamptz[], %s::timestamptz[], %s::text[],
                          %s::text[]);

-- name: note_refused
-- Records identities that never became a submission, with their raw bytes.
select helix.note_refused_v1(%s::text, %s::text, %s::text, %s::bytea[], %s::text[]);

-- name: claim
-- Settle, reap, claim and start in one commit.
select batch, queue, attempt, key, identity, revision, payload, run
from helix.claim_v1(%s::text, %s::uuid, %s::text[], %s::int, %s::jsonb, %s::boolean, %s::real,
                    %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::bigint[],
                    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bool[],
                    %s::real[], %s::text);

-- name: hello
-- Reports that a worker is alive.
select helix.hello_v1(%s::text, %s::jsonb, %s::text, %s::boolean);

-- name: wait
-- Registers a waiting worker; returns the channels of its wake-ups.
select helix.wait_v1(%s::text, %s::text[], %s::real);

-- name: start
-- ASSIGNED > RUNNING.
select batch, answer, owner, state::text, late, mismatch
from helix.start_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: renew
-- Extends deadlines; never waits for a lock.
select batch, answer, owner, state::text, late, mismatch
from helix.renew_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: release
-- Returns leases to the queue; the attempt is not counted.
select batch, answer, owner, state::text, late, mismatch
from helix.release_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text);

-- name: settle
-- Ends attempts; the last statement of a settling transaction.
select batch, answer, owner, state::text, late, mismatch
from helix.settle_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
                     %s::text[], %s::text[], %s::text[], %s::bool[], %s::real[]);

-- name: cancel
-- Also cancels running work: the worker's token becomes invalid.
select public_id, answer, state::text, note, queue, identity, revision
from helix.cancel_v1(%s::uuid[], %s::text, %s::text, %s::boolean);

-- name: retry
-- FAILED > PENDING.
select public_id, answer, state::text, note, queue, identity, revision
from helix.retry_v1(%s::uuid[], %s::text, %s::text, %s::boolean);

-- name: release_by_id
-- Release by an operator: ASSIGNED, RUNNING > PENDING.
select public_id, answer, state::text, note, queue, identity, revision
from helix.release_by_id_v1(%s::uuid[], %s::text, %s::text);

-- name: erase
-- Deletes payload and result; fingerprint and ledger stay.
select public_id, answer, state::text, note, queue, identity, revision
from helix.erase_v1(%s::uuid[], %s::text, %s::text, %s::boolean);

-- name: reap
-- Ends leases that are past their deadline.
select helix.reap_v1(%s::text, %s::int);

-- name: promote
-- Makes waiting batches claimable whose cause no longer holds.
select helix.promote_v1(%s::int);

-- name: retire
-- Deletes finished batches that are older than `before`; their keys stay.
select helix.retire_v1(%s::text, %s::text, %s::helix.state, %s::timestamptz, %s::int);

-- name: recover
-- Begins a new epoch after a restore.
select epoch, ended, doubted from helix.recover_v1(%s::text, %s::text);

-- name: rotate_secret
-- Creates a new fingerprint key; older fingerprints keep theirs.
select helix.rotate_secret_v1();

-- name: set_queue
-- Declares a queue, or changes the settings that are named.
select (pg_catalog.to_jsonb(q) operator(pg_catalog.||) pg_catalog.jsonb_build_object(
          'requires', helix.queue_requires_v1(q.tenant, q.name)))::text
from helix.set_queue_v1(%(tenant)s::text, %(queue)s::text, %(actor)s::text,
                        p_reason => %(reason)s::text/* settings */) q;

-- name: queue
-- The settings of one queue.
select pg_catalog.to_jsonb(q)::text from helix.read_queue_v1(%s::text, %s::text) q;

-- name: delete_queue
-- Deletes a queue that never had a batch.
select helix.delete_queue_v1(%s::text, %s::text, %s::text, %s::text);
