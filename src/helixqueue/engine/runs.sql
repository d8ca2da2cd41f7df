-- Runs, as `helixqueue.engine.runs` calls them; the functions are in engine/sql/64_run.sql and 98_run_reads.sql.

-- name: start
-- Starts a run, or answers the one with this key.
select a.answer, a.run, a.name, a.state, a.appended, a.note
from helix.start_run_v1(%s::text, %s::text, %s::text, %s::text, %s::bytea, %s::bigint, %s::text, %s::text, %s::text,
                        %s::text, %s::int, %s::float8, %s::smallint, %s::text, %s::text) a;

-- name: append
-- Appends datums of a run.
select a.answer, a.run, a.name, a.state, a.appended, a.note
from helix.append_run_v1(%s::text, %s::bigint, %s::bigint, %s::text[], string_to_array(%s::text, chr(30)), %s::text[],
                         %s::text) a;

-- name: cancel
select a.answer, a.run, a.name, a.state, a.appended, a.note
from helix.cancel_run_v1(%s::text, %s::bigint, %s::text, %s::text) a;

-- name: retry
select a.answer, a.run, a.name, a.state, a.appended, a.note
from helix.retry_run_v1(%s::text, %s::bigint, %s::text, %s::text) a;

-- name: runs
-- Runs, newest first.
select r.run, r.name, r.tenant, r.queue, r.state, r.datums, r.appended, r.counts, r.failures, r.tries, r.egress,
       r.destination, r.blocked, r.problem, r.actor, r.key, encode(r.digest, 'hex'), r.created_at, r.deadline, r.ended_at, r.spec,
       r.received
from helix.read_runs_v1(%s::text, %s::text, %s::text, %s::timestamptz, %s::int, %s::boolean) r;

-- name: text
-- The spec of a run, for its workers.
select t.run, t.name, t.spec from helix.read_run_text_v1(%s::bigint) t;

-- name: outputs
-- A page of the published files of a run.
select o.batch_id, o.datum, o.path, o.uri, o.size, encode(o.sha256, 'hex'), o.manifest
from helix.read_run_outputs_v1(%s::bigint, %s::uuid, %s::text, %s::int) o;

-- name: roots
select r.uri, r.stored_at, r.is_input from helix.read_run_roots_v1(%s::text) r;
