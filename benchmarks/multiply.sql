-- Copies finished batches with their steps, results and refusals; see multiply.py.

-- name: base
-- The batches that are copied.
create unlogged table public.copied as
select b.id from helix.batch b join helix.work w on w.batch = b.id
where b.queue = any (array(select q.id from helix.queue q where q.name = any (%(queues)s)))
  and w.state in ('COMPLETED', 'FAILED');

-- name: entries
-- Ledger entries of these batches alone.
create unlogged table public.copied_entry as
select e.id, e.part from helix.entry e cross join unnest(e.batch) as u (batch) left join public.copied c on c.id = u.batch
group by e.id, e.part having bool_and(c.id is not null);

-- name: copy_batch
insert into helix.batch (id, created_at, queue, class, secret, priority, key, fingerprint, actor, revision, identity,
                         payload, raw)
select b.id + %(batch)s, b.created_at - %(earlier)s::interval, b.queue, b.class, b.secret, b.priority,
       helix.derive_key(q.tenant, q.name, b.identity || %(suffix)s, b.revision), b.fingerprint, b.actor, b.revision,
       b.identity || %(suffix)s, b.payload, b.raw || %(suffix)s
from helix.batch b join public.copied c using (id) join helix.queue q on q.id = b.queue order by b.id;

-- name: copy_work
insert into helix.work (batch, turn, entry, changed_at, queue, lane, bytes, version, state, reason, attempt, pending,
                        step, late, came_from, version_before, before, number, nonce, deadline, epoch, lease_seconds,
                        actor, content)
select w.batch + %(batch)s, w.turn, w.entry + %(entry)s, w.changed_at - %(earlier)s::interval, w.queue, w.lane, w.bytes,
       w.version, w.state, w.reason, w.attempt, w.pending, w.step, w.late, w.came_from, w.version_before,
       w.before + %(entry)s, w.number + %(entry)s, w.nonce, w.deadline - %(earlier)s::interval, w.epoch, w.lease_seconds,
       w.actor, w.content
from helix.work w join public.copied c on c.id = w.batch order by w.batch;

-- name: copy_entry
insert into helix.entry
select e.id + %(entry)s, e.at - %(earlier)s::interval, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.part, e.late,
       e.hash, e.actor, array(select u.v + %(batch)s from unnest(e.batch) with ordinality as u (v, n) order by u.n),
       e.queue, e.version, e.attempt,
       case when e.before is not null then
         array(select u.v + %(entry)s from unnest(e.before) with ordinality as u (v, n) order by u.n) end,
       e.content
from helix.entry e join public.copied_entry c using (id, part) order by e.id, e.part;

-- name: copy_result
insert into helix.result
select r.batch + %(batch)s, r.version, r.queue, r.failure, r.detail, r.result
from helix.result r join public.copied c on c.id = r.batch order by r.batch, r.version;

-- name: copy_ended
insert into helix.ended
select x.at - %(earlier)s::interval, x.batch + %(batch)s, x.queue, x.ending
from helix.ended x join public.copied c on c.id = x.batch;

-- name: copy_refusal
insert into helix.refusal
select r.batch + %(batch)s, r.epoch, r.number + %(entry)s, r.operation, r.tenant, r.worker, r.owner,
       r.owner_number + %(entry)s, r.state, r.why, r.times, r.first_at - %(earlier)s::interval, r.last_at - %(earlier)s::interval,
       r.position, r.hash
from helix.refusal r join public.copied c on c.id = r.batch;
