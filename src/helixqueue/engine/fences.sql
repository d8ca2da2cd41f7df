-- The calls of fences, as `helixqueue.engine.fences` sends them.

-- name: claim
-- One statement, one commit; it also marks an effect outside the database as started.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.claim_fence_v1(%s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::boolean,
                          %s::real, %s::real, %s::boolean, %s::int, %s::boolean, %s::boolean);

-- name: seal
-- The holder reports the outcome.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.seal_fence_v1(%s::bytea, %s::int, %s::bigint, %s::bigint, %s::text, %s::text, %s::text,
                         %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: step
-- The holder starts, releases or doubts.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.step_fence_v1(%s::bytea, %s::int, %s::bigint, %s::bigint, %s::helix.fence_state, %s::text,
                         %s::text, %s::float8);

-- name: probe
-- The finding of a probe; the fence must still have the version that the probe looked at.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.probe_fence_v1(%s::bytea, %s::int, %s::text, %s::text, %s::bigint, %s::real, %s::real,
                          %s::text, %s::text, %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: resolve
-- An operator decides.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.resolve_fence_v1(%s::bytea, %s::int, %s::boolean, %s::text, %s::text, %s::text, %s::text,
                            %s::bytea, %s::boolean, %s::float8, %s::float8, %s::boolean);

-- name: resolve_by_token
-- An operator decides over HTTP; the actor is the token.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.resolve_by_token_v1(%s::bytea, %s::bytea, %s::int, %s::boolean, %s::text, %s::text,
                               %s::text, %s::bytea, %s::boolean, %s::float8, %s::float8, %s::boolean);

-- name: renew
-- Heartbeats; returns the keys that the caller no longer holds.
select helix.renew_fences_v1(%s::bytea[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: find_holder
-- Whether the fence has a live holder: for callers that wait between two claims.
select h.version, h.held from helix.read_fence_holder_v1(%s::bytea) h;

-- name: find_fence
-- By its key, or those whose keys have one prefix.
select f.key, f.tenant, f.name, f.identity, f.state, f.version, f.attempt, f.actor, f.reason, f.detail,
       f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest, f.answer_kept, f.answer_until,
       f.until, f.quiet_seconds, f.fingerprint, f.receipt, f.sealed_at
from helix.read_fence_v1(%s::bytea, %s::bytea) f;

-- name: list_fences
-- Newest first. The first column is the edge, the second the position of a row; there is at least one row.
select l.edge, l.place,
       f.key, f.tenant, f.name, f.identity, f.state, f.version, f.attempt, f.actor, f.reason, f.detail,
       f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest, f.answer_kept, f.answer_until,
       f.until, f.quiet_seconds, f.fingerprint, f.receipt, f.sealed_at
from helix.read_fences_v1(%(scan)s::text, %(tenant)s::text, %(name)s::text, %(state)s::text,
                          %(life)s::bigint, %(look)s::int, %(limit)s::int) l
cross join lateral (select (l.fence).*) f
order by l.place desc;

-- name: fence_history
-- The steps of one fence, and the decisions that changed no state.
select h.at, h.what, h.from_state, h.to_state, h.attempt, h.actor, h.detail
from helix.read_fence_history_v1(%s::bytea) h;

-- name: preview
-- The decision that each claim would get, in the order of the input; writes nothing.
select reply.key, reply.decision
from unnest(%s::text[], %s::text[], %s::text[]) with ordinality call (name, identity, request, position)
cross join lateral helix.preview_fence_v1(%s::text, call.name, call.identity, call.request) reply
order by call.position;

-- name: count_open
-- For gauges: the fences that have not ended by name and state, and the age in seconds of the oldest.
select c.name, c.state, c.number, c.seconds from helix.read_fence_counts_v1() c;

-- name: sweep_lag
-- For gauges: the seconds by which housekeeping is behind with leases, answers and tombstones.
select l.leases, l.answers, l.tombstones from helix.read_fence_lag_v1() l;
