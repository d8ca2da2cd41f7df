-- Invariants of batches, of where they stand, and of the rows that count or record. Same form as
-- 85_check.sql.

-- Batches: each row of helix.batch beside its row of helix.work.
create function helix.read_check_batches() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  with allowed as (
    -- Settings change, and a lower bound does not take back what an earlier one allowed.
    select q.id, greatest(q.max_attempts, max((d.detail::json ->> 'max_attempts')::int)) as most
    from helix.queue q
    left join helix.decision d on d.kind = 'setting' and d.tenant = q.tenant and d.queue = q.name
    group by q.id
  ),
  erased as (select distinct d.batch from helix.decision d where d.kind = 'erased'),
  unnamed as (select distinct d.batch from helix.decision d where d.kind in ('unnamed', 'identity_erased')),
  compared as (
    select coalesce(b.id, w.batch) as batch, q.tenant, q.name as queue, w.state, w.version, w.attempt,
           w.actor, w.deadline, w.lane, a.most,
           b.id is not null and b.retired_at is null and w.batch is null as unplaced,
           b.id is null as unasked,
           b.retired_at is not null
             and (w.batch is not null or b.identity is not null or b.raw is not null
                  or b.limit_key is not null or b.payload is not null) as half_retired,
           case when b.retired_at is not null
                then b.tombstone is distinct from
                     helix.tombstone_hash(b.key, b.fingerprint, b.queue, b.entry, b.version, b.state,
                                          b.attempt, b.ended_at, b.retired_at, b.revision)
                else not (b.ended_at, b.entry, b.version, b.state, b.attempt, b.tombstone) is null
           end as tombstone_edited,
           b.identity is not null
             and b.key <> helix.derive_key(q.tenant, q.name, b.identity, b.revision) as other_key,
           b.id is not null and b.payload is null and b.retired_at is null and erased.batch is null
             as payload_gone,
           b.id is not null and b.identity is null and b.retired_at is null and unnamed.batch is null
             as identity_gone,
           w.queue <> b.queue as other_queue,
           w.batch is not null and b.id is not null and q.id is not null
             and (l.queue, l.class, l.priority) is distinct from (q.name, b.class, b.priority::smallint)
             as other_lane,
           w.batch is not null and b.id is not null and b.retired_at is null
             and ((w.limit_key, w.expires_at)
                  is distinct from (b.limit_key::text, b.expires_at::timestamptz)
                  or w.run is distinct from b.run
                  or w.version = 1 and w.due <> b.run_at) as other_options,
           q.id is null as queueless,
           w.attempt > coalesce(u.tries, a.most) or w.attempt < 0 as exhausted,
           w.batch is not null and (
             (w.state = 'PENDING') = (w.pending or w.cause is not null)
             and not (w.pending and w.cause is not null)
             and (w.due is not null) = coalesce(w.cause = 'delay', false)
             and (w.cause is distinct from 'limit' or w.limit_key is not null)
             and (not s.leased or w.number is not null and w.epoch is not null
                                  and w.deadline is not null and w.lease_seconds is not null)
             ) is not true as contradictory,
           s.leased and (w.number > n.last_value or e.number is null) as unknown_token,
           s.leased and w.number is distinct from
             case w.came_from when 'PENDING' then w.entry else w.before end as other_token,
           s.leased and (r.due <= w.deadline) is not true as unreachable,
           s.leased and w.deadline > clock_timestamp() + make_interval(secs => w.lease_seconds) as endless,
           s.leased and w.deadline + greatest(make_interval(secs => 2 * w.lease_seconds), '10 s') < now()
             as stuck
    from helix.batch b
    full join helix.work w on w.batch = b.id
    cross join lateral (select coalesce(w.state in ('ASSIGNED', 'RUNNING'), false) as leased) s
    cross join helix.entry_id n
    left join helix.queue q on q.id = coalesce(b.queue, w.queue)
    left join allowed a on a.id = q.id
    left join helix.lane l on l.id = w.lane
    left join helix.run u on u.id = w.run
    left join erased on erased.batch = b.id
    left join unnamed on unnamed.batch = b.id
    left join helix.epoch e on e.number = w.epoch
    left join (select q.number, min(q.due) as due from helix.request q group by q.number) r
      on s.leased and r.number = w.number
  ),
  bad as materialized (
    select c.* from compared c
    where c.unplaced or c.unasked or c.half_retired or c.tombstone_edited or c.other_key or c.payload_gone
       or c.identity_gone
       or c.other_queue or c.other_lane or c.other_options or c.queueless or c.exhausted
       or c.contradictory or c.unknown_token or c.other_token or c.unreachable or c.stuck or c.endless
  )
  -- name: work_doubled
  -- promise: G2
  -- means: A batch has two rows in helix.work, so two workers could get it; the primary key is gone or
  --        corrupt.
  -- action: Run helixq recover, delete one of the rows, then restore the primary key.
  select 'work_doubled', jsonb_build_object('batch', w.batch, 'rows', count(*))
  from helix.work w group by w.batch having count(*) > 1
  union all
  -- name: batch_without_work
  -- promise: G5
  -- means: The batch was acknowledged, but has no row in helix.work: no worker will ever get it.
  -- action: Restore the row from its last step, or submit a new revision.
  select 'batch_without_work', jsonb_build_object('batch', b.batch, 'tenant', b.tenant, 'queue', b.queue)
  from bad b where b.unplaced
  union all
  -- name: work_without_batch
  -- promise: G5
  -- means: A row of work has no row in helix.batch.
  -- action: Restore helix.batch from a backup.
  select 'work_without_batch', jsonb_build_object('batch', b.batch, 'state', b.state)
  from bad b where b.unasked
  union all
  -- name: retired_in_part
  -- promise: G4
  -- means: A retired batch still has a payload, a row of work or texts: it was deleted in part.
  -- action: Retention is one transaction, so this was done by hand; delete the rest or restore it.
  select 'retired_in_part', jsonb_build_object('batch', b.batch) from bad b where b.half_retired
  union all
  select 'retired_in_part', jsonb_build_object('batch', r.batch, 'version', r.version)
  from helix.result r join helix.batch b on b.id = r.batch where b.retired_at is not null
  union all
  -- name: tombstone_edited
  -- promise: G1
  -- means: What retention left of a batch was edited, or a batch that was not retired looks as if.
  -- action: Restore the row from a backup; repeats of this submission may get another receipt.
  select 'tombstone_edited', jsonb_build_object('batch', b.batch) from bad b where b.tombstone_edited
  union all
  -- name: key_not_derived
  -- promise: G1
  -- means: The key does not follow from tenant, queue, identity and revision: one of them was edited, and
  --        a repeat of this submission would be taken for new work.
  -- action: Restore the edited column.
  select 'key_not_derived', jsonb_build_object('batch', b.batch, 'tenant', b.tenant, 'queue', b.queue)
  from bad b where b.other_key
  union all
  -- name: payload_gone
  -- promise: G5
  -- means: The payload is empty, but no decision records its erasure.
  -- action: Restore it from a backup.
  select 'payload_gone', jsonb_build_object('batch', b.batch, 'tenant', b.tenant, 'queue', b.queue)
  from bad b where b.payload_gone
  union all
  -- name: identity_gone
  -- promise: G1
  -- means: The identity is empty, but no decision records that it was erased, or that none was submitted.
  -- action: Restore it from a backup; the key shows whether it is the right one.
  select 'identity_gone', jsonb_build_object('batch', b.batch, 'tenant', b.tenant, 'queue', b.queue)
  from bad b where b.identity_gone
  union all
  -- name: queue_differs
  -- promise: G10
  -- means: helix.batch and helix.work name different queues: one tenant may see another's row.
  -- action: Restore the edited row; the key and the hash of the ledger entry show the right one.
  select 'queue_differs', jsonb_build_object('batch', b.batch, 'tenant', b.tenant, 'queue', b.queue)
  from bad b where b.other_queue
  union all
  -- name: wrong_lane
  -- promise: G2
  -- means: The batch is in a lane of another queue, requirement class or priority than was submitted: the
  --        wrong workers would get it.
  -- action: Cancel the batch and submit a new revision.
  select 'wrong_lane', jsonb_build_object('batch', b.batch, 'queue', b.queue, 'lane', b.lane)
  from bad b where b.other_lane
  union all
  -- name: options_edited
  -- promise: G2
  -- means: The row has another limit key, start time or expiry than was submitted: it is not counted where it
  --        should be, or begins or ends at another time.
  -- action: Cancel the batch and submit a new revision.
  select 'options_edited', jsonb_build_object('batch', b.batch) from bad b where b.other_options
  union all
  -- name: queue_missing
  -- promise: G6
  -- means: The batch belongs to a queue that does not exist: no claim will find its settings.
  -- action: Restore the row of helix.queue with its id from a backup.
  select 'queue_missing', jsonb_build_object('batch', b.batch, 'state', b.state)
  from bad b where b.queueless
  union all
  -- name: attempt_above_max
  -- promise: G6
  -- means: The batch has had more attempts than its queue ever allowed.
  -- action: Its count was edited, or attempts were not counted; cancel it if it fails every worker.
  select 'attempt_above_max', jsonb_build_object('batch', b.batch, 'attempt', b.attempt, 'most', b.most)
  from bad b where b.exhausted
  union all
  -- name: work_contradictory
  -- promise: G6
  -- means: The columns of the row contradict its state: no claim finds the batch, or one finds it though
  --        it must wait, or a lease has no token.
  -- action: The row was edited; set pending, cause and due as next_step in 31_record.sql demands.
  select 'work_contradictory', jsonb_build_object('batch', b.batch, 'state', b.state)
  from bad b where b.contradictory
  union all
  -- name: token_unknown
  -- promise: G2
  -- means: The number of a lease has not been drawn yet, or its epoch is unknown: the sequence was set
  --        back, and a token could be issued twice.
  -- action: Run helixq recover: a new epoch makes every old token differ.
  select 'token_unknown', jsonb_build_object('batch', b.batch, 'worker', b.actor)
  from bad b where b.unknown_token
  union all
  -- name: token_not_claim
  -- promise: G2
  -- means: The number of a lease is not the ledger entry of its claim: another token than the holder's
  --        would be accepted.
  -- action: Run helixq recover: it ends the lease, and every old token is refused.
  select 'token_not_claim', jsonb_build_object('batch', b.batch, 'worker', b.actor)
  from bad b where b.other_token
  union all
  -- name: lease_unreachable
  -- promise: G6
  -- means: No claim call leads the reaper to this lease in time: if its worker dies, it never ends.
  -- action: Release the batch (helixq batch release), or run helixq recover.
  select 'lease_unreachable', jsonb_build_object('batch', b.batch, 'worker', b.actor,
                                                 'deadline', b.deadline)
  from bad b where b.unreachable
  union all
  -- name: lease_endless
  -- promise: G6
  -- means: The deadline of a lease is further away than its length: no renewal wrote it, and the batch waits for
  --        a worker that may be dead.
  -- action: Release the batch (helixq batch release).
  select 'lease_endless', jsonb_build_object('batch', b.batch, 'worker', b.actor, 'deadline', b.deadline)
  from bad b where b.endless
  union all
  -- name: lease_stuck
  -- promise: G6
  -- means: The lease expired more than twice its length ago: no worker claims any more, or something
  --        keeps its row locked.
  -- action: Start a worker or the service, or call helix.reap_v1; if it stays, look into pg_locks.
  select 'lease_stuck', jsonb_build_object('batch', b.batch, 'worker', b.actor, 'deadline', b.deadline)
  from bad b where b.stuck
$$;

-- Rows that count: helix.ended, helix.key_limit and the sequences.
create function helix.read_check_counters() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  with ended as materialized (
    select coalesce(w.batch, e.batch) as batch, e.batch is null as missing
    from (select w.batch, w.queue, helix.ending(w.state) as ending, w.changed_at as at
          from helix.work w where w.state in ('COMPLETED', 'FAILED', 'CANCELLED')) w
    full join helix.ended e on e.batch = w.batch and e.queue = w.queue and e.ending = w.ending
                           and e.at = w.at
    where w.batch is null or e.batch is null
  )
  -- name: ended_missing
  -- promise: G4
  -- means: A finished batch is not in helix.ended: lists leave it out, and retention never finds it.
  -- action: Insert the row as the trigger record_step would have done.
  select 'ended_missing', jsonb_build_object('batch', e.batch) from ended e where e.missing
  union all
  -- name: ended_unknown
  -- promise: G4
  -- means: helix.ended lists an end that the batch did not have, or lists it twice.
  -- action: Delete the row; the ledger is the record.
  select 'ended_unknown', jsonb_build_object('batch', e.batch) from ended e where not e.missing
  union all
  -- name: held_count_wrong
  -- promise: G2
  -- means: The number of leases under a limit key is not what helix.key_limit counts: too many could
  --        run at once, or none ever again.
  -- action: The trigger record_step was off; see the invariants of the schema. Run helixq recover to end
  --         the leases of a key that is counted too low.
  select 'held_count_wrong', jsonb_build_object('queue', q.name, 'key', c.key, 'counted', c.held,
                                                'live', c.live)
  from (select coalesce(k.queue, w.queue) as queue, coalesce(k.key, w.limit_key) as key,
               coalesce(k.held, 0) as held, coalesce(w.live, 0) as live
        from helix.key_limit k
        full join (select w.queue, w.limit_key, count(*) as live from helix.work w
                   where w.state in ('ASSIGNED', 'RUNNING') and w.limit_key is not null
                   group by w.queue, w.limit_key) w on w.queue = k.queue and w.limit_key = k.key) c
  left join helix.queue q on q.id = c.queue
  where c.held <> c.live
  union all
  -- name: allocation_wrong
  -- promise: G2
  -- means: Devices, cores or memory count as held by a lease that has ended, or a live lease does not hold them.
  -- action: The trigger record_step was off; see the invariants of the schema. Run helixq recover to end the leases.
  select 'allocation_wrong', jsonb_build_object('host', a.host, 'device', a.device, 'batch', coalesce(a.batch, w.batch))
  from (select * from helix.allocation a where a.ended_at is null) a
  full join (select w.batch, w.number from helix.work w where w.state in ('ASSIGNED', 'RUNNING') and w.allocated = w.number) w
    on w.batch = a.batch and w.number = a.number
  where a.batch is null or w.batch is null
  union all
  -- name: sequence_near_end
  -- promise: G6
  -- means: A sequence has used nine tenths of its numbers: soon no batch can be submitted or claimed.
  -- action: Nothing of the engine draws so many: it was set ahead. Set it back above the highest number in use,
  --         then run helixq recover.
  select 'sequence_near_end', jsonb_build_object('sequence', s.sequencename, 'last_value', s.last_value)
  from pg_sequences s
  where s.schemaname = 'helix' and s.last_value > s.max_value / 10 * 9
  union all
  -- name: sequence_behind
  -- promise: G1
  -- means: A sequence is below a number that exists: the next submissions or claims would fail, or a
  --        number would be used twice.
  -- action: Set it ahead with setval, then run helixq recover.
  select 'sequence_behind', jsonb_build_object('sequence', s.name, 'last_value', s.last_value,
                                               'highest', s.highest)
  from (select 'batch_id', n.last_value, (select max(b.id) from helix.batch b) from helix.batch_id n
        union all
        select 'entry_id', n.last_value, (select max(e.id) from helix.entry e) from helix.entry_id n
        union all
        select 'fence_number', n.last_value, (select max(f.number) from helix.fence f)
        from helix.fence_number n
        union all
        select 'ledger_event_id', n.last_value, (select max(l.id) from helix.ledger_event l)
        from helix.ledger_event_id n
       ) as s (name, last_value, highest)
  where s.highest > s.last_value
  union all
  -- name: position_ahead
  -- promise: G5
  -- means: A reader of the ledger or a record is at a position that this database has not reached: an older state was
  --        restored without helixq recover, or the position was edited. Until it is reached, the reader gets nothing,
  --        and never what is written meanwhile.
  -- action: Stop all clients, run helixq recover, and rewind the feed that is named.
  select 'position_ahead', jsonb_build_object('of', p.name, 'position', p.position)
  from (select 'feed ' || f.name, f.position from helix.feed f
        union all
        select 'duty ' || t.duty, t.mark from helix.duty t where t.duty in ('metrics', 'reconcile')
        union all
        select 'ledger', max(e.position) from helix.entry e
        union all
        select 'user ledgers', max(l.feed_position) from helix.ledger_event l) as p (name, position)
  where p.position > greatest(
    helix.reached_position(),
    (select max(e.number) from helix.epoch e)::bigint << 40 | pg_snapshot_xmax(pg_current_snapshot())::text::bigint)
$$;

-- Records: refusals and decisions, each with a hash over its row; sources and dead letters.
create function helix.read_check_records() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
  -- name: record_edited
  -- promise: G3
  -- means: A refusal or a decision is not what was recorded: its hash does not match.
  -- action: Restore it from a backup.
  select 'record_edited', jsonb_build_object('table', 'refusal', 'batch', r.batch, 'worker', r.worker)
  from helix.refusal r where r.hash is distinct from helix.row_hash(to_jsonb(r))
  union all
  select 'record_edited', jsonb_build_object('table', 'decision', 'id', d.id, 'kind', d.kind)
  from helix.decision d where d.hash is distinct from helix.row_hash(to_jsonb(d))
  union all
  -- name: tenant_differs
  -- promise: G10
  -- means: A refusal or a decision names another tenant than its batch has: one tenant may see another's
  --        row.
  -- action: Restore the edited row; its hash shows whether it was the record.
  select 'tenant_differs', jsonb_build_object('table', 'refusal', 'batch', r.batch, 'tenant', r.tenant)
  from helix.refusal r join helix.batch b on b.id = r.batch join helix.queue q on q.id = b.queue
  where r.tenant <> q.tenant
  union all
  select 'tenant_differs', jsonb_build_object('table', 'decision', 'batch', d.batch, 'tenant', d.tenant)
  from helix.decision d join helix.batch b on b.id = d.batch join helix.queue q on q.id = b.queue
  where d.tenant <> q.tenant
  union all
  -- name: texts_of_other_queue
  -- promise: G10
  -- means: The texts of a step belong to another queue than its batch: one tenant may see another's.
  -- action: Restore the queue of the row in helix.result.
  select 'texts_of_other_queue', jsonb_build_object('batch', r.batch, 'version', r.version)
  from helix.result r join helix.batch b on b.id = r.batch where r.queue <> b.queue
  union all
  -- name: source_edited
  -- promise: G1
  -- means: The hash of a source does not follow from its texts, or it names a batch of another queue or none:
  --        a redelivery may be taken for new work.
  -- action: Restore the row of helix.source from a backup.
  select 'source_edited', jsonb_build_object('batch', s.batch, 'queue', q.name, 'id', s.id)
  from helix.source s
  left join helix.queue q on q.id = s.queue
  left join helix.batch b on b.id = s.batch
  where s.hash <> coalesce(helix.source_hash(q.tenant, s.kind, s.name, s.id), s.hash)
     or s.batch is not null and b.queue is distinct from s.queue
  union all
  -- name: letter_edited
  -- promise: G5
  -- means: A dead letter or its message is not what was recorded, or the message is missing although the letter
  --        is open.
  -- action: Restore the row of helix.dead_letter from a backup.
  select 'letter_edited', jsonb_build_object('letter', l.id, 'tenant', l.tenant, 'source', l.source)
  from helix.dead_letter l
  where l.hash <> helix.letter_hash(l)
     or l.complete and (l.digest <> sha256(l.body) or l.size <> octet_length(l.body)) is not false
     or l.status = 'open' and l.body is null and l.reason <> 'vanished'
     or l.status <> 'open' and l.closed_at is null
  union all
  -- name: letter_without_batch
  -- promise: G5
  -- means: A letter counts as redriven, but the batch that it became does not exist.
  -- action: Restore helix.batch from a backup, or submit the message again.
  select 'letter_without_batch', jsonb_build_object('letter', l.id, 'tenant', l.tenant)
  from helix.dead_letter l left join helix.batch b on b.id = l.batch
  where l.status = 'redriven' and b.id is null
$$;
