-- Runs of `check`, as `helixqueue.engine.check_runs` calls them; the functions are in sql/89_check_run.sql
-- and sql/98_overview_reads.sql.

-- name: note_check
-- Records a run.
select helix.note_check_v1(%(tenant)s::text, %(actor)s::text, %(seconds)s::float8, %(results)s::text);

-- name: check_runs
-- A page of runs, newest first.
select r.id, r.at, r.seconds, r.actor, r.results
from helix.read_check_runs_v1(%(tenant)s::text, %(before)s::bigint, %(limit)s::int) r;
