-- Upkeep: what keeps work moving when time passes. Claims and services call these functions on a clock
-- (75_duty.sql). The time is read into a variable first: clock_timestamp() is volatile, and a volatile
-- comparison is no index condition, so each function would read the whole table.

-- Takes back leases whose deadline has passed, and returns their batches and the number of claim calls that
-- it looked at. `request.due` says which calls those are; p_from leaves out the calls that were due before it.
-- The row lock and the deadline are checked in one statement, so any number of reapers and a fast worker
-- cannot undo each other.
create function helix.reap(
  p_actor text, p_limit integer, p_from timestamptz default '-infinity',
  out lost bigint[], out visited integer
) language plpgsql
-- Claims switch sorting off; here that would read all of helix.work in order.
set enable_sort = on as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_id      uuid[];
  v_number  bigint[];
  v_live    bigint[];   -- numbers of the calls that have leases
  v_overdue bigint[];
begin
  lost := '{}';
  select array_agg(c.id), array_agg(c.number), count(*) into v_id, v_number, visited
  from (select r.id, r.number from helix.request r where r.due >= p_from and r.due < v_now
        order by r.due, r.number limit p_limit for update skip locked) c;
  if visited = 0 then
    return;
  end if;
  select array_agg(distinct w.number), array_agg(w.batch) filter (where w.deadline < v_now)
  into v_live, v_overdue
  from unnest(v_number) as n (number)
  join helix.entry e on e.id = n.number
  cross join lateral unnest(e.batch) as u (batch)
  -- A look-up for each lease: as a join it was planned, on a small table, as a scan of all of helix.work.
  cross join lateral (select l.batch, l.number, l.deadline from helix.work l
                      where l.batch = u.batch and l.number = n.number
                        and l.state in ('ASSIGNED', 'RUNNING') offset 0) w;
  if v_overdue is not null then
    lost := helix.skip_counted_keys(array(
      select w.batch from helix.work w
      where w.batch = any (v_overdue) and w.state in ('ASSIGNED', 'RUNNING') and w.deadline < v_now
      order by w.batch limit p_limit for update skip locked));
  end if;
  if lost <> '{}' then
    perform helix.end_leases(
      array_agg(w.batch), 'lost', p_actor, null,
      array_agg(format('%s did not renew before %s', w.actor, w.deadline)))
    from helix.work w where w.batch = any (lost);
  end if;
  -- When to look again: at the least deadline that is left, or never.
  update helix.request r
  set due = case when r.number = any (v_live) then (
              select min(w.deadline) from helix.entry e
              cross join lateral unnest(e.batch) as u (batch)
              cross join lateral (select l.deadline from helix.work l
                                  where l.batch = u.batch and l.number = e.id
                                    and l.state in ('ASSIGNED', 'RUNNING') offset 0) w
              where e.id = r.number) end
  from unnest(v_id) as c (id)
  where r.id = c.id;
end
$$;

-- `reap` as a duty. While an old snapshot is held, calls that were due stay in the index as dead entries, and
-- every run would read all of them. So the first run of every two seconds starts at the beginning and
-- notes its time as the mark (microseconds since 1970); the runs after it start one second before the mark.
create function helix.reap_since(p_actor text, p_limit integer) returns integer
language plpgsql as $$
declare
  v_now     bigint := extract(epoch from clock_timestamp()) * 1000000;
  v_mark    bigint := (select d.mark from helix.duty d where d.duty = 'reap');
  v_marked  boolean := v_mark / 2000000 = v_now / 2000000;
  v_visited integer;
  v_lost    bigint[];
begin
  select r.lost, r.visited into v_lost, v_visited
  from helix.reap(p_actor, p_limit, case when v_marked
                                         then to_timestamp(v_mark / 1000000.0) - interval '1 s'
                                         else '-infinity' end) r;
  -- After a run that came to its limit the next one starts at the beginning again.
  if not v_marked and v_visited < p_limit and cardinality(v_lost) < p_limit then
    update helix.duty d set mark = v_now where d.duty = 'reap';
  end if;
  return cardinality(v_lost);
end
$$;

-- Ending a lease under a limit key waits for the key's row, and a reaper must not wait: it leaves leases
-- whose key another call is counting to the next time.
create function helix.skip_counted_keys(p_batch bigint[]) returns bigint[]
language plpgsql as $$
begin
  if not exists (select from helix.work w where w.batch = any (p_batch) and w.limit_key is not null) then
    return p_batch;
  end if;
  return array(
    with locked as materialized (
      select k.queue, k.key from helix.key_limit k
      where (k.queue, k.key) in (select w.queue, w.limit_key from helix.work w
                                 where w.batch = any (p_batch))
      order by k.queue, k.key for update skip locked
    )
    select w.batch from helix.work w
    where w.batch = any (p_batch)
      and (w.limit_key is null or (w.queue, w.limit_key) in (select l.queue, l.key from locked l))
    order by w.batch);
end
$$;

-- Reaps now. Returns how many leases of the caller's tenants ended.
create function helix.reap_v1(p_actor text, p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_lost   bigint[];
  v_queues integer[];
begin
  perform helix.enter();
  v_queues := helix.scope_queues();
  perform set_config('helix.scope', '*', true);
  -- The actor is written to the ledgers of all tenants: a login of one tenant must not choose it.
  select r.lost into v_lost
  from helix.reap(case when v_queues is null then helix.actor_of(p_actor) else 'duty' end,
                  least(p_limit, 10000)) r;
  return (select count(*) from helix.work w
          where w.batch = any (v_lost) and (v_queues is null or w.queue = any (v_queues)));
end
$$;

-- The pairs of queue and cause that have waiting batches, found by one index look-up each.
create function helix.blocked_queues() returns table (queue integer, cause helix.cause)
language sql stable as $$
  with recursive pair as (
    (select w.queue, w.cause from helix.work w where w.cause is not null
     order by w.queue, w.cause limit 1)
    union all
    select n.queue, n.cause from pair p
    cross join lateral (
      select w.queue, w.cause from helix.work w
      where w.cause is not null and (w.queue, w.cause) > (p.queue, p.cause)
      order by w.queue, w.cause limit 1) n
  )
  select p.queue, p.cause from pair p
$$;

-- Makes waiting batches claimable where the cause has gone. It is no step: PENDING stays PENDING.
create function helix.promote(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return helix.make_claimable(
    array(select w.batch from helix.work w
          where w.cause = 'delay' and w.due <= v_now
          order by w.due limit p_limit for update skip locked)
    || array(select w.batch
             from helix.blocked_queues() b
             join helix.queue q on q.id = b.queue
             cross join lateral (
               select p.batch from helix.work p
               where p.cause = 'paused' and p.queue = b.queue
               order by p.batch limit p_limit for update skip locked) w
             where b.cause = 'paused' and not q.paused limit p_limit)
    -- `unblock` usually does this; a key whose release found its waiting rows locked is found here. As many
    -- as there is room for: the rest would only move back.
    || array(select w.batch
             from helix.blocked_queues() b
             join helix.queue q on q.id = b.queue
             join helix.key_limit k on k.queue = b.queue
             cross join lateral (
               select p.batch from helix.work p
               where p.cause = 'limit' and p.queue = k.queue and p.limit_key = k.key
               order by p.batch limit greatest(q.key_limit - k.held, 0)
               for update skip locked) w
             where b.cause = 'limit' and k.held < q.key_limit and not q.paused limit p_limit));
end
$$;

-- Each batch takes the next turn of its queue, as if it had been submitted now.
create function helix.make_claimable(p_batch bigint[]) returns integer
language plpgsql as $$
declare
  v_count integer;
begin
  if p_batch = '{}' then
    return 0;
  end if;
  perform helix.activate_lanes(p_batch);
  update helix.work w
  set step = false, pending = true, cause = null, due = null, turn = t.turn
  from (select f.batch, after.turn + row_number() over (partition by f.lane, f.queue
                                                        order by f.due, f.batch) as turn
        from helix.work f
        join (select d.lane, d.queue, helix.turn_after(d.lane, d.queue) as turn
              from (select distinct w.lane, w.queue from helix.work w
                    where w.batch = any (p_batch)) d) after
          on after.lane = f.lane and after.queue = f.queue
        where f.batch = any (p_batch)) t
  where w.batch = t.batch;
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Promotes now, for all tenants. Returns how many batches, to callers that act for all.
create function helix.promote_v1(p_limit integer default 1000) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_tenants text[] := helix.enter();
  v_count   integer;
begin
  perform set_config('helix.scope', '*', true);
  v_count := helix.promote(least(p_limit, 10000));
  return case when v_tenants is null then v_count else 0 end;
end
$$;

-- A limit key has capacity again: the most urgent batch that waits for it becomes claimable, and of equal ones
-- the oldest.
create function helix.unblock(p_queue integer, p_key text) returns integer
language plpgsql as $$
declare
  v_room integer;
begin
  select q.key_limit - k.held into v_room
  from helix.key_limit k join helix.queue q on q.id = k.queue
  where k.queue = p_queue and k.key = p_key;
  return helix.make_claimable(array(
    select w.batch from helix.work w
    where w.cause = 'limit' and w.queue = p_queue and w.limit_key = p_key
    order by (select l.priority from helix.lane l where l.id = w.lane), w.batch
    limit greatest(v_room, 0) for update skip locked));
end
$$;

-- Cancels batches, locked by the caller, that were not started before they expired.
create function helix.expire(p_batch bigint[], p_actor text) returns integer
language plpgsql as $$
declare
  v_due bigint[] := array(select w.batch from helix.work w
                          where w.batch = any (p_batch) and w.expires_at <= clock_timestamp()
                            and w.state = 'PENDING');
begin
  perform helix.cancel(v_due, 'expired', p_actor, null);
  return cardinality(v_due);
end
$$;

-- Finds what expired, oldest first.
create function helix.expire_due(p_actor text, p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return helix.expire(array(
    select w.batch from helix.work w
    where w.expires_at is not null and (w.pending or w.cause is not null) and w.expires_at <= v_now
    order by w.expires_at limit p_limit for update skip locked), p_actor);
end
$$;

-- Deletes the rows of limit keys that have no lease and no batch waiting for them; claims make new ones.
create function helix.forget_keys(p_queue integer[], p_key text[]) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.key_limit d where d.ctid = any (array(
    select k.ctid from helix.key_limit k
    where (k.queue, k.key) in (select u.queue, u.key from unnest(p_queue, p_key) as u (queue, key)) and k.held = 0
      and not exists (select from helix.work w where w.cause = 'limit' and w.queue = k.queue and w.limit_key = k.key)
    for update skip locked));
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;

-- The duty: all limit keys, and a row for those whose last batch began to wait in the moment of their deletion.
create function helix.forget_unused_keys(p_limit integer) returns integer
language plpgsql as $$
begin
  insert into helix.key_limit (queue, key)
  select distinct w.queue, w.limit_key from helix.work w
  where w.cause = 'limit'
    and not exists (select from helix.key_limit k where k.queue = w.queue and k.key = w.limit_key)
  on conflict do nothing;
  return (select coalesce(helix.forget_keys(array_agg(u.queue), array_agg(u.key)), 0)
          from (select k.queue, k.key from helix.key_limit k where k.held = 0 limit p_limit) u);
end
$$;

-- Deletes old request ids and login codes, and workers, lanes and limit keys that are no longer used.
create function helix.sweep(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.request r
  where r.id in (select o.id from helix.request o
                 where o.at < clock_timestamp() - interval '1 day' and o.due is null
                 limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  perform helix.list_queues(p_limit);
  return greatest(v_gone, helix.delete_old_logins(p_limit), helix.delete_old_workers(p_limit),
                  helix.idle_lanes(p_limit), helix.delete_old_intakes(p_limit),
                  helix.forget_unused_keys(p_limit));
end
$$;

-- Deletes workers that have not reported for a month, and what the processes of hosts without workers held for
-- longer: where every start has a new name, rows would accumulate.
create function helix.delete_old_workers(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.worker w
  where (w.tenant, w.name, w.role) in (select o.tenant, o.name, o.role from helix.worker o
                                       where o.last_seen < statement_timestamp() - interval '30 days'
                                       limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  delete from helix.allocation a where a.ended_at < statement_timestamp() - interval '30 days';
  return v_gone;
end
$$;
