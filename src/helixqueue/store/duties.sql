-- Background duties, as services and people ask for them.

-- name: tend
-- One duty that is due, a bounded number of rows; no row when none is.
select duty, did, seconds, error from helix.tend_v1(%s::text, %s::int);

-- name: duties
-- When each was last done, and how far it is behind: zero while it is done in time.
select d.duty, extract(epoch from d.every)::float8, d.last_at, d.actor, d.did, d.total, d.seconds,
       d.failures, d.failed,
       -- One that was never due yet, in a database made a moment ago, is not behind.
       case when d.next_at = '-infinity' then 0
            else greatest(extract(epoch from clock_timestamp() - d.next_at), 0) end::float8
from helix.duty d order by d.duty;
