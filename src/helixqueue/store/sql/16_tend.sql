-- Duties that keep work moving. Claims do them by the way; these functions do them at once.
-- The time is read into a variable first: clock_timestamp() is volatile, and a volatile comparison
-- is no index condition, so each duty would read its whole table.

-- Duties that every claim shares, so that nothing stays stuck while anybody claims (G6). Sessions
-- that see all tenants take turns; one that is bound to some can only do a duty for those, so it
-- does not wait for its turn.
create function helix.tend(p_worker text, p_tenants text[], p_due text[]) returns void
language plpgsql as $$
begin
  if p_tenants is not null or 'reap' = any (p_due) then
    perform helix.reap(p_worker, 1000);
  end if;
  if p_tenants is not null or 'promote' = any (p_due) then
    perform helix.promote(1000);
  end if;
  if p_tenants is not null or 'expire' = any (p_due) then
    perform helix.expire_due(p_worker, 1000);
  end if;
  if 'sweep' = any (p_due) then
    perform helix.sweep(1000);
  end if;
end
$$;

-- Takes back leases whose deadline has passed. The row lock and the deadline are checked in one
-- statement, so any number of reapers and a fast worker cannot undo each other.
create function helix.reap(p_actor text, p_limit integer) returns integer
language plpgsql as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_lost bigint[];
begin
  select array_agg(l.batch) into v_lost from (
    select a.batch from helix.active a
    where a.deadline < v_now
    order by a.deadline limit p_limit for update skip locked) l;
  -- Freeing a limit key waits for its row; a reaper must not wait, so it leaves such leases to the
  -- next round when somebody else has the key.
  if exists (select from helix.active a where a.batch = any (v_lost) and a.limit_key is not null) then
    with counted as materialized (
      select k.tenant, k.queue, k.key from helix.key_limit k
      where (k.tenant, k.queue, k.key) in (select a.tenant, a.queue, a.limit_key
                                           from helix.active a where a.batch = any (v_lost))
      order by k.tenant, k.queue, k.key for update skip locked
    )
    select array_agg(a.batch) into v_lost from helix.active a
    where a.batch = any (v_lost)
      and (a.limit_key is null
           or (a.tenant, a.queue, a.limit_key) in (select c.tenant, c.queue, c.key from counted c));
  end if;
  if v_lost is null then
    return 0;
  end if;
  perform helix.vacate(
    array_agg(a.batch), 'lost', p_actor, null,
    array_agg(format('%s did not renew before %s', a.worker, a.deadline)))
  from helix.active a where a.batch = any (v_lost);
  return cardinality(v_lost);
end
$$;

-- For a service that reaps on its own clock; claims reap anyway.
create function helix.reap_v1(p_actor text, p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
begin
  perform helix.enter();
  return helix.reap(p_actor, least(p_limit, 10000));
end
$$;

-- From waiting to ready, where the cause is gone. No version and no event: PENDING stays PENDING.
create function helix.promote(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return helix.make_ready(
    array(select w.batch from helix.waiting w
          where w.cause = 'delay' and w.due <= v_now
          order by w.due limit p_limit for update skip locked)
    || array(select w.batch
             from (select distinct p.tenant, p.queue from helix.waiting p
                   where p.cause = 'paused') parked
             join helix.queue q on q.tenant = parked.tenant and q.name = parked.queue
             cross join lateral (
               select p.batch from helix.waiting p
               where p.cause = 'paused' and p.tenant = q.tenant and p.queue = q.name
               order by p.batch limit p_limit for update skip locked) w
             where not q.paused limit p_limit)
    -- The net under unblock, for a key whose freeing found its waiting rows locked.
    -- As many as there is room for: the rest would only step aside again.
    || array(select w.batch
             from (select distinct p.tenant, p.queue, p.limit_key from helix.waiting p
                   where p.cause = 'limit') kept
             join helix.key_limit k on k.tenant = kept.tenant and k.queue = kept.queue
                                   and k.key = kept.limit_key
             join helix.queue q on q.tenant = k.tenant and q.name = k.queue
             cross join lateral (
               select p.batch from helix.waiting p
               where p.cause = 'limit' and p.tenant = k.tenant and p.queue = k.queue
                 and p.limit_key = k.key
               order by p.batch limit greatest(q.key_limit - k.held, 0)
               for update skip locked) w
             where k.held < q.key_limit and not q.paused limit p_limit));
end
$$;

-- Each takes the next turn of its tenant, as if it had been submitted now.
create function helix.make_ready(p_batch bigint[]) returns integer
language plpgsql as $$
declare
  v_count integer;
begin
  if cardinality(p_batch) = 0 then
    return 0;
  end if;
  with freed as (
    delete from helix.waiting w where w.batch = any (p_batch) returning w.*
  )
  insert into helix.ready (batch, tenant, version, attempt, epoch, number, actor, reason, detail, late,
                           moved, lane, turn, limit_key, expires_at)
  select f.batch, f.tenant, f.version, f.attempt, f.epoch, f.number, f.actor, f.reason, f.detail,
         f.late, true, f.lane,
         behind.turn + row_number() over (partition by f.lane, f.tenant order by f.due, f.batch),
         f.limit_key, f.expires_at
  from freed f
  join (select places.lane, places.tenant, helix.turn_after(places.lane, places.tenant) as turn
        from (select distinct w.lane, w.tenant from helix.waiting w
              where w.batch = any (p_batch)) places) behind
    on behind.lane = f.lane and behind.tenant = f.tenant;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- For a service that promotes on its own clock; claims promote anyway.
create function helix.promote_v1(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
begin
  perform helix.enter();
  return helix.promote(least(p_limit, 10000));
end
$$;

-- A limit key has a place again: the most urgent of those that wait for it becomes claimable, and of
-- equals the one that waits longest.
create function helix.unblock(p_tenant text, p_queue text, p_key text) returns integer
language plpgsql as $$
declare
  v_room integer;
begin
  select q.key_limit - k.held into v_room
  from helix.key_limit k join helix.queue q on q.tenant = k.tenant and q.name = k.queue
  where k.tenant = p_tenant and k.queue = p_queue and k.key = p_key;
  return helix.make_ready(array(
    select w.batch from helix.waiting w
    where w.cause = 'limit' and w.tenant = p_tenant and w.queue = p_queue and w.limit_key = p_key
    order by (select l.priority from helix.lane l where l.id = w.lane), w.batch
    limit greatest(v_room, 0) for update skip locked));
end
$$;

-- Work that nobody began before its time ran out is cancelled.
create function helix.expire(p_batch bigint[], p_actor text) returns integer
language plpgsql as $$
declare
  v_count integer;
begin
  with gone as (
    delete from helix.ready r
    where r.batch = any (p_batch) and r.expires_at <= clock_timestamp()
    returning r.batch, r.tenant, r.version, r.attempt, r.lane, r.expires_at
  ),
  gone_waiting as (
    delete from helix.waiting w
    where w.batch = any (p_batch) and w.expires_at <= clock_timestamp()
    returning w.batch, w.tenant, w.version, w.attempt, w.lane, w.expires_at
  )
  insert into helix.outcome (batch, tenant, state, ending, version, attempt, actor, reason, detail, lane,
                             queue)
  select g.batch, g.tenant, 'CANCELLED', 3, g.version + 1, g.attempt, p_actor, 'expired',
         format('not begun before %s', g.expires_at), g.lane, l.queue
  from (select * from gone union all select * from gone_waiting) g
  join helix.lane l on l.id = g.lane;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Finds what nobody began in time, oldest first, and hands it to `expire`.
create function helix.expire_due(p_actor text, p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
  v_due bigint[];
begin
  v_due := array(select r.batch from helix.ready r where r.expires_at <= v_now
                 order by r.expires_at limit p_limit for update skip locked)
        || array(select w.batch from helix.waiting w where w.expires_at <= v_now
                 order by w.expires_at limit p_limit for update skip locked);
  if cardinality(v_due) = 0 then
    return 0;
  end if;
  return helix.expire(v_due, p_actor);
end
$$;

-- Adds the next partition of the ledger when the last is nine tenths full: ten million batches ahead,
-- and no earlier, because every step of a batch starts a scan on each.
create function helix.extend_ledger() returns void
language plpgsql as $$
declare
  v_partitions bigint;
begin
  select count(*) into v_partitions from pg_inherits where inhparent = 'helix.event'::regclass;
  if (select last_value from helix.batch_id) > (v_partitions - 0.1) * helix.event_partition_size() then
    perform helix.add_event_partition();
  end if;
end
$$;
