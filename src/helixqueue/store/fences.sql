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
-- Is somebody still at it? For those who wait, between two claims; writes nothing.
select f.version, f.state in ('CLAIMED', 'EFFECT_STARTED') and f.deadline > clock_timestamp()
from helix.fence f where f.key = %s::bytea;

-- name: one
-- By its key.
select f.key, f.tenant, f.name, f.identity, f.state::text, f.version, f.attempt, f.actor,
       f.reason::text, f.detail, f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest,
       f.answer is not null and f.answer_until > clock_timestamp(), f.answer_until, f.until,
       f.quiet_seconds, f.fingerprint,
       case when f.state = 'SEALED'
            then helix.fence_receipt(f.key, f.fingerprint, f.effect, f.form, f.digest) end
from helix.fence f where f.key = %s::bytea;

-- name: list
-- Newest first; written, and led on by an edge, as the lists of reads.sql are. Each tenant that is asked
-- about is walked by one index for its share of rows: doubts by theirs, which are few, a name by its own, and
-- anything else by age. Whoever sees some tenants alone must not step over the fences of all others, so
-- the tenants are looked up first.
with recursive everyone (tenant) as (
  (select f.tenant::text from helix.fence f
   where %(tenant)s::text is null and (select helix.session_tenants()) is null
   order by f.tenant limit 1)
  union all
  select (select f.tenant::text from helix.fence f where f.tenant > e.tenant
          order by f.tenant limit 1)
  from everyone e where e.tenant is not null
),
line as (
  select t.tenant, greatest(%(look)s::bigint / count(*) over (), 1) as share
  from (select %(tenant)s::text as tenant where %(tenant)s::text is not null
        union all
        select unnest(helix.session_tenants()) where %(tenant)s::text is null
        union all
        select e.tenant from everyone e where e.tenant is not null) t
),
seen as materialized (
  select l.tenant, p.life, p.name, p.state,
         row_number() over (partition by l.tenant order by p.life desc) = l.share as last
  from line l
  cross join lateral (
    (select f.life, f.name, f.state::text as state from helix.fence f
     where %(walk)s::text = 'age' and f.tenant = l.tenant and f.life < %(life)s::bigint
     order by f.life desc limit l.share)
    union all
    (select f.life, f.name, f.state::text from helix.fence f
     where %(walk)s::text = 'name' and f.tenant = l.tenant and f.name = %(name)s::text
       and f.life < %(life)s::bigint
     order by f.life desc limit l.share)
    union all
    (select f.life, f.name, f.state::text from helix.fence f
     where %(walk)s::text = 'doubt' and f.state = 'IN_DOUBT' and f.tenant = l.tenant
       and f.life < %(life)s::bigint
     order by f.life desc limit l.share)) p
),
edge as (select max(s.life) as life from seen s where s.last),
page as (
  select s.tenant, s.life from seen s cross join edge e
  where (%(name)s::text is null or s.name = %(name)s::text)
    and (%(state)s::text is null or s.state = %(state)s::text)
    and (e.life is null or s.life >= e.life)
  order by s.life desc limit %(limit)s::int
)
select e.life, p.life, f.*
from edge e left join page p on true
left join lateral (
  select f.key, f.tenant, f.name, f.identity, f.state::text, f.version, f.attempt, f.actor,
         f.reason::text, f.detail, f.first_at, f.changed_at, f.deadline, f.effect, f.form, f.digest,
         f.answer is not null and f.answer_until > clock_timestamp(), f.answer_until, f.until,
         f.quiet_seconds, f.fingerprint,
         case when f.state = 'SEALED'
              then helix.fence_receipt(f.key, f.fingerprint, f.effect, f.form, f.digest) end
  from helix.fence f where f.tenant = p.tenant and f.life = p.life limit 1) f on true
order by p.life desc;

-- name: story
-- Everything that happened to one fence: its steps and the decisions that changed nothing.
select told.at, told.what, told.from_state, told.to_state, told.attempt, told.actor, told.detail
from (select e.at, e.reason::text as what, e.from_state::text, e.to_state::text, e.attempt, e.actor,
             e.detail, e.version::bigint as place
      from helix.fence_event e
      where e.life = (select f.life from helix.fence f where f.key = %s::bytea)
      union all
      select d.at, d.kind::text, null, null, null, d.actor, d.detail, d.id
      from helix.fence_decision d
      where d.life = (select f.life from helix.fence f where f.key = %s::bytea)) told
order by told.at, told.place limit 1000;

-- name: foresee
-- What would claims be told, each by itself? In the order of the input; writes nothing.
select told.key, told.decision
from unnest(%s::text[], %s::text[], %s::text[]) with ordinality asked (name, identity, request, place)
cross join lateral helix.foresee_fence_v1(%s::text, asked.name, asked.identity, asked.request) told
order by asked.place;

-- name: count
-- For gauges: what has not ended, by name and state, and for how many seconds the oldest
-- stands there. At most
-- ten thousand of each kind are counted, by the indexes that hold nothing else.
select f.name, f.state::text, count(*),
       extract(epoch from clock_timestamp() - min(f.changed_at))::float8
from ((select name, state, changed_at from helix.fence
       where state = 'IN_DOUBT' order by changed_at limit 10000)
      union all
      (select name, state, changed_at from helix.fence
       where state in ('CLAIMED', 'EFFECT_STARTED') order by deadline limit 10000)) f
group by f.name, f.state order by 1, 2;

-- name: lag
-- For gauges: how many seconds the housekeeping is behind with leases, answers and tombstones.
select coalesce(extract(epoch from clock_timestamp() - (
         select min(f.deadline) from helix.fence f
         where f.state in ('CLAIMED', 'EFFECT_STARTED') and f.deadline < clock_timestamp())), 0)::float8,
       coalesce(extract(epoch from clock_timestamp() - (
         select min(f.answer_until) from helix.fence f
         where f.sealed_at is not null and (f.answer is not null or f.request is not null)
           and f.answer_until < clock_timestamp())), 0)::float8,
       coalesce(extract(epoch from clock_timestamp() - (
         select min(f.until) from helix.fence f
         where f.until is not null and f.until < clock_timestamp())), 0)::float8;
