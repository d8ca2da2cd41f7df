-- Reads of batches, queues and workers. Payloads and results are returned on request only.
-- The functions are in sql/92_reads.sql to 94_lists.sql, which explain how lists are paged.

-- name: batches
-- A page of batches. The first two columns are the end of the scan, the next two the position of a row. A
-- scan that ended before its last row returns at least one row. A detail has up to 64 KiB; lists show its beginning.
select b.edge_at, b.edge_id, b.at, b.id, b.key, b.tenant, b.queue, b.identity, b.raw, b.revision, b.state,
       b.attempt, b.priority, b.created_at, b.worker, b.deadline, b.cause, b.due, b.finished_at,
       b.finished_by, b.failure, pg_catalog.left(b.detail, 8000), b.last_worker, b.refused
from helix.read_batches_v1(
  %(scan)s::text, %(tenant)s::text, %(queue)s::text, %(state)s::text, %(worker)s::text,
  %(failure)s::text, %(identity)s::text[], %(run)s::bigint, %(since)s::timestamptz,
  %(until)s::timestamptz, %(at)s::timestamptz, %(id)s::bigint, %(look)s::int, %(limit)s::int) b;

-- name: batch_detail
-- Everything recorded about one batch, also after retention.
select b.public_id, b.key, b.fingerprint, b.tenant, b.queue, b.identity, b.raw, b.profile, b.revision,
       b.priority, b.run_at, b.expires_at, b.limit_key, b.actor, b.created_at, b.state, b.place, b.version,
       b.attempt, b.worker, b.deadline, b.epoch, b.number, b.cause, b.due, b.finished_at, b.finished_by,
       b.failure, b.detail, b.retired_at, b.erased, b.payload, b.result, b.events::text, b.refusals::text,
       b.decisions::text, b.differences::text, b.sources::text
from helix.read_batch_v1(%(ids)s::uuid[], '{}'::bytea[], %(payload)s::boolean, %(limit)s::int) b;

-- name: outcomes
-- States and results of batches; an unknown id returns no row.
select o.public_id, o.state, o.attempt, o.finished_at, o.finished_by, o.failure, o.detail, o.result,
       o.late, o.queue
from helix.read_outcomes_v1(%(ids)s::uuid[], %(results)s::boolean) o;

-- name: contents
-- Batches with payload and result; an unknown or retired id returns no row.
select c.public_id, c.key, c.fingerprint, c.tenant, c.queue, c.identity, c.raw, c.profile, c.revision,
       c.state, c.version, c.attempt, c.priority, c.created_at, c.actor, c.finished_at, c.finished_by,
       c.failure, c.detail, c.payload, c.result
from helix.read_contents_v1(%(ids)s::uuid[]) c;

-- name: events
-- The events of some batches, each from its first step.
select e.public_id, e.version, e.at, e.from_state, e.to_state, e.reason, e.actor, e.attempt, e.epoch,
       e.number, e.detail, e.late
from helix.read_events_v1(%(ids)s::uuid[], %(after)s::int) e;

-- name: queues
-- A page of queues in the order of their names: settings, then the number of batches in each state. Only a
-- queue that is asked for by name has its schemas: those of a page may have 64 MiB.
select (q.settings).tenant, (q.settings).name,
       (case when %(queue)s::text is not null then pg_catalog.to_jsonb(q.settings)
             else pg_catalog.to_jsonb(q.settings)
                  operator(pg_catalog.||) '{"payload_schema": null, "result_schema": null}' end)::text,
       q.ready, q.waiting, q.assigned, q.running, q.completed, q.failed, q.cancelled, q.leases_cut
from helix.read_queues_v1(%(tenant)s::text, %(queue)s::text, %(bound)s::int, %(after_tenant)s::text,
                          %(after_queue)s::text, %(limit)s::int) q;

-- name: workers
-- A page of workers by tenant, name and login, with the number of leases that each holds. The first three columns
-- are the end of the scan.
select w.edge_tenant, w.edge_name, w.edge_role, w.tenant, w.name, w.role, w.status, w.free::text, w.first_seen,
       w.last_seen, w.ended_at, w.leases
from helix.read_workers_v1(%(tenant)s::text, %(after_tenant)s::text, %(after_name)s::text, %(after_role)s::name,
                           %(since)s::timestamptz, %(look)s::int, %(limit)s::int) w;

-- name: tenants
-- The tenants this role acts for; only * if it acts for all.
select t.tenant from helix.read_tenants_v1() as t (tenant);
