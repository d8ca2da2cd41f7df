-- Output files, as `helixqueue.engine.outputs` calls them; the functions are in engine/sql/62_output.sql and
-- engine/sql/63_publish.sql.

-- name: open
-- Opens the manifest of an attempt.
select a.answer, a.owner, a.state::text, a.manifest, a.destination, a.note
from helix.open_outputs_v1(%s::text, %s::bigint, %s::int, %s::bigint, %s::bigint, %s::bigint) a;

-- name: register
-- Registers a page of staged files.
select a.answer, a.owner, a.state::text, a.manifest, a.destination, a.note
from helix.register_outputs_v1(%s::text, %s::bigint, %s::int, %s::bigint, %s::bigint, %s::int, %s::text[],
                               %s::bigint[], %s::bytea[], %s::int) a;

-- name: take
-- Takes tasks of publishers.
select t.manifest, t.batch_id, t.tenant, t.queue, t.task, t.state, t.destination, t.files, t.sealed
from helix.take_outputs_v1(%s::int, %s::uuid[], %s::boolean, %s::text[]) t;

-- name: files
-- A page of the files of a manifest.
select f.path, f.name, f.number, f.size, f.sha256
from helix.output_files_v1(%s::uuid, %s::text, %s::int, %s::boolean) f;

-- name: finish
-- Ends a task; returns the state of the manifest.
select helix.end_outputs_v1(%s::uuid, %s::text, %s::int, %s::text, %s::boolean);

-- name: known
-- What of a store the database knows.
select k.manifest, k.uri from helix.read_known_outputs_v1(%s::uuid[], %s::text[]) k;

-- name: manifests
select m.manifest, m.batch_id, m.tenant, m.queue, m.state, m.worker, m.attempt, m.destination, m.folder, m.files,
       m.bytes, m.opened_at, m.granted_at, m.sealed_at, m.problem
from helix.read_manifests_v1(%s::uuid[], %s::text, %s::text, %s::text, %s::timestamptz, %s::int) m;

-- name: outputs
select o.path, o.uri, o.size, o.sha256 from helix.read_outputs_v1(%s::uuid, %s::text, %s::int) o;

-- name: set_root
select helix.set_output_root_v1(%s::text, %s::text, %s::text, %s::text, %s::boolean, %s::text, %s::boolean);
