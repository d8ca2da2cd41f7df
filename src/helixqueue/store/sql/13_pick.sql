-- Which batches a worker gets: what fits its resources, from which lanes, in which order. The rows are
-- locked here and moved in 14_claim.sql.

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

-- Whether one batch of a class can run in what is free.
create function helix.fits(p_class helix.requirement_class, p_free helix.resources) returns boolean
language sql stable as $$
  select p_class.id = 0
      or (p_class.gpus <= p_free.gpus and p_class.gpu_vram_gb <= p_free.gpu_vram_gb
          and p_class.cpu_cores <= p_free.cpu_cores and p_class.ram_gb <= p_free.ram_gb
          and p_class.disk_gb <= p_free.disk_gb and p_class.labels <@ p_free.labels)
$$;

-- How many batches of a class fit. Memory of a device is a threshold, the rest is used up.
create function helix.capacity(p_class helix.requirement_class, p_free helix.resources)
returns integer
language sql stable as $$
  select least(1000000, p_free.gpus / nullif(p_class.gpus, 0),
               floor(p_free.cpu_cores / nullif(p_class.cpu_cores, 0)),
               floor(p_free.ram_gb / nullif(p_class.ram_gb, 0)),
               floor(p_free.disk_gb / nullif(p_class.disk_gb, 0)))::integer
$$;

-- What is left when that many batches of a class were taken.
create function helix.free_after(
  p_free helix.resources, p_class helix.requirement_class, p_taken integer
) returns helix.resources
language sql stable as $$
  select row(p_free.gpus - p_taken * p_class.gpus, p_free.gpu_vram_gb,
             p_free.cpu_cores - p_taken * p_class.cpu_cores,
             p_free.ram_gb - p_taken * p_class.ram_gb,
             p_free.disk_gb - p_taken * p_class.disk_gb, p_free.labels)::helix.resources
$$;

-- The lanes that may run on this worker and have something behind its hints that this call has not
-- looked at (p_passed), from most urgent to least; equals take turns by chance.
-- Whether a lane is empty is asked by its order for a session that sees all tenants, and tenant by
-- tenant for one that does not: it must not step over a backlog of others. It is asked lane by lane
-- until p_most have said no: who wants one batch does not look into twenty lanes.
create function helix.lanes_for(
  p_queues text[], p_tenants text[], p_free helix.resources, p_dry integer[],
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[], p_passed bigint[],
  p_most integer
) returns table (id integer, priority smallint, served_at timestamptz,
                 class helix.requirement_class, turn bigint, batch bigint)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_tenants is null then
    return query
      select f.id, f.priority, f.served_at, f.class, f.turn, f.batch
      from (select * from helix.fitting_lanes(p_queues, p_free, p_dry, p_hint_lane, p_hint_turn,
                                              p_hint_batch)
            order by priority, random() offset 0) f
      where exists (select from helix.ready r
                    where r.lane = f.id and (r.turn, r.batch) > (f.turn, f.batch)
                      and r.batch <> all (p_passed))
      limit p_most;
  else
    return query
      select f.id, f.priority, f.served_at, f.class, f.turn, f.batch
      from (select * from helix.fitting_lanes(p_queues, p_free, p_dry, p_hint_lane, p_hint_turn,
                                              p_hint_batch)
            order by priority, random() offset 0) f
      where exists (select from unnest(p_tenants) as mine (tenant)
                    where exists (select from helix.ready r
                                  where r.lane = f.id and r.tenant = mine.tenant
                                    and r.turn >= f.turn and (r.turn, r.batch) > (f.turn, f.batch)
                                    and r.batch <> all (p_passed)))
      limit p_most;
  end if;
end
$$;

-- The lanes whose class fits and that are not known to be dry, each with its hint; where there is none, before the first turn.
-- CASE and not coalesce: only of the former does the planner make an index condition here.
create function helix.fitting_lanes(
  p_queues text[], p_free helix.resources, p_dry integer[],
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[]
) returns table (id integer, priority smallint, served_at timestamptz,
                 class helix.requirement_class, turn bigint, batch bigint)
language sql stable as $$
  select l.id, l.priority, l.served_at, c,
         case when h.turn is null then -1 else h.turn end,
         case when h.batch is null then -1 else h.batch end
  from helix.lane l
  join helix.requirement_class c on c.id = l.class and helix.fits(c, p_free)
  left join unnest(p_hint_lane, p_hint_turn, p_hint_batch) as h (lane, turn, batch)
    on h.lane = l.id
  where l.queue = any (p_queues) and l.id <> all (p_dry)
$$;

-- Locks the next batches of each lane, as many as its share, passing over what others have locked
-- (and over p_passed, which this call has in hand). `plain` is false where a batch is paused,
-- limited or expired and needs a closer look. The queue is looked up beside the scan and not joined:
-- joined, the planner may start from the queues and sort a whole lane for five rows.
create function helix.pick(
  p_lane integer[], p_share integer[], p_turn bigint[], p_batch bigint[], p_tenants text[],
  p_passed bigint[]
) returns table (batch bigint, lane integer, turn bigint, plain boolean)
language plpgsql as $$
#variable_conflict use_column
begin
  if p_tenants is null then
    return query
      select r.batch, r.lane, r.turn, helix.is_plain(r.limit_key, r.expires_at, (
               select q.paused from helix.lane l
               join helix.queue q on q.tenant = r.tenant and q.name = l.queue where l.id = r.lane))
      from unnest(p_lane, p_share, p_turn, p_batch) as u (lane, share, turn, batch)
      cross join lateral (
        select n.batch, n.tenant, n.lane, n.turn, n.limit_key, n.expires_at from helix.ready n
        where n.lane = u.lane and (n.turn, n.batch) > (u.turn, u.batch)
          and n.batch <> all (p_passed)
        order by n.turn, n.batch limit u.share for update skip locked) r;
  else
    return query
      select r.batch, r.lane, r.turn, helix.is_plain(r.limit_key, r.expires_at, (
               select q.paused from helix.lane l
               join helix.queue q on q.tenant = r.tenant and q.name = l.queue where l.id = r.lane))
      from unnest(p_lane, p_share, p_turn, p_batch) as u (lane, share, turn, batch)
      cross join lateral (
        select one.* from unnest(p_tenants) as mine (tenant)
        cross join lateral (
          select n.batch, n.tenant, n.lane, n.turn, n.limit_key, n.expires_at from helix.ready n
          where n.lane = u.lane and n.tenant = mine.tenant and n.turn >= u.turn
            and (n.turn, n.batch) > (u.turn, u.batch) and n.batch <> all (p_passed)
          order by n.turn limit u.share for update skip locked) one
        order by one.turn, one.batch limit u.share) r;
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
                               late, lane, queue, cause, limit_key, expires_at)
    select a.batch, a.tenant, a.version, a.attempt, a.epoch, a.number, a.actor, a.reason, a.detail,
           a.late, a.lane, l.queue,
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
