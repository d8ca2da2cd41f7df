-- The calls of fences, as `helixqueue.store.fences` sends them.

-- name: claim
-- Whose effect is it? One statement, one commit; a foreign effect is marked as begun in it.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.claim_fence_v1(%s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::boolean,
                          %s::real, %s::real, %s::boolean, %s::int, %s::boolean, %s::boolean);

-- name: seal
-- It happened; this is what came of it.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.seal_fence_v1(%s::bytea, %s::int, %s::bigint, %s::bigint, %s::text, %s::text, %s::text,
                         %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: step
-- Begin, release or doubt, by the holder.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.step_fence_v1(%s::bytea, %s::int, %s::bigint, %s::bigint, %s::helix.fence_state, %s::text,
                         %s::text, %s::float8);

-- name: probe
-- A probe looked; the fence must still be where it looked.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.probe_fence_v1(%s::bytea, %s::int, %s::text, %s::text, %s::bigint, %s::real, %s::real,
                          %s::text, %s::text, %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: resolve
-- A person decides.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.resolve_fence_v1(%s::bytea, %s::int, %s::boolean, %s::text, %s::text, %s::text, %s::text,
                            %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: resolve_by_token
-- A person decides, over HTTP: the token says who.
select decision, key, life, version, state::text, attempt, epoch, number, fingerprint, holder,
       retry_after, request, effect, form, answer, omitted, digest, receipt, sealed_at, note
from helix.resolve_by_token_v1(%s::bytea, %s::bytea, %s::int, %s::boolean, %s::text, %s::text,
                               %s::text, %s::bytea, %s::boolean, %s::float8, %s::float8);

-- name: renew
-- Heartbeats; returns the keys that were lost.
select helix.renew_fences_v1(%s::bytea[], %s::int[], %s::bigint[], %s::bigint[]);

-- name: tend
-- What time alone settles.
select doubted, released, emptied, forgotten from helix.tend_fences_v1(%s::text, %s::int);

-- name: peek
-- Does a holder still work on it? For callers that wait, between two claims.
select h.version, h.held from helix.read_fence_holder_v1(%s::bytea) h;

-- name: one
-- By its key.
select f.key, f.tenant, f.name, f.identity, f.state, f.version, f.attempt, f.actor, f.reason, f.detail,
       f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest, f.answer_kept, f.answer_until,
       f.until, f.quiet_seconds, f.fingerprint, f.receipt
from helix.read_fence_v1(%s::bytea) f;

-- name: list
-- Newest first. The first column is the edge, the second the position of a row; there is at least one row.
select l.edge, l.place,
       f.key, f.tenant, f.name, f.identity, f.state, f.version, f.attempt, f.actor, f.reason, f.detail,
       f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest, f.answer_kept, f.answer_until,
       f.until, f.quiet_seconds, f.fingerprint, f.receipt
from helix.read_fences_v1(%(walk)s::text, %(tenant)s::text, %(name)s::text, %(state)s::text,
                          %(life)s::bigint, %(look)s::int, %(limit)s::int) l
cross join lateral (select (l.fence).*) f
order by l.place desc;

-- name: story
-- Everything that happened to one fence: its steps and the decisions that changed nothing.
select h.at, h.what, h.from_state, h.to_state, h.attempt, h.actor, h.detail
from helix.read_fence_history_v1(%s::bytea) h;

-- name: foresee
-- What would claims be told, each by itself? In the order of the input; writes nothing.
select told.key, told.decision
from unnest(%s::text[], %s::text[], %s::text[]) with ordinality asked (name, identity, request, place)
cross join lateral helix.foresee_fence_v1(%s::text, asked.name, asked.identity, asked.request) told
order by asked.place;

-- name: count
-- For gauges: the fences that have not ended by name and state, and the age in seconds of the oldest.
select c.name, c.state, c.number, c.seconds from helix.read_fence_counts_v1() c;

-- name: lag
-- For gauges: how many seconds the housekeeping is behind with leases, answers and tombstones.
select l.leases, l.answers, l.tombstones from helix.read_fence_lag_v1() l;
