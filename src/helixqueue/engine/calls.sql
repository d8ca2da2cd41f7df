-- The engine's functions as the client calls them. Columns are named, never *, so that a function
-- may grow; enums are cast to text because a driver knows no type of ours in binary. Arrays come as
-- literals (arrays.py).

-- name: submit
-- One call, any number of submissions, one answer each. The public id is derived from the key: on a
-- caller's connection it may come as whatever they made of type uuid. Payloads come as one text
-- (arrays.json_texts).
select place, decision, key, fingerprint, state::text, payload, note, differs
from helix.submit_v1(%s::text, %s::text, %s::text, %s::text, %s::text[],
                     string_to_array(%s::text, chr(30)), %s::text[], %s::text[], %s::smallint[],
                     %s::timestamptz[], %s::timestamptz[], %s::text[], %s::text[]);

-- name: note_refused
-- Identities that never became a submission, kept with their raw bytes.
select helix.note_refused_v1(%s::text, %s::text, %s::text, %s::bytea[], %s::text[]);

-- name: claim
-- Settle, reap, claim and start in one commit.
select batch, queue, attempt, key, identity, revision, payload
from helix.claim_v1(%s::text, %s::uuid, %s::text[], %s::int, %s::jsonb, %s::boolean, %s::real,
                    %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::int[], %s::bigint[],
                    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bool[],
                    %s::real[]);

-- name: hello
-- A worker says that it is there.
select helix.hello_v1(%s::text, %s::jsonb);

-- name: wait
-- A worker says that it waits for work; the channels on which it will be told.
select helix.wait_v1(%s::text, %s::text[], %s::real);

-- name: start
-- ASSIGNED > RUNNING.
select batch, answer, owner, state::text, late, mismatch
from helix.start_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: renew
-- A later deadline; never waits.
select batch, answer, owner, state::text, late, mismatch
from helix.renew_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: release
-- Given back, at no cost of an attempt.
select batch, answer, owner, state::text, late, mismatch
from helix.release_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text);

-- name: settle
-- The end of attempts: the last statement of a settling transaction.
select batch, answer, owner, state::text, late, mismatch
from helix.settle_v1(%s::text, %s::bigint[], %s::int[], %s::bigint[], %s::bigint[], %s::text[],
                     %s::text[], %s::text[], %s::text[], %s::bool[], %s::real[]);

-- name: cancel
-- Also of running work: the worker's token dies.
select public_id, answer, state::text, note from helix.cancel_v1(%s::uuid[], %s::text, %s::text);

-- name: retry
-- FAILED > PENDING.
select public_id, answer, state::text, note from helix.retry_v1(%s::uuid[], %s::text, %s::text);

-- name: take_back
-- An operator's release: ASSIGNED, RUNNING > PENDING.
select public_id, answer, state::text, note from helix.release_by_id_v1(%s::uuid[], %s::text, %s::text);

-- name: erase
-- Payload and result go, fingerprint and ledger stay.
select public_id, answer, state::text, note from helix.erase_v1(%s::uuid[], %s::text, %s::text);

-- name: reap
-- Leases past their deadline, taken back now.
select helix.reap_v1(%s::text, %s::int);

-- name: promote
-- Waiting batches whose cause is gone, made claimable now.
select helix.promote_v1(%s::int);

-- name: retire
-- Finished batches beyond their retention; their keys stay.
select helix.retire_v1(%s::text, %s::text, %s::helix.state, %s::timestamptz, %s::int);

-- name: recover
-- A new epoch after a restore.
select epoch, ended from helix.recover_v1(%s::text, %s::text);

-- name: rotate_secret
-- A new fingerprint key; old fingerprints keep theirs.
select helix.rotate_secret_v1();

-- name: set_queue
-- Declares a queue or changes what is not null.
select q.tenant, q.name, q.profile, q.lease_seconds, q.max_attempts, q.backoff_seconds,
       q.backoff_max_seconds, q.key_limit, q.unknown, q.paused, q.closed,
       helix.queue_requires_v1(q.tenant, q.name)::text, q.payload_schema::text,
       q.result_schema::text, q.keep_completed_seconds, q.keep_failed_seconds,
       q.keep_cancelled_seconds, q.keep_decisions_seconds
from helix.set_queue_v1(%s::text, %s::text, %s::text, %s::text, %s::real, %s::smallint, %s::real,
                        %s::real, %s::int, %s::text, %s::boolean, %s::boolean, %s::jsonb,
                        %s::jsonb, %s::jsonb, %s::float8, %s::float8, %s::float8, %s::float8,
                        %s::text) q;

-- name: queue
-- A queue's settings, as its tenant sees them.
select q.tenant, q.name, q.profile, q.lease_seconds, q.max_attempts, q.backoff_seconds,
       q.backoff_max_seconds, q.key_limit, q.unknown, q.paused, q.closed, q.requires::text,
       q.payload_schema::text, q.result_schema::text, q.keep_completed_seconds, q.keep_failed_seconds,
       q.keep_cancelled_seconds, q.keep_decisions_seconds
from helix.read_queue_v1(%s::text, %s::text) q;
