-- Every invariant of the engine as a query for its violations: no row means it holds.
-- Notes: which promise it belongs to, what a row means, what to do about it.
-- All run in one snapshot, as a role that sees every tenant.

-- name: two_places
-- promise: G2
-- means: The batch stands in more than one of ready, waiting, active, outcome and retired: it could
--        be worked on twice.
-- action: Stop claims of its queue; compare with `helixq replay`, which says where its events lead.
select batch, array_agg(place order by place) as places
from (select batch, place from helix.standing
      union all select batch, 'retired' from helix.retired) everywhere
group by batch having count(*) > 1;

-- name: two_owners
-- promise: G2
-- means: Two leases for one batch; the primary key of helix.active is gone or corrupt.
-- action: Run helixq recover, then restore the primary key (reindex, or migrate).
select batch, array_agg(worker) as workers from helix.active group by batch having count(*) > 1;

-- name: no_place
-- promise: G5
-- means: The batch was acknowledged, but stands nowhere: nobody will ever work on it.
-- action: Restore the row of its last event, or submit a new revision.
select b.id as batch, b.tenant, b.queue from helix.batch b
where not exists (select from helix.standing s where s.batch = b.id);

-- name: place_without_batch
-- promise: G5
-- means: A row says where a batch stands, but what was asked is gone.
-- action: Restore helix.batch from a backup.
select s.batch, s.place, s.state from helix.standing s
where not exists (select from helix.batch b where b.id = s.batch);

-- name: state_not_last_event
-- promise: G4
-- means: The batch stands in another state than its last event led to, or has no event at all.
-- action: Find who changed it: the event is the record, the row was edited.
select s.batch, s.place, s.state, head.to_state as last_event
from helix.standing s
left join lateral (select e.to_state from helix.event e where e.batch = s.batch
                   order by e.version desc limit 1) head on true
where s.state is distinct from head.to_state;

-- name: version_not_last_event
-- promise: G4
-- means: The row's version is not its last event's: an event was lost, or the row was edited.
-- action: Compare with an archive or a backup; a higher version in the row means lost events.
select s.batch, s.place, s.version, head.version as last_event
from helix.standing s
left join lateral (select e.version from helix.event e where e.batch = s.batch
                   order by e.version desc limit 1) head on true
where s.version is distinct from head.version;

-- name: attempt_not_last_event
-- promise: G4
-- means: The row counts other attempts than its last event: it gets too many or too few tries.
-- action: The event is the record; the row was edited.
select s.batch, s.place, s.attempt, head.attempt as last_event
from helix.standing s
join lateral (select e.attempt from helix.event e where e.batch = s.batch
              order by e.version desc limit 1) head on true
where s.attempt <> head.attempt;

-- name: version_gap
-- promise: G3
-- means: Versions do not run from 1 without a gap: an event was deleted or forged.
-- action: Compare with an archive or a backup.
select batch, version, before as version_before
from (select batch, version, lag(version, 1, 0) over (partition by batch order by version) as before
      from helix.event) e
where version <> before + 1;

-- name: illegal_arrow
-- promise: G3
-- means: An event takes an arrow that does not exist; the arrows are those of this release, not
--        those of helix.arrow.
-- action: The event was forged, or the trigger that writes events was off; see the triggers below.
select e.batch, e.version, e.from_state, e.to_state, e.reason
from helix.event e
where not exists (
  select from unnest(%(arrow_from)s::text[], %(arrow_to)s::text[]) as arrow (from_state, to_state)
  where arrow.from_state is not distinct from e.from_state::text
    and arrow.to_state = e.to_state::text);

-- name: arrows_edited
-- promise: G3
-- means: helix.arrow does not list the arrows of this release, so illegal steps could pass.
-- action: Restore the table as in 02_vocabulary.sql.
select coalesce(here.from_state, release.from_state) as from_state,
       coalesce(here.to_state, release.to_state) as to_state,
       case when here.to_state is null then 'missing' else 'added' end as what
from (select coalesce(a.from_state::text, '(new)') as from_state, a.to_state::text as to_state
      from helix.arrow a) here
full join (select coalesce(f, '(new)') as from_state, t as to_state
           from unnest(%(arrow_from)s::text[], %(arrow_to)s::text[]) as arrow (f, t)) release
  on (here.from_state, here.to_state) = (release.from_state, release.to_state)
where here.to_state is null or release.to_state is null;

-- name: event_torn
-- promise: G3
-- means: An event does not start where the one before it ended.
-- action: An event between them was deleted or edited; compare with an archive or a backup.
select batch, version, from_state, before as led_to
from (select batch, version, from_state,
             lag(to_state) over (partition by batch order by version) as before
      from helix.event) e
where from_state is distinct from before;

-- name: event_after_the_end
-- promise: G3
-- means: Something happened to a batch that had ended for good.
-- action: The event was forged; new work is a new revision.
select batch, version, before as ended, to_state
from (select batch, version, to_state,
             lag(to_state) over (partition by batch order by version) as before
      from helix.event) e
where before in ('COMPLETED', 'CANCELLED');

-- name: hash_broken
-- promise: G3
-- means: An event's hash does not follow from its columns and the hash before it: it was edited,
--        or an event before it was lost.
-- action: The first witness of a batch is the place; compare with an archive or a backup.
select batch, version, actor, at
from (select e.*, lag(e.hash) over (partition by e.batch order by e.version) as before
      from helix.event e) e
where hash <> helix.event_hash(before, batch, version, tenant, from_state, to_state, at, attempt,
                               epoch, number, actor, reason, detail, late, xid);

-- name: event_without_place
-- promise: G4
-- means: The ledger tells of a batch that stands in no table.
-- action: Its row was deleted; the last event says which table to restore it in.
select e.batch, count(*) as events, max(e.version) as last_version
from helix.event e
where not exists (select from helix.standing s where s.batch = e.batch)
  and not exists (select from helix.retired r where r.batch = e.batch)
group by e.batch;

-- name: retired_left_events
-- promise: G4
-- means: A retired batch still has events, or still has what was asked: it was taken away in part.
-- action: Retention is one transaction, so this was done by hand; delete the rest or restore it.
select r.batch, r.state, 'event' as left_in from helix.retired r
where exists (select from helix.event e where e.batch = r.batch)
union all
select r.batch, r.state, 'batch' from helix.retired r
where exists (select from helix.batch b where b.id = r.batch);

-- name: batch_without_identity
-- promise: G1
-- means: The batch's key is not in helix.identity, or leads to another batch: a repeat of this
--        submission would be taken for new work.
-- action: Close the queue to submissions and restore the identity from helix.batch.
select b.id as batch, b.tenant, b.queue, i.batch as leads_to
from helix.batch b left join helix.identity i on i.key = b.key
where i.batch is distinct from b.id;

-- name: identity_without_batch
-- promise: G5
-- means: A key answers duplicates for a batch that neither exists nor was retired.
-- action: Restore helix.batch from a backup.
select i.batch, i.tenant, helix.key_text(i.key) as key from helix.identity i
where not exists (select from helix.batch b where b.id = i.batch)
  and not exists (select from helix.retired r where r.batch = i.batch);

-- name: key_not_derived
-- promise: G1
-- means: The key does not follow from tenant, queue, identity and revision: one of them was edited.
-- action: helix.identity has the key that was given; restore the edited column.
select b.id as batch, b.tenant, b.queue, b.identity, b.revision from helix.batch b
where b.identity is not null
  and b.key <> helix.derive_key(b.tenant, b.queue, b.identity, b.revision);

-- name: payload_edited
-- promise: G7
-- means: The payload is not what was submitted: its fingerprint does not match.
-- action: Cancel the batch and submit a new revision with the right payload.
select b.id as batch, b.tenant, b.queue from helix.batch b
join helix.identity i on i.key = b.key
join helix.secret s on s.id = i.secret
where b.payload is not null and i.fingerprint <> helix.fingerprint(s, b.payload::text);

-- name: fingerprint_without_secret
-- promise: G7
-- means: The secret that made this fingerprint is gone, so a repeat can no longer be compared.
-- action: Restore helix.secret from a backup.
select i.batch, i.secret from helix.identity i
where not exists (select from helix.secret s where s.id = i.secret);

-- name: payload_gone
-- promise: G5
-- means: The payload is empty, but no decision says that somebody erased it.
-- action: Restore it from a backup.
select b.id as batch, b.tenant, b.queue from helix.batch b
where b.payload is null
  and not exists (select from helix.decision d where d.batch = b.id and d.kind = 'erased');

-- name: wrong_lane
-- promise: G2
-- means: The batch stands in a lane of another queue, requirement class or priority than was asked:
--        the wrong workers would get it.
-- action: Cancel the batch and submit a new revision.
select p.batch, p.place, p.lane, b.queue, b.class, b.priority,
       l.queue as lane_queue, l.class as lane_class, l.priority as lane_priority
from (select batch, lane, null as queue, 'ready' as place from helix.ready
      union all select batch, lane, queue, 'waiting' from helix.waiting
      union all select batch, lane, queue, 'active' from helix.active
      union all select batch, lane, queue, 'outcome' from helix.outcome) p
join helix.batch b on b.id = p.batch
left join helix.lane l on l.id = p.lane
where (l.queue, l.class, l.priority) is distinct from (b.queue, b.class, b.priority)
   or p.queue <> b.queue;

-- name: held_count_wrong
-- promise: G2
-- means: The number of leases under a limit key is not what helix.key_limit counts: too many could
--        run at once, or none ever again.
-- action: The trigger count_lease was off; see the triggers below. Run helixq recover to end the
--         leases of a key that is counted too low.
select coalesce(k.tenant, a.tenant) as tenant, coalesce(k.queue, a.queue) as queue,
       coalesce(k.key, a.limit_key) as key, coalesce(k.held, 0) as counted,
       coalesce(a.live, 0) as live
from helix.key_limit k
full join (select tenant, queue, limit_key, count(*) as live from helix.active
           where limit_key is not null group by 1, 2, 3) a
  on (a.tenant, a.queue, a.limit_key) = (k.tenant, k.queue, k.key)
where coalesce(k.held, 0) <> coalesce(a.live, 0);

-- name: limit_key_edited
-- promise: G2
-- means: A row carries another limit key than was asked, so it is not counted where it should be.
-- action: Cancel the batch and submit a new revision.
select p.batch, p.place, p.limit_key, b.limit_key as asked
from (select batch, limit_key, 'ready' as place from helix.ready
      union all select batch, limit_key, 'waiting' from helix.waiting
      union all select batch, limit_key, 'active' from helix.active) p
join helix.batch b on b.id = p.batch
where p.limit_key is distinct from b.limit_key;

-- name: token_ahead
-- promise: G2
-- means: A lease's number has not been handed out yet, or its epoch is unknown: the sequence was set
--        back, and a token could be given twice.
-- action: Run helixq recover: a new epoch makes every old token differ.
select a.batch, a.worker, a.epoch, a.number, n.last_value
from helix.active a cross join helix.lease_number n
where a.number > n.last_value
   or not exists (select from helix.epoch e where e.number = a.epoch);

-- name: batch_id_behind
-- promise: G1
-- means: The counter of batches stands below a batch that exists: the next submissions would fail.
-- action: Set it ahead: select setval('helix.batch_id', (select max(batch) from helix.identity)).
select n.last_value, ids.highest
from helix.batch_id n cross join (select max(i.batch) as highest from helix.identity i) ids
where ids.highest > n.last_value;

-- name: attempt_above_max
-- promise: G6
-- means: The batch has had more tries than its queue ever allowed.
-- action: Its count was edited, or attempts were not counted; cancel it if it is poison.
select s.batch, s.place, s.attempt, allowed.most
from helix.standing s
join helix.batch b on b.id = s.batch
join lateral (
  -- Settings change, and a lower bound does not call back what an earlier one allowed.
  select greatest(q.max_attempts, (
           select max((d.detail::json ->> 'max_attempts')::int) from helix.decision d
           where d.kind = 'setting' and d.tenant = q.tenant and d.queue = q.name)) as most
  from helix.queue q where q.tenant = b.tenant and q.name = b.queue) allowed on true
where s.attempt > allowed.most or s.attempt < 0;

-- name: lease_stuck
-- promise: G6
-- means: The lease ran out more than twice its length ago: nobody claims any more, or something
--        keeps its row locked.
-- action: Start a worker or the service, or call helix.reap_v1; if it stays, look into pg_locks.
select a.batch, a.worker, a.deadline, a.lease_seconds
from helix.active a
where a.deadline + greatest(make_interval(secs => 2 * a.lease_seconds), '10 s') < clock_timestamp();

-- name: queue_missing
-- promise: G6
-- means: A live batch belongs to a queue that does not exist: no claim will find its settings.
-- action: Create the queue again with helix.set_queue_v1.
select s.batch, s.place, b.tenant, b.queue
from helix.standing s join helix.batch b on b.id = s.batch
where s.place <> 'outcome'
  and not exists (select from helix.queue q where q.tenant = b.tenant and q.name = b.queue);

-- name: tenant_differs
-- promise: G10
-- means: Two tables disagree about whose batch this is: one tenant may see another's row.
-- action: Restore the edited row; helix.identity and the hash chain hold the right one.
select found.batch, i.tenant, found.tenant as other, found.place
from helix.identity i
join (select id as batch, tenant, 'batch' as place from helix.batch
      union all select batch, tenant, place from helix.standing
      union all select batch, tenant, 'event' from helix.event
      union all select batch, tenant, 'refusal' from helix.refusal
      union all select batch, tenant, 'decision' from helix.decision where batch is not null
      union all select batch, tenant, 'retired' from helix.retired) found on found.batch = i.batch
where found.tenant <> i.tenant;

-- name: ledger_without_room
-- promise: G5
-- means: No partition of the ledger takes the events of the next batch: submissions will fail.
-- action: Call helix.add_event_partition as helix_owner.
select ids.highest + 1 as next_batch
from (select coalesce(max(i.batch), 0) as highest from helix.identity i) ids
where not exists (
  select from pg_inherits p join pg_class c on c.oid = p.inhrelid
  where p.inhparent = 'helix.event'::regclass
    and ids.highest + 1 >= substring(pg_get_expr(c.relpartbound, c.oid)
                                     from 'FROM \(''?(\d+)')::bigint
    and ids.highest + 1 < substring(pg_get_expr(c.relpartbound, c.oid)
                                    from 'TO \(''?(\d+)')::bigint);
