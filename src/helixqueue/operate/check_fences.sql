-- Invariants of fences. Same form as check_rows.sql. That a fence is IN_DOUBT breaks nothing: it is the
-- truth, and `helixq fence list --state IN_DOUBT` shows it.

-- name: fence_not_last_event
-- promise: G8
-- means: The fence stands in another state or version than its last event led to.
-- action: The event is the record, the row was edited; an effect may be run again or never.
select f.life, f.tenant, f.name, f.state, f.version, head.to_state as last_event,
       head.version as last_version
from helix.fence f
left join lateral (select e.to_state, e.version from helix.fence_event e where e.life = f.life
                   order by e.version desc limit 1) head on true
where (f.state, f.version) is distinct from (head.to_state, head.version);

-- name: fence_event_torn
-- promise: G8
-- means: The steps of a fence do not follow one another: one was deleted, forged or edited.
-- action: Compare with a backup; `helixq fence explain` shows what is left.
select life, version, from_state, before as led_to
from (select e.life, e.version, e.from_state,
             lag(e.to_state) over w as before, lag(e.version, 1, 0) over w as before_version
      from helix.fence_event e window w as (partition by e.life order by e.version)) e
where version <> before_version + 1 or from_state is distinct from before;

-- name: fence_illegal_arrow
-- promise: G8
-- means: A fence took a step that does not exist; the arrows are those of this release.
-- action: The event was forged, or the trigger that writes events was off; see the triggers.
select e.life, e.version, e.from_state, e.to_state, e.reason
from helix.fence_event e
where not exists (
  select from unnest(%(fence_from)s::text[], %(fence_to)s::text[]) as arrow (from_state, to_state)
  where arrow.from_state is not distinct from e.from_state::text
    and arrow.to_state = e.to_state::text);

-- name: fence_arrows_edited
-- promise: G8
-- means: helix.fence_arrow does not list the arrows of this release, so illegal steps could pass.
-- action: Restore the table as in 18_fence.sql.
select coalesce(here.from_state, release.from_state) as from_state,
       coalesce(here.to_state, release.to_state) as to_state,
       case when here.to_state is null then 'missing' else 'added' end as what
from (select coalesce(a.from_state::text, '(new)') as from_state, a.to_state::text as to_state
      from helix.fence_arrow a) here
full join (select coalesce(f, '(new)') as from_state, t as to_state
           from unnest(%(fence_from)s::text[], %(fence_to)s::text[]) as arrow (f, t)) release
  on (here.from_state, here.to_state) = (release.from_state, release.to_state)
where here.to_state is null or release.to_state is null;

-- name: fence_key_not_derived
-- promise: G8
-- means: The key does not follow from tenant, name and identity: a repeat would be taken for new.
-- action: Restore the edited column.
select f.life, f.tenant, f.name, f.identity from helix.fence f
where f.identity is not null
  and f.key <> helix.derive_fence_key(f.tenant, f.name, f.identity);

-- name: fence_request_edited
-- promise: G7
-- means: The kept request is not what was asked first: its fingerprint does not match.
-- action: Restore it from a backup; until then refused requests show a wrong difference.
select f.life, f.tenant, f.name from helix.fence f join helix.secret s on s.id = f.secret
where f.request is not null and f.fingerprint <> helix.fingerprint(s, f.request::text);

-- name: fence_answer_edited
-- promise: G8
-- means: The kept answer is not the one that was sealed: repeats differ from the first answer, and
--        no receipt proves them.
-- action: Empty the answer, so that repeats are told it is gone, or restore it from a backup.
select f.life, f.tenant, f.name from helix.fence f
where f.answer is not null and f.digest <> sha256(f.answer);

-- name: fence_tenant_differs
-- promise: G10
-- means: A fence and its story disagree about whose they are: one tenant may see another's row.
-- action: Restore the edited row; the key of the fence is derived from the right tenant.
select f.life, f.tenant, e.tenant as other from helix.fence f
join helix.fence_event e on e.life = f.life where e.tenant <> f.tenant
union all
select f.life, f.tenant, d.tenant from helix.fence f
join helix.fence_decision d on d.life = f.life where d.tenant <> f.tenant;

-- name: fence_story_left
-- promise: G8
-- means: Steps or decisions tell of a fence that is not there: its row was deleted, and its key
--        would be taken for new.
-- action: Restore the row from a backup; the last step says in which state.
select e.life, count(*) as steps from helix.fence_event e
where not exists (select from helix.fence f where f.life = e.life) group by e.life;
