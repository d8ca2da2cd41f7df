-- Background duties, as services and people ask for them.

-- name: tend
-- One duty that is due, a bounded number of rows; no row when none is.
select duty, did, seconds, error from helix.tend_v1(%s::text, %s::int);

-- name: duties
-- When each was last done, and how many seconds it is behind.
select d.duty, d.every_seconds, d.last_at, d.actor, d.did, d.total, d.seconds, d.failures, d.failed,
       d.lag_seconds
from helix.read_duties_v1() d;
