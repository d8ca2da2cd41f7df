-- Background duties.

-- name: run_duty
-- Runs one duty that is due, for a bounded number of rows; returns no row if none is due.
select duty, did, seconds, error from helix.run_duty_v1(%s::text, %s::int);

-- name: duties
-- When each duty last ran, and by how many seconds it is overdue.
select d.duty, d.every_seconds, d.last_at, d.actor, d.did, d.total, d.seconds, d.failures, d.failed,
       d.lag_seconds
from helix.read_duties_v1() d;
