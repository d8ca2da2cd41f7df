-- What a worker does with its leases: start, renew, settle, release. Arrays run in parallel, one
-- element a batch; the token (epoch, nonce, number) is in every WHERE, and the token decides, not
-- the deadline: a late write of a lease that nobody reaped is accepted and marked late.

create function helix.start_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[]
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_done bigint[];
begin
  perform helix.enter();
  select h.batch into v_done from helix.hold(p_batch, p_epoch, p_nonce, p_number) h;
  with started as (
    update helix.active a
    set state = 'RUNNING', version = a.version + 1, reason = 'started', actor = p_worker,
        late = a.deadline < clock_timestamp()
    where a.batch = any (v_done) and a.state = 'ASSIGNED'
    returning a.batch
  )
  select coalesce(array_agg(s.batch), '{}') into v_done from started s;
  return query
    select a.batch, 'ok', null::text, a.state, a.late from helix.active a
    where a.batch = any (v_done);
  if cardinality(v_done) < cardinality(p_batch) then
    return query select * from helix.judge_rest('start', p_worker, v_done, p_batch, p_epoch, p_nonce,
                                                p_number, array_fill('started'::helix.reason,
                                                                     array[cardinality(p_batch)]));
  end if;
end
$$;

-- judge, for what is not among the done. Two attempts at one batch may come in one call, and then only
-- one of them did it: the one whose token the batch's last event has.
create function helix.judge_rest(
  p_operation text, p_worker text, p_done bigint[], p_batch bigint[], p_epoch int[],
  p_nonce bigint[], p_number bigint[], p_reason helix.reason[]
) returns setof helix.answer
language sql volatile as $$
  select j.* from (
    select array_agg(u.batch) as batch, array_agg(u.epoch) as epoch, array_agg(u.nonce) as nonce,
           array_agg(u.number) as number, array_agg(u.reason) as reason
    from unnest(p_batch, p_epoch, p_nonce, p_number, p_reason)
      as u (batch, epoch, nonce, number, reason)
    where u.batch <> all (p_done)
       or (u.epoch, u.number) <> (
            select e.epoch, e.number from helix.event e
            where e.batch = u.batch order by e.version desc limit 1)) rest
  cross join lateral helix.judge(p_operation, p_worker, rest.batch, rest.epoch, rest.nonce,
                                 rest.number, rest.reason) j
$$;

-- Renewals never wait: a batch that is being settled at this moment answers busy, and its renewal
-- would have been pointless. No event: nothing changed but a deadline.
create function helix.renew_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[]
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_mine bigint[];   -- batches these tokens own, locked or not
  v_done bigint[];
  v_late boolean[];
begin
  perform helix.enter();
  with free as materialized (
    select a.batch, a.epoch, a.nonce, a.number, a.deadline < clock_timestamp() as late
    from helix.active a where a.batch = any (p_batch) order by a.batch for update skip locked
  )
  select coalesce(array_agg(f.batch) filter (where f.mine), '{}'),
         array_agg(f.late) filter (where f.mine)
  into v_done, v_late
  from (select l.batch, l.late,
               (l.batch, l.epoch, l.nonce, l.number) in (
                 select u.batch, u.epoch, u.nonce, u.number
                 from unnest(p_batch, p_epoch, p_nonce, p_number)
                   as u (batch, epoch, nonce, number)) as mine
        from free l) f;
  update helix.active a set deadline = clock_timestamp() + make_interval(secs => a.lease_seconds)
  where a.batch = any (v_done);
  return query
    select d.batch, 'ok', null::text, a.state, d.late
    from unnest(v_done, v_late) as d (batch, late) join helix.active a on a.batch = d.batch;
  if cardinality(v_done) = cardinality(p_batch) then
    return;
  end if;
  -- Owned all the same, hence locked by somebody: busy.
  v_mine := array(
    select o.batch
    from (select a.batch, (a.batch, a.epoch, a.nonce, a.number) in (
                   select u.batch, u.epoch, u.nonce, u.number
                   from unnest(p_batch, p_epoch, p_nonce, p_number)
                     as u (batch, epoch, nonce, number)) as mine
          from helix.active a where a.batch = any (p_batch) offset 0) o
    where o.mine and o.batch <> all (v_done));
  return query
    select b, 'busy', null::text, null::helix.state, false from unnest(v_mine) b;
  v_done := v_done || v_mine;
  if cardinality(v_done) < cardinality(p_batch) then
    return query select * from helix.judge_rest('renew', p_worker, v_done, p_batch, p_epoch, p_nonce,
                                                p_number, array_fill(null::helix.reason,
                                                                     array[cardinality(p_batch)]));
  end if;
end
$$;

-- One attempt that ended well, in one statement: for workers that run one batch after the other.
-- Whether it came late; null: nothing was done, because the token is not the owner's or the batch
-- was not started.
create function helix.complete_one(
  p_worker text, p_batch bigint, p_epoch integer, p_nonce bigint, p_number bigint, p_result text
) returns boolean
language plpgsql as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_late boolean;
begin
  with completed as (
    delete from helix.active a
    where a.batch = p_batch and a.epoch = p_epoch and a.nonce = p_nonce and a.number = p_number
      and a.state = 'RUNNING'
    returning a.batch, a.tenant, a.version, a.attempt, a.deadline, a.lane, a.queue
  )
  insert into helix.outcome as o (batch, tenant, state, ending, version, attempt, epoch, number, actor,
                                  reason, late, lane, queue, result, finished_at)
  select c.batch, c.tenant, 'COMPLETED', 1, c.version + 1, c.attempt, p_epoch, p_number, p_worker,
         'completed', c.deadline < v_now, c.lane, c.queue, p_result::json, v_now
  from completed c
  returning o.late into v_late;
  return v_late;
end
$$;

-- The end of attempts: completed with a result, or failed (for good, or to be tried again).
-- Within a caller's transaction this is its last statement, so that its locks are brief.
create function helix.settle(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_outcome text[],                       -- completed | failed
  p_result text[],                        -- completed: JSON text
  p_failure text[],                       -- failed: its class
  p_detail text[],                        -- failed: what a person should read
  p_permanent boolean[],                  -- failed: true means do not try again
  p_after real[]                          -- failed: seconds to wait instead of the back-off
) returns helix.answer[]
language plpgsql as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_held    record;      -- the tokens that own their batch: place, batch and tuple, in parallel
  v_late    boolean;
  v_done    bigint[];
  v_answers helix.answer[] := '{}';
begin
  if cardinality(p_batch) = 1 and p_outcome[1] = 'completed' then
    v_late := helix.complete_one(p_worker, p_batch[1], p_epoch[1], p_nonce[1], p_number[1],
                                 p_result[1]);
    if v_late is not null then
      return array[(p_batch[1], 'ok', null, 'COMPLETED', v_late)::helix.answer];
    end if;
  end if;
  v_held := helix.hold(p_batch, p_epoch, p_nonce, p_number);
  if v_held.limited then
    perform helix.lock_keys(v_held.batch);
  end if;
  if 'completed' = any (p_outcome) then
    with completed as (
      -- Straight to the rows, which are locked and cannot move. Joined by batch, a plan made while the
      -- table was empty would read all of its index, and what was deleted since.
      delete from helix.active a using unnest(v_held.tuple, v_held.place) as u (tuple, place)
      where a.ctid = u.tuple and a.state = 'RUNNING' and p_outcome[u.place] = 'completed'
      returning a.batch, a.tenant, a.version, a.attempt, a.epoch, a.number, a.deadline, a.lane,
                a.queue, p_result[u.place] as given
    ),
    kept as (
      insert into helix.outcome (batch, tenant, state, ending, version, attempt, epoch, number, actor,
                                 reason, late, lane, queue, result, finished_at)
      select c.batch, c.tenant, 'COMPLETED', 1, c.version + 1, c.attempt, c.epoch, c.number, p_worker,
             'completed', c.deadline < v_now, c.lane, c.queue, c.given::json, v_now
      from completed c
      returning batch, late
    )
    select array_agg(k.batch),
           array_agg((k.batch, 'ok', null, 'COMPLETED', k.late)::helix.answer)
    into v_done, v_answers from kept k;
  end if;

  if 'failed' = any (p_outcome) then
    v_answers := v_answers || array(
      select v from (
        select array_agg(p_batch[p]) as batch, array_agg(p_failure[p]) as failure,
               array_agg(p_detail[p]) as detail, array_agg(p_permanent[p]) as permanent,
               array_agg(p_after[p]) as after
        from unnest(v_held.place) p where p_outcome[p] = 'failed') f
      cross join lateral helix.vacate(f.batch, 'failed', p_worker, f.failure, f.detail, f.permanent,
                                      f.after) v);
    v_done := v_done || array(select p_batch[p] from unnest(v_held.place) p
                              where p_outcome[p] = 'failed');
  end if;
  if coalesce(cardinality(v_done), 0) < cardinality(p_batch) then
    v_answers := v_answers || array(
      select j from helix.judge_rest('settle', p_worker, coalesce(v_done, '{}'), p_batch, p_epoch,
                                     p_nonce, p_number, p_outcome::helix.reason[]) j);
  end if;
  return v_answers;
end
$$;

-- `settle` as clients call it; claim_v1 calls the inner one.
create function helix.settle_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_outcome text[], p_result text[] default null, p_failure text[] default null,
  p_detail text[] default null, p_permanent boolean[] default null, p_after real[] default null
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
begin
  perform helix.enter();
  return query select * from unnest(helix.settle(p_worker, p_batch, p_epoch, p_nonce, p_number,
                                                 p_outcome, p_result, p_failure, p_detail,
                                                 p_permanent, p_after));
end
$$;

-- Given back unfinished by a worker that stops: costs no attempt.
create function helix.release_v1(
  p_worker text, p_batch bigint[], p_epoch integer[], p_nonce bigint[], p_number bigint[],
  p_detail text default null
) returns setof helix.answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_done bigint[];
begin
  perform helix.enter();
  select h.batch into v_done from helix.hold(p_batch, p_epoch, p_nonce, p_number) h;
  if v_done <> '{}' then
    return query select * from helix.vacate(v_done, 'released', p_worker, null,
                                            array_fill(p_detail, array[cardinality(v_done)]));
  end if;
  if cardinality(v_done) < cardinality(p_batch) then
    return query select * from helix.judge_rest('release', p_worker, v_done, p_batch, p_epoch,
                                                p_nonce, p_number,
                                                array_fill('released'::helix.reason,
                                                           array[cardinality(p_batch)]));
  end if;
end
$$;
