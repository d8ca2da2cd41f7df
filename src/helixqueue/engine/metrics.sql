-- Metrics, findings of the reconciliation, intervals of duties.

-- name: read_metrics
-- The series of the session's tenants, or of all tenants.
select m.tenant, m.name, m.queue, m.label, m.value from helix.read_metrics_v1(%s::boolean, %s::int) m;

-- name: list_findings
-- What the reconciliation found: open first, then newest first.
select f.kind, f.queue, f.tenant, f.batch, f.found_at, f.seen_at, f.cleared_at, f.detail
from helix.read_findings_v1(%s::boolean, %s::int) f;

-- name: set_duty
-- Changes how often a duty runs.
select helix.set_duty_v1(%s::text, %s::float8, %s::text, %s::text);
