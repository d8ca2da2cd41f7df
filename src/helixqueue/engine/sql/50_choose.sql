-- Which batches a worker gets: those that fit its resources, tenants in turn (54_tenant_share.sql), most urgent first. The
-- rows are locked here and leased in 51_claim.sql. Read `choose` at the end first.

-- The free resources of a worker, read once from its JSON.
create type helix.resources as (
  gpus        integer,
  gpu_vram_gb real,
  cpu_cores   real,
  ram_gb      real,
  disk_gb     real,
  labels      jsonb,
  host        text,      -- of a worker that owns devices,
  misfits     integer[]  -- and the lanes that do not fit them (55_device.sql)
);

-- A resource that the worker does not name counts as none.
create function helix.resources_of(p_free jsonb) returns helix.resources
language sql stable as $$
  select jsonb_populate_record(row(0, 0, 0, 0, 0, '{}', null, '{}')::helix.resources, coalesce(p_free, '{}'))
$$;

-- The queues that a claim may take from, by internal id; null: those of all tenants.
create function helix.claimable_queues(p_tenants text[], p_queues text[]) returns integer[]
language plpgsql stable as $$
begin
  if p_tenants is null then
    return null;
  end if;
  return array(select q.id from helix.queue q where q.tenant = any (p_tenants) and q.name = any (p_queues));
end
$$;

-- The active lanes whose work fits the free resources, except those known to be empty.
create function helix.fitting_lanes(p_queues text[], p_free helix.resources, p_empty integer[])
returns setof helix.lane
language sql stable as $$
  select l.* from helix.lane l
  where l.queue = any (p_queues) and not l.idle and l.id <> all (p_empty)
    -- Class 0 asks for nothing, and a worker may have named nothing.
    and (l.class = 0
         or (l.gpus <= p_free.gpus and l.gpu_vram_gb <= p_free.gpu_vram_gb
             and l.cpu_cores <= p_free.cpu_cores and l.ram_gb <= p_free.ram_gb
             and l.disk_gb <= p_free.disk_gb and l.labels <@ p_free.labels))
$$;

-- The hint for a lane; without one, before the first turn. A CASE and not a coalesce: the planner makes an
-- index condition only of the former.
create function helix.hinted(p_hint bigint[], p_hint_lane integer[], p_lane integer) returns bigint
language sql immutable as $$
  select case when p_hint[array_position(p_hint_lane, p_lane)] is null then -1
              else p_hint[array_position(p_hint_lane, p_lane)] end
$$;

-- The lanes that fit this worker and have batches which it may claim: batches after its hints that this
-- call has not looked at (p_seen). Most urgent first; equal priorities in random order. The search stops
-- after p_most lanes, so that a claim for one batch does not look into twenty.
-- A session for all tenants looks into a lane as a whole, and takes a lane with a hint without looking: it
-- had batches a moment ago. A session for some tenants looks at each of its queues (p_mine) in the lane,
-- because it must not step over the backlog of others.
create function helix.lanes_for(
  p_queues text[], p_mine integer[], p_free helix.resources, p_empty integer[],
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[], p_seen bigint[],
  p_most integer
) returns table (id integer, priority smallint, served_at timestamptz, gpus integer,
                 cpu_cores real, ram_gb real, disk_gb real, turn bigint, batch bigint)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_mine is null then
    return query
      select f.*
      from (select l.id, l.priority, l.served_at, l.gpus, l.cpu_cores, l.ram_gb, l.disk_gb,
                   helix.hinted(p_hint_turn, p_hint_lane, l.id) as turn,
                   helix.hinted(p_hint_batch, p_hint_lane, l.id) as batch
            from helix.fitting_lanes(p_queues, p_free, p_empty) l
            order by l.priority + random() offset 0) f
      where f.turn >= 0
         -- In the order of work_claim, which EXISTS would ignore: for a lane without work, PostgreSQL 18 may
         -- else look through the other index once per queue.
         or (select true from helix.work w
             where w.pending and w.lane = f.id and (w.turn, w.batch) > (f.turn, f.batch)
               and w.batch <> all (p_seen)
             order by w.turn, w.batch limit 1)
      limit p_most;
  else
    return query
      select f.*
      from (select l.id, l.priority, l.served_at, l.gpus, l.cpu_cores, l.ram_gb, l.disk_gb,
                   helix.hinted(p_hint_turn, p_hint_lane, l.id) as turn,
                   helix.hinted(p_hint_batch, p_hint_lane, l.id) as batch
            from helix.fitting_lanes(p_queues, p_free, p_empty) l
            order by l.priority + random() offset 0) f
      where exists (select from unnest(p_mine) as mine (queue)
                    where exists (select from helix.work w
                                  where w.pending and w.queue = mine.queue and w.lane = f.id
                                    and (w.turn, w.batch) > (f.turn, f.batch)
                                    and w.batch <> all (p_seen)))
      limit p_most;
  end if;
end
$$;

-- Locks the next batches of each lane, as many as its share, skipping what others have locked and what
-- this call has seen. `plain` is false where a batch is paused, limited or expired and needs a closer
-- look.
create function helix.pick(
  p_lane integer[], p_share integer[], p_turn bigint[], p_batch bigint[], p_mine integer[],
  p_seen bigint[]
) returns table (batch bigint, tuple tid, lane integer, turn bigint, queue integer, bytes integer,
                 lease_seconds real, plain boolean)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_mine is null then
    return query
      select r.batch, r.ctid, u.lane, r.turn, r.queue, r.bytes, q.lease_seconds,
             helix.is_plain(r.limit_key, r.expires_at, q.paused)
      from unnest(p_lane, p_share, p_turn, p_batch) as u (lane, share, turn, batch)
      cross join lateral (
        select n.batch, n.ctid, n.turn, n.bytes, n.queue, n.limit_key, n.expires_at from helix.work n
        where n.pending and n.lane = u.lane and (n.turn, n.batch) > (u.turn, u.batch)
          and n.batch <> all (p_seen)
        order by n.turn, n.batch limit u.share for update skip locked) r
      -- Beside the rows and not joined to them: joined, the planner may start from the queues and
      -- sort a whole lane for five rows.
      cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                          where s.id = r.queue offset 0) q;
  else
    return query
      select r.batch, r.ctid, u.lane, r.turn, r.queue, r.bytes, q.lease_seconds,
             helix.is_plain(r.limit_key, r.expires_at, q.paused)
      from unnest(p_lane, p_share, p_turn, p_batch) as u (lane, share, turn, batch)
      cross join lateral (
        select one.* from unnest(p_mine) as mine (queue)
        cross join lateral (
          select n.batch, n.ctid, n.turn, n.bytes, n.queue, n.limit_key, n.expires_at from helix.work n
          where n.pending and n.queue = mine.queue and n.lane = u.lane
            and (n.turn, n.batch) > (u.turn, u.batch) and n.batch <> all (p_seen)
          order by n.turn, n.batch limit u.share for update skip locked) one
        order by one.turn, one.batch limit u.share) r
      cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                          where s.id = r.queue offset 0) q;
  end if;
end
$$;

-- Whether a claimable batch can be leased as it is: one with a limit key, past its expiry or of a paused
-- queue cannot.
create function helix.is_plain(p_limit_key text, p_expires_at timestamptz, p_paused boolean)
returns boolean
language sql volatile as $$
  select not p_paused and p_limit_key is null
     and (p_expires_at is null or p_expires_at > clock_timestamp())
$$;

-- The closer look at batches that `pick` called not plain: expired ones are cancelled, those of paused
-- queues and full limit keys leave the claim order. Returns those that may be leased after all. p_taken is
-- what this call will lease already and has not counted under its limit keys yet.
create function helix.move_blocked(p_batch bigint[], p_taken bigint[], p_worker text) returns bigint[]
language plpgsql as $$
declare
  v_blocked  bigint[];
  v_leasable bigint[];
begin
  perform helix.expire(p_batch, p_worker);

  insert into helix.key_limit (queue, key)
  select distinct w.queue, w.limit_key from helix.work w
  where w.batch = any (p_batch) and w.pending and w.limit_key is not null
    and not exists (select from helix.key_limit k where k.queue = w.queue and k.key = w.limit_key)
  order by 1, 2 on conflict do nothing;
  -- A limit key that another claim is counting right now is skipped; its row lock keeps two claims from
  -- both taking the last place.
  with counted as materialized (
    select k.queue, k.key, k.held from helix.key_limit k
    where (k.queue, k.key) in (select w.queue, w.limit_key from helix.work w
                               where w.batch = any (p_batch) and w.pending and w.limit_key is not null)
    order by k.queue, k.key for update skip locked
  ),
  taken as materialized (
    select w.queue, w.limit_key as key, count(*) as held from helix.work w
    where w.batch = any (p_taken) and w.limit_key is not null group by 1, 2
  )
  select array_agg(f.batch) filter (where f.fits and not f.paused),
         array_agg(f.batch) filter (where f.paused or not f.fits)
  into v_leasable, v_blocked
  from (
    select w.batch, q.paused,
           coalesce(w.limit_key is null
             or counted.held + coalesce(taken.held, 0)
                + row_number() over (partition by w.queue, w.limit_key order by w.turn, w.batch)
                <= q.key_limit, false) as fits
    from helix.work w
    join helix.queue q on q.id = w.queue
    left join counted on counted.queue = w.queue and counted.key = w.limit_key
    left join taken on taken.queue = w.queue and taken.key = w.limit_key
    where w.batch = any (p_batch) and w.pending) f;

  if v_blocked is not null then
    -- What stands behind them for the same cause moves with them, a thousand at a time: a claim that met
    -- a paused backlog one by one would not finish.
    v_blocked := v_blocked || array(
      select n.batch from helix.work n
      where n.pending and n.batch <> all (p_batch) and n.batch <> all (p_taken)
        and n.batch = any (array(
          select c.batch
          from (select w.lane, w.queue, q.paused, array_agg(w.limit_key) as keys
                from helix.work w join helix.queue q on q.id = w.queue
                where w.batch = any (v_blocked) group by 1, 2, 3) b
          cross join lateral (
            select w.batch, w.limit_key from helix.work w
            where w.pending and w.queue = b.queue and w.lane = b.lane
            order by w.turn, w.batch limit 1000) c
          where b.paused or c.limit_key = any (b.keys)))
      for update skip locked);
    update helix.work w
    -- The queue may have been resumed since. A batch without a limit key would wait for one for ever; as
    -- paused it comes back with the next promotion.
    set step = false, pending = false,
        cause = case when q.paused or w.limit_key is null then 'paused' else 'limit' end::helix.cause
    from helix.queue q where q.id = w.queue and w.batch = any (v_blocked) and w.pending;
  end if;
  return coalesce(v_leasable, '{}');
end
$$;

-- What a claim will lease, in parallel arrays; the rows are locked.
create type helix.choice as (
  batch         bigint[],
  tuple         tid[],     -- the row's position, which cannot change while it is locked
  lane          integer[],
  turn          bigint[],
  queue         integer[],
  hint          integer[], -- under which the next claim finds how far this one looked
  bytes         integer[], -- lengths of the payloads
  lease_seconds real[],
  stale         boolean    -- some lane's `served` is older than a second
);

-- How many payloads, from the first, one answer carries: until they add up to 16 MiB. Server, service and
-- worker hold an answer in memory, and a payload may have 1 MiB.
create function helix.payload_prefix(p_bytes integer[]) returns integer
language sql immutable as $$
  select count(*)::integer
  from (select sum(u.bytes) over (order by u.place rows between unbounded preceding and 1 preceding)
                 as before
        from unnest(p_bytes) with ordinality as u (bytes, place)) c
  where c.before is null or c.before < 16 * 1024 * 1024
$$;

-- Up to p_count batches, locked: most urgent first, an even share of each lane, no more than fit into the
-- free resources. What is not plain leaves the claim order here.
create function helix.choose(
  p_worker text, p_queues text[], p_mine integer[], p_is_shared boolean, p_free helix.resources,
  p_count integer, p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[]
) returns helix.choice
language plpgsql as $$
declare
  v_choice    helix.choice := ('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', false);
  v_is_shared boolean := p_is_shared;  -- share out among tenants; then among lanes, of which one may be left
  v_served    text[] := '{}';    -- tenants that gave all they have, or all that others have not locked
  v_free      helix.resources := p_free;
  v_lanes     record;            -- the lanes of a pass, in parallel arrays
  v_each      integer;           -- an even share of them
  v_share     integer[];
  v_got       record;            -- what they gave, in parallel arrays
  v_empty     integer[] := p_free.misfits; -- and lanes that gave all they have, or all that others have not locked
  v_seen      bigint[] := '{}';  -- what this call has looked at
  v_kept      bigint[];
  v_fruitless integer := 0;      -- passes that met only batches which had to move
  v_wanted    integer := p_count;
begin
  while v_wanted > 0 loop
    if v_is_shared then
      select * into v_got
      from helix.pick_shares(p_queues, p_mine, v_free, v_wanted, p_hint_lane, p_hint_turn, p_hint_batch,
                             v_seen, v_served);
      v_served := v_served || v_got.served;
      v_choice.stale := v_choice.stale or coalesce(v_got.stale, false);
      v_is_shared := v_got.served is not null;
      continue when v_got.batch is null;
    else
      -- One pass: the lanes of the most urgent priority that has anything.
      select array_agg(f.id) as id, array_agg(f.turn) as turn,
             array_agg(f.batch) as batch, count(*)::integer as n, min(f.found)::integer as found,
             bool_or(f.served_at < clock_timestamp() - interval '1 s') as stale,
             sum(f.gpus) as gpus, sum(f.cpu_cores) as cpu_cores, sum(f.ram_gb) as ram_gb,
             sum(f.disk_gb) as disk_gb
      into v_lanes
      from (select l.*, min(l.priority) over () as most_urgent, count(*) over () as found
            from helix.lanes_for(p_queues, p_mine, v_free, v_empty, p_hint_lane, p_hint_turn,
                                 p_hint_batch, v_seen, least(v_wanted, 64)) l) f
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
             array_agg(c.turn) as turn, array_agg(c.queue) as queue, array_agg(c.lane) as hint,
             array_agg(c.bytes) as bytes, array_agg(c.lease_seconds) as lease_seconds,
             array_agg(c.batch) filter (where c.plain) as plain,
             array_agg(c.batch) filter (where not c.plain) as odd
      into v_got
      from helix.pick(v_lanes.id, v_share, v_lanes.turn, v_lanes.batch, p_mine, v_seen) c;
      if v_got.batch is null then
        v_empty := v_empty || v_lanes.id;
        continue;
      end if;
      if cardinality(v_got.batch) < v_wanted then
        v_empty := v_empty || array(select u.lane from unnest(v_lanes.id, v_share) as u (lane, share)
                                    where u.share > cardinality(array_positions(v_got.lane, u.lane)));
      end if;
    end if;
    v_seen := v_seen || v_got.batch;
    if v_got.odd is not null then
      -- A claim is one of many: it does a part of this work and leaves the rest to the next.
      v_kept := coalesce(v_got.plain, '{}') || helix.move_blocked(v_got.odd, v_choice.batch, p_worker);
      v_fruitless := v_fruitless + (v_kept = '{}')::int;
      exit when v_fruitless = 10;
      -- What moved uses none of the worker's resources.
      select array_agg(g.batch) as batch, array_agg(g.tuple) as tuple, array_agg(g.lane) as lane,
             array_agg(g.turn) as turn, array_agg(g.queue) as queue, array_agg(g.hint) as hint,
             array_agg(g.bytes) as bytes, array_agg(g.lease_seconds) as lease_seconds
      into v_got
      from unnest(v_got.batch, v_got.tuple, v_got.lane, v_got.turn, v_got.queue, v_got.hint, v_got.bytes, v_got.lease_seconds)
        as g (batch, tuple, lane, turn, queue, hint, bytes, lease_seconds)
      where g.batch = any (v_kept);
      continue when v_got.batch is null;
    end if;
    -- A share rounds up, so the lanes together may have given a few too many; those stay claimable.
    v_choice.batch := v_choice.batch || v_got.batch[1 : v_wanted];
    v_choice.tuple := v_choice.tuple || v_got.tuple[1 : v_wanted];
    v_choice.lane := v_choice.lane || v_got.lane[1 : v_wanted];
    v_choice.turn := v_choice.turn || v_got.turn[1 : v_wanted];
    v_choice.queue := v_choice.queue || v_got.queue[1 : v_wanted];
    v_choice.hint := v_choice.hint || v_got.hint[1 : v_wanted];
    v_choice.bytes := v_choice.bytes || v_got.bytes[1 : v_wanted];
    v_choice.lease_seconds := v_choice.lease_seconds || v_got.lease_seconds[1 : v_wanted];
    -- Where these were all the lanes there are, and they gave all they have, a second look finds
    -- nothing: the usual case of a worker that waits and is woken.
    if not v_is_shared then
      exit when v_lanes.found = v_lanes.n and v_lanes.n < least(v_wanted, 64) and v_empty @> v_lanes.id;
    end if;
    v_wanted := p_count - cardinality(v_choice.batch);
    if v_wanted > 0 then
      select v_free.gpus - sum(l.gpus), v_free.gpu_vram_gb, v_free.cpu_cores - sum(l.cpu_cores),
             v_free.ram_gb - sum(l.ram_gb), v_free.disk_gb - sum(l.disk_gb), v_free.labels, v_free.host, v_free.misfits
      into v_free
      from unnest(v_got.lane) as taken (lane) join helix.lane l on l.id = taken.lane;
    end if;
  end loop;
  return v_choice;
end
$$;

-- Shares of lanes that together ask for more than is free: lane by lane, what still fits. Memory of a
-- device is a threshold, the other resources are used up.
create function helix.share_out(p_lane integer[], p_each integer, p_free helix.resources) returns integer[]
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

-- What a claim for one batch found; the row is locked.
create type helix.chosen as (
  batch         bigint,
  tuple         tid,
  lane          integer,
  turn          bigint,
  queue         integer,
  lease_seconds real,
  plain         boolean,   -- it can be leased as it is
  stale         boolean    -- the lane's `served` is older than a second
);
