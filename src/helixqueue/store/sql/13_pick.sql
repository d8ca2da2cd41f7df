-- Which batches a worker gets: what fits its resources, from which lanes, in which order. The rows are
-- locked here and moved in 14_claim.sql. Read `choose` at the end first.

-- What a worker has free, read once from its JSON. A field that is not there is none of it.
create type helix.resources as (
  gpus        integer,
  gpu_vram_gb real,
  cpu_cores   real,
  ram_gb      real,
  disk_gb     real,
  labels      jsonb
);

-- Fields that a worker does not name count as nothing, so it is never given what it may not have.
create function helix.read_resources(p_free jsonb) returns helix.resources
language sql stable as $$
  select jsonb_populate_record(row(0, 0, 0, 0, 0, '{}')::helix.resources, coalesce(p_free, '{}'))
$$;

-- The lanes of which a batch can run in what is free, and that are not known to be dry.
create function helix.fitting_lanes(p_queues text[], p_free helix.resources, p_dry integer[])
returns setof helix.lane
language sql stable as $$
  select l.* from helix.lane l
  where l.queue = any (p_queues) and l.id <> all (p_dry)
    -- Class 0 asks for nothing, and a worker may have named nothing.
    and (l.class = 0
         or (l.gpus <= p_free.gpus and l.gpu_vram_gb <= p_free.gpu_vram_gb
             and l.cpu_cores <= p_free.cpu_cores and l.ram_gb <= p_free.ram_gb
             and l.disk_gb <= p_free.disk_gb and l.labels <@ p_free.labels))
$$;

-- What a hint says of a lane; without one, before the first turn. A CASE and not a coalesce: only of
-- the former does the planner make an index condition.
create function helix.hinted(p_hint bigint[], p_hint_lane integer[], p_lane integer) returns bigint
language sql immutable as $$
  select case when p_hint[array_position(p_hint_lane, p_lane)] is null then -1
              else p_hint[array_position(p_hint_lane, p_lane)] end
$$;

-- The lanes that may run on this worker and have something behind its hints that this call has not
-- looked at (p_passed), from most urgent to least; equals take turns by chance.
-- Whether a lane is empty is asked by its order for a session that sees all tenants, and tenant by
-- tenant for one that does not: it must not step over a backlog of others. It is asked lane by lane
-- until p_most have said no: who wants one batch does not look into twenty lanes. Of a lane that has
-- just given something (there is a hint) it is not asked: it will show when batches are taken.
create function helix.lanes_for(
  p_queues text[], p_tenants text[], p_free helix.resources, p_dry integer[],
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[], p_passed bigint[],
  p_most integer
) returns table (id integer, queue text, priority smallint, served_at timestamptz, gpus integer,
                 cpu_cores real, ram_gb real, disk_gb real, turn bigint, batch bigint)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_tenants is null then
    return query
      select f.*
      from (select l.id, l.queue, l.priority, l.served_at, l.gpus, l.cpu_cores, l.ram_gb, l.disk_gb,
                   helix.hinted(p_hint_turn, p_hint_lane, l.id) as turn,
                   helix.hinted(p_hint_batch, p_hint_lane, l.id) as batch
            from helix.fitting_lanes(p_queues, p_free, p_dry) l
            order by l.priority + random() offset 0) f
      where f.turn >= 0
         or exists (select from helix.ready r
                    where r.lane = f.id and (r.turn, r.batch) > (f.turn, f.batch)
                      and r.batch <> all (p_passed))
      limit p_most;
  else
    return query
      select f.*
      from (select l.id, l.queue, l.priority, l.served_at, l.gpus, l.cpu_cores, l.ram_gb, l.disk_gb,
                   helix.hinted(p_hint_turn, p_hint_lane, l.id) as turn,
                   helix.hinted(p_hint_batch, p_hint_lane, l.id) as batch
            from helix.fitting_lanes(p_queues, p_free, p_dry) l
            order by l.priority + random() offset 0) f
      where exists (select from unnest(p_tenants) as mine (tenant)
                    where exists (select from helix.ready r
                                  where r.lane = f.id and r.tenant = mine.tenant
                                    and r.turn >= f.turn and (r.turn, r.batch) > (f.turn, f.batch)
                                    and r.batch <> all (p_passed)))
      limit p_most;
  end if;
end
$$;

-- Locks the next batches of each lane, as many as its share, passing over what others have locked
-- (and over p_passed, which this call has in hand). `plain` is false where a batch is paused,
-- limited or expired and needs a closer look.
create function helix.pick(
  p_lane integer[], p_queue text[], p_share integer[], p_turn bigint[], p_batch bigint[],
  p_tenants text[], p_passed bigint[]
) returns table (batch bigint, tuple tid, lane integer, queue text, lease_seconds real, plain boolean)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_tenants is null then
    return query
      select r.batch, r.ctid, u.lane, u.queue, q.lease_seconds,
             helix.is_plain(r.limit_key, r.expires_at, q.paused)
      from unnest(p_lane, p_queue, p_share, p_turn, p_batch) as u (lane, queue, share, turn, batch)
      cross join lateral (
        select n.batch, n.ctid, n.tenant, n.limit_key, n.expires_at from helix.ready n
        where n.lane = u.lane and (n.turn, n.batch) > (u.turn, u.batch)
          and n.batch <> all (p_passed)
        order by n.turn, n.batch limit u.share for update skip locked) r
      -- Beside the rows and not joined to them: joined, the planner may start from the queues and
      -- sort a whole lane for five rows.
      cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                          where s.tenant = r.tenant and s.name = u.queue offset 0) q;
  else
    return query
      select r.batch, r.ctid, u.lane, u.queue, q.lease_seconds,
             helix.is_plain(r.limit_key, r.expires_at, q.paused)
      from unnest(p_lane, p_queue, p_share, p_turn, p_batch) as u (lane, queue, share, turn, batch)
      cross join lateral (
        select one.* from unnest(p_tenants) as mine (tenant)
        cross join lateral (
          select n.batch, n.ctid, n.tenant, n.turn, n.limit_key, n.expires_at from helix.ready n
          where n.lane = u.lane and n.tenant = mine.tenant and n.turn >= u.turn
            and (n.turn, n.batch) > (u.turn, u.batch) and n.batch <> all (p_passed)
          order by n.turn limit u.share for update skip locked) one
        order by one.turn, one.batch limit u.share) r
      cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                          where s.tenant = r.tenant and s.name = u.queue offset 0) q;
  end if;
end
$$;

-- Whether a ready batch can be leased as it is: rows with a limit key, past their expiry or of a
-- paused queue need a look each.
create function helix.is_plain(p_limit_key text, p_expires_at timestamptz, p_paused boolean)
returns boolean
language sql volatile as $$
  select not p_paused and p_limit_key is null
     and (p_expires_at is null or p_expires_at > clock_timestamp())
$$;

-- The closer look at what pick called not plain: expired batches are cancelled, paused and
-- over-limit ones step aside into waiting. Returns those that may be leased after all. p_taken is
-- what the call will lease already: it is not counted under its limit keys yet.
create function helix.set_aside(p_batch bigint[], p_taken bigint[], p_worker text) returns bigint[]
language plpgsql as $$
declare
  v_blocked  bigint[];
  v_leasable bigint[];
begin
  perform helix.expire(p_batch, p_worker);

  -- Limits: a key that another claim is counting right now is passed over; its row lock is what
  -- keeps two claims from both taking the last place.
  with counted as materialized (
    select k.tenant, k.queue, k.key, k.held from helix.key_limit k
    where (k.tenant, k.queue, k.key) in (
      select r.tenant, l.queue, r.limit_key from helix.ready r join helix.lane l on l.id = r.lane
      where r.batch = any (p_batch) and r.limit_key is not null)
    order by k.tenant, k.queue, k.key for update skip locked
  ),
  taken as materialized (
    select r.tenant, l.queue, r.limit_key as key, count(*) as held
    from helix.ready r join helix.lane l on l.id = r.lane
    where r.batch = any (p_taken) and r.limit_key is not null group by 1, 2, 3
  )
  select array_agg(f.batch) filter (where f.fits and not f.paused),
         array_agg(f.batch) filter (where f.paused or not f.fits)
  into v_leasable, v_blocked
  from (
    select r.batch, q.paused,
           r.limit_key is null
           or counted.held + coalesce(taken.held, 0)
              + row_number() over (partition by r.tenant, l.queue, r.limit_key
                                   order by r.turn, r.batch) <= q.key_limit as fits
    from helix.ready r
    join helix.lane l on l.id = r.lane
    join helix.queue q on q.tenant = r.tenant and q.name = l.queue
    left join counted on (counted.tenant, counted.queue, counted.key)
                         = (r.tenant, l.queue, r.limit_key)
    left join taken on (taken.tenant, taken.queue, taken.key) = (r.tenant, l.queue, r.limit_key)
    where r.batch = any (p_batch)) f;

  if v_blocked is not null then
    -- What stands behind them for the same cause goes with them, a thousand at a time: a claim that
    -- met a paused backlog one by one would not come to its end.
    v_blocked := v_blocked || array(
      select n.batch from helix.ready n
      where n.batch = any (array(
          select c.batch
          from (select r.lane, r.tenant, q.paused, array_agg(r.limit_key) as keys
                from helix.ready r
                join helix.lane l on l.id = r.lane
                join helix.queue q on q.tenant = r.tenant and q.name = l.queue
                where r.batch = any (v_blocked) group by 1, 2, 3) b
          cross join lateral (
            select r.batch, r.limit_key from helix.ready r
            where r.lane = b.lane and r.tenant = b.tenant order by r.turn limit 1000) c
          where b.paused or c.limit_key = any (b.keys)))
        and n.batch <> all (p_batch) and n.batch <> all (p_taken)
      for update skip locked);
    with aside as (
      delete from helix.ready r where r.batch = any (v_blocked) returning r.*
    )
    insert into helix.waiting (batch, tenant, version, attempt, epoch, number, actor, reason, detail,
                               late, moved, lane, queue, cause, limit_key, expires_at)
    select a.batch, a.tenant, a.version, a.attempt, a.epoch, a.number, a.actor, a.reason, a.detail,
           a.late, true, a.lane, l.queue,
           -- The queue may have been resumed since it was found paused. What has no limit key would
           -- wait for one for ever; as paused it comes back with the next promotion.
           case when q.paused or a.limit_key is null then 'paused' else 'limit' end::helix.cause,
           a.limit_key, a.expires_at
    from aside a
    join helix.lane l on l.id = a.lane
    join helix.queue q on q.tenant = a.tenant and q.name = l.queue;
  end if;
  return coalesce(v_leasable, '{}');
end
$$;

-- What a claim will lease, in parallel arrays; the rows in ready are locked.
create type helix.choice as (
  batch         bigint[],
  tuple         tid[],     -- where it stands in ready, and cannot move from while it is locked
  queue         text[],
  lease_seconds real[],
  stale         boolean    -- some lane's `served` is older than a second
);

-- How many of these, from the first, one answer carries: until their payloads make 16 MiB. It is held
-- whole in memory by the server, the service and the worker, and a payload may have 1 MiB.
create function helix.portion(p_batch bigint[]) returns integer
language sql stable as $$
  select count(*)::integer
  from (select sum(octet_length(b.payload::text))
                 over (order by u.place rows between unbounded preceding and 1 preceding) as before
        from unnest(p_batch) with ordinality as u (batch, place)
        join helix.batch b on b.id = u.batch) c
  where c.before is null or c.before < 16 * 1024 * 1024
$$;

-- Up to p_count batches, locked: most urgent first, an even share of each lane, no more than the
-- worker has room for. What is not plain steps aside here.
create function helix.choose(
  p_worker text, p_queues text[], p_tenants text[], p_free helix.resources, p_count integer,
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[]
) returns helix.choice
language plpgsql as $$
declare
  v_choice    helix.choice := ('{}', '{}', '{}', '{}', false);
  v_free      helix.resources := p_free;
  v_lanes     record;            -- the lanes of a pass, in parallel arrays
  v_each      integer;           -- an even share of them
  v_share     integer[];
  v_got       record;            -- what they gave, in parallel arrays
  v_dry       integer[] := '{}'; -- lanes that gave all they have, or all that others have not locked
  v_passed    bigint[] := '{}';  -- what this call has looked at
  v_kept      bigint[];
  v_fruitless integer := 0;      -- passes that met nothing but what had to step aside
  v_wanted    integer := p_count;
begin
  while v_wanted > 0 loop
    -- One pass: the lanes of the most urgent priority that has anything.
    select array_agg(f.id) as id, array_agg(f.queue) as queue, array_agg(f.turn) as turn,
           array_agg(f.batch) as batch, count(*)::integer as n, min(f.found)::integer as found,
           bool_or(f.served_at < clock_timestamp() - interval '1 s') as stale,
           sum(f.gpus) as gpus, sum(f.cpu_cores) as cpu_cores, sum(f.ram_gb) as ram_gb,
           sum(f.disk_gb) as disk_gb
    into v_lanes
    from (select l.*, min(l.priority) over () as most_urgent, count(*) over () as found
          from helix.lanes_for(p_queues, p_tenants, v_free, v_dry, p_hint_lane, p_hint_turn,
                               p_hint_batch, v_passed, least(v_wanted, 64)) l) f
    where f.priority = f.most_urgent;
    exit when v_lanes.n = 0;
    v_choice.stale := v_choice.stale or v_lanes.stale;
    v_each := ceil(v_wanted::real / v_lanes.n);
    if v_each * v_lanes.gpus <= v_free.gpus and v_each * v_lanes.cpu_cores <= v_free.cpu_cores
       and v_each * v_lanes.ram_gb <= v_free.ram_gb and v_each * v_lanes.disk_gb <= v_free.disk_gb
    then
      v_share := array_fill(v_each, array[v_lanes.n]);
    else
      v_share := helix.share_out(v_lanes.id, v_each, v_free);
    end if;

    select array_agg(c.batch) as batch, array_agg(c.tuple) as tuple, array_agg(c.lane) as lane,
           array_agg(c.queue) as queue, array_agg(c.lease_seconds) as lease_seconds,
           array_agg(c.batch) filter (where c.plain) as plain,
           array_agg(c.batch) filter (where not c.plain) as odd
    into v_got
    from helix.pick(v_lanes.id, v_lanes.queue, v_share, v_lanes.turn, v_lanes.batch, p_tenants,
                    v_passed) c;
    if v_got.batch is null then
      v_dry := v_dry || v_lanes.id;
      continue;
    end if;
    if cardinality(v_got.batch) < v_wanted then
      v_dry := v_dry || array(select u.lane from unnest(v_lanes.id, v_share) as u (lane, share)
                              where u.share > cardinality(array_positions(v_got.lane, u.lane)));
    end if;
    v_passed := v_passed || v_got.batch;
    if v_got.odd is not null then
      -- A claim is one of many: it does a part of such work and leaves the rest to the next.
      v_kept := coalesce(v_got.plain, '{}') || helix.set_aside(v_got.odd, v_choice.batch,
                                                                p_worker);
      v_fruitless := v_fruitless + (v_kept = '{}')::int;
      exit when v_fruitless = 10;
      -- What stepped aside uses nothing of the worker's.
      select array_agg(g.batch) as batch, array_agg(g.tuple) as tuple, array_agg(g.lane) as lane,
             array_agg(g.queue) as queue, array_agg(g.lease_seconds) as lease_seconds
      into v_got
      from unnest(v_got.batch, v_got.tuple, v_got.lane, v_got.queue, v_got.lease_seconds)
        as g (batch, tuple, lane, queue, lease_seconds)
      where g.batch = any (v_kept);
      continue when v_got.batch is null;
    end if;
    -- A share rounds up, so the lanes together may have given a few too many; those stay ready.
    v_choice.batch := v_choice.batch || v_got.batch[1 : v_wanted];
    v_choice.tuple := v_choice.tuple || v_got.tuple[1 : v_wanted];
    v_choice.queue := v_choice.queue || v_got.queue[1 : v_wanted];
    v_choice.lease_seconds := v_choice.lease_seconds || v_got.lease_seconds[1 : v_wanted];
    -- Where these were all the lanes there are, and they gave all they have, a second look finds
    -- nothing: the usual case of a worker that waits and is woken.
    exit when v_lanes.found = v_lanes.n and v_lanes.n < least(v_wanted, 64) and v_dry @> v_lanes.id;
    v_wanted := p_count - cardinality(v_choice.batch);
    if v_wanted > 0 then
      select v_free.gpus - sum(l.gpus), v_free.gpu_vram_gb, v_free.cpu_cores - sum(l.cpu_cores),
             v_free.ram_gb - sum(l.ram_gb), v_free.disk_gb - sum(l.disk_gb), v_free.labels
      into v_free
      from unnest(v_got.lane) as taken (lane) join helix.lane l on l.id = taken.lane;
    end if;
  end loop;
  return v_choice;
end
$$;

-- Shares of lanes that together ask for more than is free: lane by lane, what still fits. Memory of a
-- device is a threshold, the rest is used up.
create function helix.share_out(p_lane integer[], p_each integer, p_free helix.resources)
returns integer[]
language plpgsql as $$
declare
  v_left  helix.resources := p_free;
  v_lane  helix.lane;
  v_fits  integer;
  v_share integer[] := '{}';
begin
  for n in 1 .. cardinality(p_lane) loop
    select * into v_lane from helix.lane l where l.id = p_lane[n];
    v_fits := least(p_each, v_left.gpus / nullif(v_lane.gpus, 0),
                    floor(v_left.cpu_cores / nullif(v_lane.cpu_cores, 0)),
                    floor(v_left.ram_gb / nullif(v_lane.ram_gb, 0)),
                    floor(v_left.disk_gb / nullif(v_lane.disk_gb, 0)));
    v_left.gpus := v_left.gpus - v_fits * v_lane.gpus;
    v_left.cpu_cores := v_left.cpu_cores - v_fits * v_lane.cpu_cores;
    v_left.ram_gb := v_left.ram_gb - v_fits * v_lane.ram_gb;
    v_left.disk_gb := v_left.disk_gb - v_fits * v_lane.disk_gb;
    v_share := v_share || v_fits;
  end loop;
  return v_share;
end
$$;

-- `choose` for a worker that sees all tenants and wants one batch: one statement. Null where
-- what stands first is not plain; then it takes the longer way.
create function helix.choose_one(
  p_queues text[], p_free helix.resources, p_hint_lane integer[], p_hint_turn bigint[],
  p_hint_batch bigint[]
) returns helix.choice
language plpgsql as $$
declare
  v_one record;
begin
  select r.batch, r.ctid as tuple, f.queue, q.lease_seconds,
         helix.is_plain(r.limit_key, r.expires_at, q.paused) as plain,
         f.served_at < clock_timestamp() - interval '1 s' as stale
  into v_one
  from (select l.id, l.queue, l.served_at from helix.fitting_lanes(p_queues, p_free, '{}') l
        order by l.priority + random() offset 0) f
  cross join lateral (
    select n.batch, n.ctid, n.tenant, n.limit_key, n.expires_at from helix.ready n
    where n.lane = f.id and (n.turn, n.batch) > (helix.hinted(p_hint_turn, p_hint_lane, f.id),
                                                 helix.hinted(p_hint_batch, p_hint_lane, f.id))
    order by n.turn, n.batch limit 1 for update skip locked) r
  cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                      where s.tenant = r.tenant and s.name = f.queue offset 0) q
  limit 1;
  return case when v_one.batch is null then ('{}', '{}', '{}', '{}', false)::helix.choice
              when v_one.plain then (array[v_one.batch], array[v_one.tuple], array[v_one.queue],
                                     array[v_one.lease_seconds], v_one.stale)::helix.choice end;
end
$$;
