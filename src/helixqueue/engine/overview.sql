-- Figures over time and lists for people, as `helixqueue.engine.overview` calls them; the functions are in
-- sql/98_overview_reads.sql.

-- name: rollup
-- Rows of the rollup of one queue, or of all; one row without figures if there is none.
select r.kept_at, r.backlog, r.at, r.submitted, r.repeated, r.completed, r.failed, r.cancelled, r.lost, r.refused,
       r.pending, pg_catalog.to_json(r.waits)::text, pg_catalog.to_json(r.runs)::text
from helix.read_rollup_v1(%(tenant)s::text, %(queue)s::text, %(seconds)s::int, %(since)s::timestamptz,
                          %(until)s::timestamptz) r;

-- name: worker_days
-- What some workers ended today.
select d.worker, d.completed, d.failed
from helix.read_worker_days_v1(%(tenant)s::text, %(workers)s::text[]) d;

-- name: overview
-- One row: the state of a tenant.
select o.now, o.kept_at, o.queues::text, o.hour::text, o.today::text, o.known_queues, o.workers::text, o.in_doubt,
       o.oldest_doubt_seconds, o.letters, o.findings, o.reconciled_at
from helix.read_overview_v1(%(tenant)s::text, %(limit)s::int) o;

-- name: refusals
-- A page of refused writes; the first three columns are where the scan stopped.
select r.edge_at, r.edge_batch, r.edge_number, r.first_at, r.batch, r.number, r.last_at, r.operation, r.worker,
       r.owner, r.why, r.times, r.public_id, r.queue, r.identity, r.state, r.finished_at
from helix.read_refusals_v1(%(tenant)s::text, %(queue)s::text, %(at)s::timestamptz, %(batch)s::bigint,
                            %(number)s::bigint, %(look)s::int, %(limit)s::int) r;

-- name: activity
-- A page of what people did; the first two columns are where the scan stopped.
select a.edge_at, a.edge_id, a.at, a.id, a.actor, a.action, a.subject, a.queue, a.batches, a.public_id, a.detail,
       a.key
from helix.read_activity_v1(%(tenant)s::text, %(at)s::timestamptz, %(id)s::bigint, %(look)s::int,
                            %(limit)s::int) a;

-- name: search
-- What a text may mean.
select s.kind, s.name, s.id, s.queue, s.state
from helix.read_search_v1(%(tenant)s::text, %(text)s::text, %(from)s::bytea, %(to)s::bytea, %(letter)s::bigint,
                          %(limit)s::int) s;

-- name: proof
-- The ledger entries of a batch; no row: unknown.
select p.version, p.hash, p.sound from helix.read_proof_v1(%(id)s::uuid) p;

-- name: waiting
-- The batches of a queue that wait longest.
select w.public_id, w.identity, w.since, w.attempt, w.cause, w.due, w.requires::text, w.alive, w.fitting, w.missing, w.detail
from helix.read_waiting_v1(%(tenant)s::text, %(queue)s::text, %(limit)s::int) w;
