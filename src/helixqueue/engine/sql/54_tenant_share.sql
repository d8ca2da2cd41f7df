-- Shares of tenants: where several tenants have work for a worker, each gets the same number of batches, whatever its
-- lanes and priorities; priorities order the work of one tenant (decision 57).

-- The queues of a tenant in the lanes that fit a worker, most urgent first, in parallel arrays. Claims look past
-- different tenants of one lane to different turns, so each pair has a hint of its own, under a number that no lane has.
create type helix.tenant_lanes as (
  tenant    text,
  queue     integer[],
  lane      integer[],
  hint      integer[],
  served_at timestamptz[],
  gpus      integer,       -- the largest requirements of the lanes
  cpu_cores real,
  ram_gb    real,
  disk_gb   real
);

-- Sixteen counters of turns between tenants. A sequence counts without waiting and without dead rows: an update of
-- a counter would make concurrent claims wait, and would grow while a snapshot is held. Claims whose lanes differ use
-- different ones, mostly: two workers that claim in turn from one counter could each meet one tenant only.
do $$
begin
  for n in 0 .. 15 loop
    execute format('create sequence helix.tenant_turn_%s', n);
  end loop;
end
$$;

-- Whether claims from these queues share out among tenants. Beyond the bound they take the lanes as a whole, in
-- which tenants alternate: to look at each tenant would cost more than the claim.
create function helix.is_shared(p_queues text[], p_mine integer[]) returns boolean
language plpgsql stable as $$
declare
  v_is_lone boolean;
  v_queues  integer[];
begin
  -- The usual case first: all lanes list the same queue.
  select min(o.queues) = max(o.queues) and cardinality(max(o.queues)) = 1 into v_is_lone
  from helix.lane o where o.queue = any (p_queues) and not o.idle and o.queues <> '{}';
  if v_is_lone is not false then
    return false;
  end if;
  v_queues := array(
    select distinct m.queue
    from helix.lane l
    -- A lane with too many queues is one row, and ends the look.
    cross join lateral unnest(case when cardinality(l.queues) > helix.share_bound() then '{0}'
                                   else l.queues end) as m (queue)
    where l.queue = any (p_queues) and not l.idle and (p_mine is null or m.queue = any (p_mine) or m.queue = 0));
  if cardinality(v_queues) < 2 or 0 = any (v_queues) then
    return false;
  end if;
  -- By look-ups (OFFSET): to count the different tenants, the planner would read all queues in the order of tenants.
  return (select count(distinct o.tenant)
          from (select q.tenant from helix.queue q where q.id = any (v_queues) offset 0) o)
         between 2 and helix.share_bound();
end
$$;

-- The tenants that have work for these free resources which this call has not looked at, by name, without p_served.
create function helix.tenants_with_work(
  p_queues text[], p_mine integer[], p_free helix.resources, p_hint_lane integer[], p_hint_turn bigint[],
  p_hint_batch bigint[], p_seen bigint[], p_served text[]
) returns helix.tenant_lanes[]
language plpgsql
-- A few hundred pairs of lane and queue: look-ups would compare each with each tenant.
set enable_hashjoin = on set enable_sort = on as $$
begin
  return array(
    with pair as materialized (
      select m.queue, l.id as lane, -(l.id % 33554432 * 64 + m.place::integer) as hint,
             l.priority + random() as rank, l.served_at, l.gpus, l.cpu_cores, l.ram_gb, l.disk_gb
      from helix.fitting_lanes(p_queues, p_free, p_free.misfits) l
      cross join lateral unnest(l.queues) with ordinality as m (queue, place)
      where p_mine is null or m.queue = any (p_mine)
    ),
    owner as materialized (
      select q.id, q.tenant from helix.queue q
      where q.id = any (array(select distinct p.queue from pair p)) and q.tenant <> all (p_served)
    ),
    grouped as materialized (
      select s.tenant, array_agg(s.queue) as queue, array_agg(s.lane) as lane, array_agg(s.hint) as hint,
             array_agg(s.served_at) as served_at, max(s.gpus) as gpus, max(s.cpu_cores) as cpu_cores,
             max(s.ram_gb) as ram_gb, max(s.disk_gb) as disk_gb
      from (select o.tenant, p.* from pair p join owner o on o.id = p.queue order by o.tenant, p.rank) s
      group by s.tenant
    )
    select row(g.*)::helix.tenant_lanes from grouped g
    where (select true from unnest(g.queue, g.lane, g.hint) as m (queue, lane, hint)
           cross join lateral (
             select from helix.work w
             where w.pending and w.queue = m.queue and w.lane = m.lane
               and (w.turn, w.batch) > (helix.hinted(p_hint_turn, p_hint_lane, m.hint),
                                        helix.hinted(p_hint_batch, p_hint_lane, m.hint))
               and w.batch <> all (p_seen)
             order by w.turn, w.batch limit 1) w
           limit 1)
    order by g.tenant);
end
$$;

-- How many batches fit the free resources, whichever lanes of these tenants they come from.
create function helix.number_that_fits(p_tenants helix.tenant_lanes[], p_free helix.resources) returns integer
language sql stable as $$
  select least(1000, p_free.gpus / nullif(max(t.gpus), 0),
               floor(p_free.cpu_cores / nullif(max(t.cpu_cores), 0)),
               floor(p_free.ram_gb / nullif(max(t.ram_gb), 0)),
               floor(p_free.disk_gb / nullif(max(t.disk_gb), 0)))::integer
  from unnest(p_tenants) t
$$;

-- Locks up to p_count batches, of each tenant as many, one tenant after the other, and of each tenant its most
-- urgent; equal priorities in random order. `served`: tenants that gave less than their share. Null: fewer than two
-- tenants have work.
create function helix.pick_shares(
  p_queues text[], p_mine integer[], p_free helix.resources, p_count integer, p_hint_lane integer[],
  p_hint_turn bigint[], p_hint_batch bigint[], p_seen bigint[], p_served text[],
  out batch bigint[], out tuple tid[], out lane integer[], out turn bigint[], out queue integer[],
  out hint integer[], out bytes integer[], out lease_seconds real[], out plain bigint[], out odd bigint[],
  out stale boolean, out served text[]
) language plpgsql as $$
#variable_conflict use_column
declare
  v_tenants helix.tenant_lanes[] := helix.tenants_with_work(
    p_queues, p_mine, p_free, p_hint_lane, p_hint_turn, p_hint_batch, p_seen, p_served);
  v_number  integer := cardinality(v_tenants);
  v_count   integer;
  v_counter regclass;
  v_turns   bigint[];  -- of tenants that get one more than the others; the first one begins
begin
  if v_number < 2 then
    return;
  end if;
  v_count := least(p_count, helix.number_that_fits(v_tenants, p_free));
  v_counter := format('helix.tenant_turn_%s', (
    select sum(l.lane) % 16 from unnest(v_tenants) t cross join lateral unnest(t.lane) as l (lane)))::regclass;
  v_turns := array(select nextval(v_counter) % v_number
                   from generate_series(1, greatest(v_count % v_number, 1)));
  with share as (
    select t.tenant, t.queue, t.lane, t.hint, t.served_at, (t.place - 1 - v_turns[1] + v_number) % v_number as nth,
           v_count / v_number + case when v_count % v_number = 0 then 0
                                     else cardinality(array_positions(v_turns, t.place - 1)) end as number
    from unnest(v_tenants) with ordinality
      as t (tenant, queue, lane, hint, served_at, gpus, cpu_cores, ram_gb, disk_gb, place)
  ),
  picked as (
    select s.tenant, r.*, row_number() over (partition by s.tenant) as round, s.nth, q.lease_seconds,
           helix.is_plain(r.limit_key, r.expires_at, q.paused) as plain
    from share s
    cross join lateral (
      select w.*, m.lane, m.hint, m.served_at
      from unnest(s.queue, s.lane, s.hint, s.served_at) as m (queue, lane, hint, served_at)
      cross join lateral (
        select n.batch, n.ctid, n.turn, n.queue, n.bytes, n.limit_key, n.expires_at from helix.work n
        where n.pending and n.queue = m.queue and n.lane = m.lane
          and (n.turn, n.batch) > (helix.hinted(p_hint_turn, p_hint_lane, m.hint),
                                   helix.hinted(p_hint_batch, p_hint_lane, m.hint))
          and n.batch <> all (p_seen)
        order by n.turn, n.batch limit s.number for update skip locked) w
      limit s.number) r
    cross join lateral (select x.lease_seconds, x.paused from helix.queue x where x.id = r.queue offset 0) q
  )
  select array_agg(p.batch order by p.round, p.nth), array_agg(p.ctid order by p.round, p.nth),
         array_agg(p.lane order by p.round, p.nth), array_agg(p.turn order by p.round, p.nth),
         array_agg(p.queue order by p.round, p.nth), array_agg(p.hint order by p.round, p.nth),
         array_agg(p.bytes order by p.round, p.nth), array_agg(p.lease_seconds order by p.round, p.nth),
         array_agg(p.batch) filter (where p.plain), array_agg(p.batch) filter (where not p.plain),
         bool_or(p.served_at < clock_timestamp() - interval '1 s'),
         array(select s.tenant from share s
               where s.number > (select count(*) from picked k where k.tenant = s.tenant))
  into batch, tuple, lane, turn, queue, hint, bytes, lease_seconds, plain, odd, stale, served
  from picked p;
end
$$;
