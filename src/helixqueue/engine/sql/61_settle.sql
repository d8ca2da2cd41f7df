-- What a worker does with its leases: start, renew, settle, release. Arrays run in parallel, one element
-- per batch. The token (epoch, nonce, number) is in every WHERE and decides, not the deadline: a late
-- write of a lease that was not reaped is accepted and marked late.

create function helix.start_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[]
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_entry bigint := helix.next_entry();
  v_held  record;      -- the tokens that own their lease: place and batch
  v_done  bigint[];    -- batches that are started here
  v_place integer[];   -- of their tokens
begin
  perform helix.enter();
  p_worker := helix.actor_of(p_worker);
  perform helix.demand_parallel(cardinality(p_batch), helix.shape(p_batch), helix.shape(p_epoch),
                                helix.shape(p_nonce), helix.shape(p_number));
  v_held := helix.lock_leases(p_worker, p_batch, p_epoch, p_nonce, p_number);
  with started as (
    update helix.work w
    set state = 'RUNNING', version = w.version + 1, version_before = w.version, reason = 'started',
        actor = p_worker,
        late = w.deadline < v_now, entry = v_entry, before = w.entry, came_from = w.state,
        changed_at = v_now, step = true, content = null
    where w.batch = any (v_held.batch) and w.state = 'ASSIGNED'
    returning w.batch
  )
  select coalesce(array_agg(s.batch), '{}') into v_done from started s;
  return query
    select w.batch, 'ok', null::text, w.state, w.late, false from helix.work w
    where w.batch = any (v_done);
  v_place := array(select p from unnest(v_held.place) p where p_batch[p] = any (v_done));
  if cardinality(v_place) < cardinality(p_batch) then
    return query select * from helix.answer_rest('start', p_worker, v_place, p_batch, p_epoch, p_nonce,
                                                 p_number, array_fill('started'::helix.reason,
                                                                      array[cardinality(p_batch)]));
  end if;
end
$$;

-- A renewal never waits: a batch that is being settled at this moment answers busy, and its renewal would
-- have been pointless. It is no step: only the deadline changes.
create function helix.renew_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[]
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_place  integer[];  -- of the tokens that own their lease
  v_mine   bigint[];   -- batches these tokens own, locked by others or not
  v_free   bigint[];   -- batches that are locked here
  v_done   bigint[];
begin
  perform helix.enter();
  p_worker := helix.actor_of(p_worker);
  perform helix.demand_parallel(cardinality(p_batch), helix.shape(p_batch), helix.shape(p_epoch),
                                helix.shape(p_nonce), helix.shape(p_number));
  v_free := array(select w.batch from helix.work w where w.batch = any (p_batch)
                  order by w.batch for update skip locked);
  v_place := array(select helix.owned(p_worker, p_batch, p_epoch, p_nonce, p_number));
  v_mine := array(select distinct p_batch[p] from unnest(v_place) p);
  v_done := array(select b from unnest(v_mine) b where b = any (v_free));
  return query
    with renewed as (
      update helix.work w
      set deadline = v_now + make_interval(secs => w.lease_seconds), step = false
      from helix.work o where w.batch = any (v_done) and o.batch = w.batch
      returning w.batch, w.state, o.deadline < v_now as late
    )
    select r.batch, 'ok', null::text, r.state, r.late, false from renewed r;
  if cardinality(v_done) = cardinality(p_batch) then
    return;
  end if;
  -- Owned but not locked here, hence locked by another call: busy.
  return query
    select b, 'busy', null::text, null::helix.state, false, false
    from unnest(v_mine) b where b <> all (v_done);
  if cardinality(v_place) < cardinality(p_batch) then
    return query select * from helix.answer_rest('renew', p_worker, v_place, p_batch, p_epoch, p_nonce,
                                                 p_number, array_fill(null::helix.reason,
                                                                      array[cardinality(p_batch)]));
  end if;
end
$$;

-- The positions of those tokens that own a live lease, without locking it.
create function helix.owned(
  p_worker text, p_batch bigint[], p_epoch int[], p_nonce bigint[], p_number bigint[]
) returns setof integer
language plpgsql as $$
declare
  v_queues integer[] := helix.scope_queues();
begin
  return query
    select u.place::integer
    from unnest(p_batch, p_epoch, p_nonce, p_number) with ordinality as u (batch, epoch, nonce, number, place)
    join helix.work w on w.batch = u.batch
    where w.number = u.number and w.epoch = u.epoch and w.state in ('ASSIGNED', 'RUNNING')
      and helix.is_worker(w.actor, p_worker)
      and (w.nonce = u.nonce or helix.lease_nonce(w.nonce, w.batch) = u.nonce)
      and (v_queues is null or w.queue = any (v_queues));
end
$$;

-- The end of attempts: completed with a result, or failed (permanently, or to be tried again). Within a
-- caller's transaction this is its last statement, so that its locks are short. Returns one answer per
-- settlement, or null where all of them were completed in time.
create function helix.settle(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_outcome text[],                       -- completed | failed
  p_result text[],                        -- completed: JSON text
  p_failure text[],                       -- failed: its class
  p_detail text[],                        -- failed: text for readers
  p_permanent boolean[],                  -- failed: true means do not try again
  p_after real[]                          -- failed: seconds to wait instead of the back-off
) returns helix.answer[]
language plpgsql as $$
declare
  v_done    integer[] := '{}';   -- positions of the tokens that ended their lease here
  v_answers helix.answer[] := '{}';
  v_late    boolean;
  v_completed record;
  v_held    record;      -- the tokens that own their lease: place and batch
  v_place   integer[];   -- of those that failed
begin
  -- One element that is the first is an array of the right shape.
  if cardinality(p_batch) = 1 and cardinality(p_epoch) = 1 and cardinality(p_nonce) = 1
     and cardinality(p_number) = 1 and cardinality(p_outcome) = 1 and p_outcome[1] = 'completed'
     and (p_result is null or cardinality(p_result) = 1 and p_result[1] is not null)
     and num_nonnulls(p_failure, p_detail, p_permanent, p_after) = 0
  then
    v_late := helix.complete_one(p_worker, p_batch[1], p_epoch[1], p_nonce[1], p_number[1], p_result[1]);
    if not v_late then
      return null;
    elsif v_late then
      return array[(p_batch[1], 'ok', null, 'COMPLETED', true, false)::helix.answer];
    end if;
  end if;
  perform helix.demand_parallel(
    cardinality(p_batch), helix.shape(p_batch), helix.shape(p_epoch), helix.shape(p_nonce),
    helix.shape(p_number), helix.shape(p_outcome), helix.shape(p_result), helix.shape(p_failure),
    helix.shape(p_detail), helix.shape(p_permanent), helix.shape(p_after));
  if not p_outcome <@ array['completed', 'failed'] then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected the outcome completed or failed, got %s',
                       (select coalesce(o, 'null') from unnest(p_outcome) o
                        where (o in ('completed', 'failed')) is not true limit 1));
  end if;
  if 'failed' = any (p_outcome) then
    -- Two statements below end leases, and each counts limit keys: all locks come first, rows before keys.
    v_held := helix.lock_leases(p_worker, p_batch, p_epoch, p_nonce, p_number);
    perform helix.lock_keys(p_batch);
  end if;
  if 'completed' = any (p_outcome) then
    v_completed := helix.complete(p_worker, p_batch, p_epoch, p_nonce, p_number, p_outcome, p_result);
    if cardinality(v_completed.batch) = cardinality(p_batch) and not true = any (v_completed.late) then
      return null;
    end if;
    v_done := v_completed.place;
    v_answers := array(select (c.batch, 'ok', null, 'COMPLETED', c.late, false)::helix.answer
                       from unnest(v_completed.batch, v_completed.late) as c (batch, late));
  end if;
  if 'failed' = any (p_outcome) then
    -- A call may name one token twice. Where it was also completed, that is its outcome.
    v_place := array(select p from unnest(v_held.place) p
                     where p_outcome[p] = 'failed'
                       and p_batch[p] <> all (array(select p_batch[d] from unnest(v_done) d)));
    if v_place <> '{}' then
      v_answers := v_answers || array(
        select v from (
          select array_agg(p_batch[p]) as batch, array_agg(p_failure[p]) as failure,
                 array_agg(p_detail[p]) as detail, array_agg(p_permanent[p]) as permanent,
                 array_agg(p_after[p]) as after
          from unnest(v_place) p) f
        cross join lateral helix.end_leases(f.batch, 'failed', p_worker, f.failure, f.detail,
                                            f.permanent, f.after) v);
      v_done := v_done || v_place;
    end if;
  end if;
  if cardinality(v_done) < cardinality(p_batch) then
    v_answers := v_answers || array(
      select j from helix.answer_rest(
        'settle', p_worker, v_done, p_batch, p_epoch, p_nonce, p_number, p_outcome::helix.reason[],
        array(select helix.content_hash(null, null, p_result[n])
              from generate_series(1, cardinality(p_batch)) n)) j);
  end if;
  return v_answers;
end
$$;

-- RUNNING > COMPLETED where the token owns the lease: one conditional update, which locks in the order of
-- batches. Returns the batches that it completed.
create function helix.complete(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_outcome text[], p_result text[], out place integer[], out batch bigint[], out late boolean[]
) language plpgsql as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_entry  bigint := nextval('helix.entry_id');  -- the caller has compared the timeline
  v_queues integer[] := helix.scope_queues();
  v_done   record;    -- in parallel arrays
begin
  with completed as (
    update helix.work w
    set state = 'COMPLETED', version = w.version + 1, version_before = w.version, reason = 'completed',
        late = w.deadline < v_now,
        actor = p_worker, entry = v_entry, before = w.entry, came_from = w.state, changed_at = v_now,
        step = true,
        content = case when u.result is not null then helix.content_hash(null, null, u.result) end
    from (select * from unnest(p_batch, p_epoch, p_nonce, p_number, p_outcome, p_result) with ordinality
                          as g (batch, epoch, nonce, number, outcome, result, place)
          where g.outcome = 'completed' order by g.batch offset 0) u
    where w.batch = u.batch and w.number = u.number and w.epoch = u.epoch and w.state = 'RUNNING'
      and helix.is_worker(w.actor, p_worker)
      and (w.nonce = u.nonce or helix.lease_nonce(w.nonce, w.batch) = u.nonce)
      and (v_queues is null or w.queue = any (v_queues))
    returning u.place, w.batch, w.number, w.version, w.queue, w.late, u.result
  )
  select array_agg(c.place::integer) as place, array_agg(c.batch) as batch, array_agg(c.number) as number, array_agg(c.version) as version,
         array_agg(c.queue) as queue, array_agg(c.late) as late, array_agg(c.result) as result,
         count(c.result) as results
  into v_done from completed c;
  if cardinality(v_done.batch) > 1 then
    perform helix.count_settled(v_done.number);
  end if;
  if v_done.results > 0 then
    insert into helix.result (batch, version, queue, result)
    select d.batch, d.version, d.queue, d.result::json
    from unnest(v_done.batch, v_done.version, v_done.queue, v_done.result)
      as d (batch, version, queue, result)
    where d.result is not null;
  end if;
  place := coalesce(v_done.place, '{}');
  batch := coalesce(v_done.batch, '{}');
  late := coalesce(v_done.late, '{}');
end
$$;

-- Counts settled leases in the rows of their claim calls (p_number: one element per lease). A claim call
-- without unsettled leases is no longer due, which saves the reaper about seven pages per lease. The count
-- is an upper bound: a row that another call locks is skipped, and leases that are settled one by one or
-- end otherwise are not counted. The reaper then reads the leases and finds that they ended.
create function helix.count_settled(p_number bigint[]) returns void
language plpgsql as $$
begin
  update helix.request r
  set unsettled = r.unsettled - s.leases, due = case when r.unsettled > s.leases then r.due end
  from (select q.id, c.leases
        from (select u.number, count(*)::integer as leases from unnest(p_number) as u (number)
              group by u.number) c
        join helix.request q on q.number = c.number
        for update of q skip locked) s
  where r.id = s.id;
end
$$;

-- `complete` for one batch, without arrays: for workers that run one batch after the other. Returns whether
-- it came late; null: nothing was done.
create function helix.complete_one(
  p_worker text, p_batch bigint, p_epoch integer, p_nonce bigint, p_number bigint, p_result text
) returns boolean
language plpgsql as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_entry  bigint := nextval('helix.entry_id');
  v_queues integer[] := helix.scope_queues();
  v_done   record;
begin
  update helix.work w
  set state = 'COMPLETED', version = w.version + 1, version_before = w.version, reason = 'completed',
      late = w.deadline < v_now,
      actor = p_worker, entry = v_entry, before = w.entry, came_from = w.state, changed_at = v_now,
      step = true,
      content = case when p_result is not null then helix.content_hash(null, null, p_result) end
  where w.batch = p_batch and w.number = p_number and w.epoch = p_epoch and w.state = 'RUNNING'
    and helix.is_worker(w.actor, p_worker)
    and (w.nonce = p_nonce or helix.lease_nonce(w.nonce, w.batch) = p_nonce)
    and (v_queues is null or w.queue = any (v_queues))
  returning w.version, w.queue, w.late into v_done;
  if found and p_result is not null then
    insert into helix.result (batch, version, queue, result)
    values (p_batch, v_done.version, v_done.queue, p_result::json);
  end if;
  return v_done.late;
end
$$;

-- `settle` as clients call it; claim_v1 calls the inner function.
create function helix.settle_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_outcome text[], p_result text[] default null, p_failure text[] default null,
  p_detail text[] default null, p_permanent boolean[] default null, p_after real[] default null
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_tenants text[] := helix.enter();
  v_epoch   integer := helix.current_epoch();  -- compares the timeline before an id is drawn
  v_answers helix.answer[];
begin
  p_worker := helix.actor_of(p_worker);
  v_answers := helix.settle(p_worker, p_batch, p_epoch, p_nonce, p_number, p_outcome, p_result, p_failure,
                            p_detail, p_permanent, p_after);
  if v_answers is not null then
    return query select * from unnest(v_answers);
  else
    return query select distinct u.batch, 'ok', null::text, 'COMPLETED'::helix.state, false, false
                 from unnest(p_batch) as u (batch);
  end if;
end
$$;

-- Returns unfinished leases of a worker that stops; the attempt is not counted.
create function helix.release_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_detail text default null
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_held record;   -- the tokens that own their lease: place and batch
begin
  perform helix.enter();
  p_worker := helix.actor_of(p_worker);
  perform helix.demand_parallel(cardinality(p_batch), helix.shape(p_batch), helix.shape(p_epoch),
                                helix.shape(p_nonce), helix.shape(p_number));
  v_held := helix.lock_leases(p_worker, p_batch, p_epoch, p_nonce, p_number);
  if v_held.batch <> '{}' then
    return query select * from helix.end_leases(v_held.batch, 'released', p_worker, null,
                                                array_fill(p_detail, array[cardinality(v_held.batch)]));
  end if;
  if cardinality(v_held.place) < cardinality(p_batch) then
    return query select * from helix.answer_rest('release', p_worker, v_held.place, p_batch, p_epoch,
                                                 p_nonce, p_number,
                                                 array_fill('released'::helix.reason,
                                                            array[cardinality(p_batch)]));
  end if;
end
$$;
