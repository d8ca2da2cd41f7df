-- Claims of workers that own devices. One call leases one batch: its devices are chosen and written in the transaction of the claim.
-- Read `claim_on_host` at the end first.

-- What a worker owns, shared by its slots and by all workers of its host, read once from its JSON.
create type helix.pool as (
  host            text,
  process         text,      -- of the worker; see helix.allocation
  cpu_cores       real,
  ram_gb          real,
  disk_gb         real,
  labels          jsonb,
  devices         jsonb,     -- list of helix.device
  grace_seconds   real,      -- after which a device is handed out although its former process may be running; null: never
  reserve_seconds real,      -- waiting time of wide work before it reserves devices
  gone            jsonb      -- ids of allocations whose processes this worker knows to be gone
);

create type helix.device as (
  uuid    text,
  index   integer,
  model   text,
  vram_gb real,
  cc      real,    -- compute capability
  fault   text     -- why it is not to be used; null: healthy
);

-- What is not named is not there.
create function helix.pool_of(p_free jsonb) returns helix.pool
language sql stable as $$
  select jsonb_populate_record(row(null, '', 0, 0, 0, '{}', '[]', null, 60, '[]')::helix.pool, p_free)
$$;

-- The devices that a claim or a report of a worker describes.
create function helix.devices_of(p_free jsonb) returns setof helix.device
language sql immutable parallel safe as $$
  select d.* from jsonb_populate_recordset(null::helix.device, coalesce(p_free -> 'devices', '[]')) d
  where d.uuid is not null
$$;

-- How many devices work of these requirements gets. A requirement on devices asks for one at least.
create function helix.devices_needed(p_class helix.requirement_class) returns integer
language sql immutable parallel safe as $$
  select greatest(p_class.gpus, (p_class.gpu_vram_gb > 0 or p_class.gpu_cc_min > 0 or p_class.gpu_model <> '{}')::int)
$$;

-- Whether a device is good enough for work of these requirements. Models match globs (`*`, `?`) in any case.
create function helix.is_match(p_class helix.requirement_class, p_device helix.device) returns boolean
language sql immutable parallel safe as $$
  select coalesce(p_device.vram_gb, 0) >= p_class.gpu_vram_gb and coalesce(p_device.cc, 0) >= p_class.gpu_cc_min
     and (p_class.gpu_model = '{}' or exists (
       select from unnest(p_class.gpu_model) as g (glob)
       where lower(coalesce(p_device.model, ''))
             -- Not a backslash: what it means in a text is a setting of the session.
             like replace(replace(replace(replace(replace(lower(g.glob), '!', '!!'), '%', '!%'), '_', '!_'), '*', '%'), '?', '_')
             escape '!'))
$$;

-- Whether these resources are enough for work of these requirements: whole devices that match, and what is left of the rest.
create function helix.fits(p_class helix.requirement_class, p_free helix.resources, p_devices helix.device[])
returns boolean
language sql immutable parallel safe as $$
  select p_class.cpu_cores <= p_free.cpu_cores and p_class.ram_gb <= p_free.ram_gb and p_class.disk_gb <= p_free.disk_gb
     and p_class.labels <@ p_free.labels
     and helix.devices_needed(p_class) <= (select count(*) from unnest(p_devices) d where helix.is_match(p_class, d))
$$;

-- The devices of a host that work of these requirements gets. Of one model if possible, and of those the smallest, so that
-- the large ones are left for work that needs them.
create function helix.take_devices(p_class helix.requirement_class, p_devices helix.device[]) returns helix.device[]
language sql immutable parallel safe
set enable_sort = on as $$
  select coalesce(array_agg(t.device), '{}')
  from (select f.device
        from (select d as device, count(*) over (partition by d.model) as alike
              from unnest(p_devices) d where helix.is_match(p_class, d)) f
        order by f.alike >= helix.devices_needed(p_class) desc, (f.device).vram_gb, (f.device).model,
                 (f.device).index, (f.device).uuid
        limit helix.devices_needed(p_class)) t
$$;

-- Deletes allocations of ended leases whose process is gone, says a worker of the same tenants on the host, or whose grace
-- time has passed, and returns the others, for the worker to look for: [id, process, public id of the batch, device].
create function helix.free_former(p_pool helix.pool) returns jsonb
language plpgsql as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_queues integer[] := helix.scope_queues();
begin
  delete from helix.allocation a
  where a.host = p_pool.host and a.ended_at is not null
    and (a.ended_at < v_now - make_interval(secs => p_pool.grace_seconds)
         or p_pool.gone @> to_jsonb(a.id) and (v_queues is null or a.queue = any (v_queues)));
  return coalesce((
    select jsonb_agg(jsonb_build_array(a.id, a.process, helix.public_id(b.key), a.device) order by a.id)
    from helix.allocation a join helix.batch b on b.id = a.batch
    where a.host = p_pool.host and a.ended_at is not null and (v_queues is null or a.queue = any (v_queues))), '[]');
end
$$;

-- Since when the first batch of a queue in a lane waits; null: there is none that could be leased as it is. Work that its
-- limit key may hold back reserves nothing.
create function helix.waits_since(p_lane integer, p_queue integer) returns timestamptz
language sql stable as $$
  select case when helix.is_plain(f.limit_key, f.expires_at, q.paused) then f.changed_at end
  from (select w.limit_key, w.expires_at, w.changed_at from helix.work w
        where w.pending and w.queue = p_queue and w.lane = p_lane
        order by w.turn, w.batch limit 1) f
  cross join lateral (select s.paused from helix.queue s where s.id = p_queue offset 0) q
$$;

-- The work for which a host holds back what becomes free: the lane and queue that wait longest for more than is free, after
-- the waiting time and at most once in it, so that wide work cannot starve the rest either. The reservation stays
-- until it is used or its work is gone. With a waiting time T and attempts of at most D, the first batch of a lane
-- waits for at most 2 T + D on a host that no other wide work waits for (decision 88).
create function helix.reserve(
  p_pool helix.pool, p_queues text[], p_mine integer[], p_free helix.resources, p_devices helix.device[],
  p_all helix.device[]
) returns helix.host
language plpgsql
set enable_sort = on as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_due   timestamptz := v_now - make_interval(secs => p_pool.reserve_seconds);
  v_total helix.resources := p_free;
  v_host  helix.host;
begin
  select * into v_host from helix.host h where h.name = p_pool.host;
  v_total.cpu_cores := p_pool.cpu_cores;
  v_total.ram_gb := p_pool.ram_gb;
  v_total.disk_gb := p_pool.disk_gb;
  if v_host.reserved_lane is not null
     and (select helix.fits(c, v_total, p_all) and helix.waits_since(l.id, v_host.reserved_queue) < v_due
          from helix.lane l join helix.requirement_class c on c.id = l.class where l.id = v_host.reserved_lane)
  then
    return v_host;
  end if;
  v_host.reserved_lane := null;
  if v_host.reserved_at < v_due then
    -- The narrowest work that waits is not held up by narrower work, and reserves nothing.
    select w.lane, w.queue into v_host.reserved_lane, v_host.reserved_queue
    from (select f.*, min(f.width) over () as least
          from (select l.id as lane, m.queue, helix.waits_since(l.id, m.queue) as since,
                       helix.fits(c, p_free, p_devices) as is_free,
                       greatest(helix.devices_needed(c)::real / nullif(cardinality(p_all), 0),
                                c.cpu_cores / nullif(v_total.cpu_cores, 0), c.ram_gb / nullif(v_total.ram_gb, 0),
                                c.disk_gb / nullif(v_total.disk_gb, 0)) as width
                from helix.lane l
                join helix.requirement_class c on c.id = l.class
                cross join lateral unnest(coalesce(p_mine, l.queues)) as m (queue)
                where l.queue = any (p_queues) and not l.idle and l.class <> 0
                  and helix.fits(c, v_total, p_all) offset 0) f
          where f.since is not null) w
    where w.since < v_due and not w.is_free and w.width > w.least
    order by w.since limit 1;
    if v_host.reserved_lane is not null then
      v_host.reserved_at := v_now;
    end if;
  end if;
  update helix.host h
  set reserved_lane = v_host.reserved_lane, reserved_queue = v_host.reserved_queue, reserved_at = v_host.reserved_at
  where h.name = v_host.name and (h.reserved_lane, h.reserved_at) is distinct from (v_host.reserved_lane, v_host.reserved_at);
  return v_host;
end
$$;

-- What a claim for this host may take: free resources with the lanes that do not fit them, devices, and the queues to look in.
create function helix.free_of_host(
  p_pool helix.pool, p_queues text[], p_mine integer[],
  out free helix.resources, out devices helix.device[], out mine integer[], out reserved integer
) language plpgsql as $$
declare
  v_all   helix.device[];   -- that may be used
  v_host  helix.host;
  v_class helix.requirement_class;
begin
  v_all := array(
    select d from jsonb_populate_recordset(null::helix.device, p_pool.devices) d
    where d.uuid is not null and d.fault is null
      and not (select h.withdrawn from helix.host h where h.name = p_pool.host) ? d.uuid);
  devices := array(select d from unnest(v_all) d
                   where not exists (select from helix.allocation a where a.host = p_pool.host and a.device = d.uuid));
  select cardinality(devices), 'infinity', p_pool.cpu_cores - coalesce(sum(a.cpu_cores), 0),
         p_pool.ram_gb - coalesce(sum(a.ram_gb), 0), p_pool.disk_gb - coalesce(sum(a.disk_gb), 0), p_pool.labels,
         p_pool.host, '{}'
  into free
  from helix.allocation a where a.host = p_pool.host and a.device is null;
  mine := p_mine;
  v_host := helix.reserve(p_pool, p_queues, p_mine, free, devices, v_all);
  if v_host.reserved_lane is not null then
    select c.* into v_class from helix.lane l join helix.requirement_class c on c.id = l.class
    where l.id = v_host.reserved_lane;
    if helix.fits(v_class, free, devices)
       and exists (select from helix.lane l where l.id = v_host.reserved_lane and l.queue = any (p_queues))
       and (p_mine is null or v_host.reserved_queue = any (p_mine))
    then
      -- Its turn: this claim looks nowhere else.
      reserved := v_host.reserved_lane;
      mine := array[v_host.reserved_queue];
      free.misfits := array(select l.id from helix.lane l where l.queue = any (p_queues) and l.id <> reserved);
      return;
    end if;
    devices := array(select d from unnest(devices) d
                     where d.uuid <> all (array(select t.uuid from unnest(helix.take_devices(v_class, devices)) t)));
    free.gpus := cardinality(devices);
    free.cpu_cores := greatest(free.cpu_cores - v_class.cpu_cores, 0);
    free.ram_gb := greatest(free.ram_gb - v_class.ram_gb, 0);
    free.disk_gb := greatest(free.disk_gb - v_class.disk_gb, 0);
  end if;
  free.misfits := array(
    select l.id from helix.lane l join helix.requirement_class c on c.id = l.class
    where l.queue = any (p_queues) and not l.idle and l.class <> 0 and not helix.fits(c, free, devices));
end
$$;

-- The end of a claim's header: what the one lease of the claim holds of its host, and the former allocations of the host.
create function helix.with_devices(p_header helix.lease, p_number bigint, p_former jsonb) returns helix.lease
language plpgsql as $$
begin
  p_header.payload := left(p_header.payload, -1) || format(
    ',"devices":%s,"former":%s}',
    (select case when count(*) = 0 then 'null'
                 else coalesce(jsonb_agg(a.device order by a.id) filter (where a.device is not null), '[]') end
     from helix.allocation a where a.number = p_number), coalesce(p_former, '[]'));
  return p_header;
end
$$;

-- claim_v1 for a worker that owns devices: at most one batch.
create function helix.claim_on_host(
  p_worker text, p_request uuid, p_queues text[], p_mine integer[], p_free jsonb, p_start boolean,
  p_seconds real, p_epoch integer, p_settled helix.answer[]
) returns setof helix.lease
language plpgsql as $$
declare
  v_pool   helix.pool := helix.pool_of(p_free);
  v_former jsonb;
  v_host   record;
  v_choice helix.choice;
  v_class  helix.requirement_class;
  v_taken  text[];
  v_detail text;
  v_leased helix.lease[];
  v_number bigint;
begin
  insert into helix.host (name) select v_pool.host
  where not exists (select from helix.host h where h.name = v_pool.host) on conflict do nothing;
  perform from helix.host h where h.name = v_pool.host for update;
  v_former := helix.free_former(v_pool);
  v_host := helix.free_of_host(v_pool, p_queues, p_mine);
  v_choice := helix.choose(
    p_worker, p_queues, v_host.mine,
    cardinality(v_host.mine) is distinct from 1 and helix.is_shared(p_queues, v_host.mine), v_host.free, 1,
    null, null, null);
  if v_choice.batch = '{}' then
    if exists (select from helix.request r where r.id = p_request) then
      return query select * from helix.leases_of(p_worker, p_request, p_settled);
    else
      return next helix.with_devices(helix.claim_header(p_settled, null, null, null, null, '', '', false), null, v_former);
    end if;
    return;
  end if;
  select c.* into v_class from helix.batch b join helix.requirement_class c on c.id = b.class
  where b.id = v_choice.batch[1];
  v_taken := array(select d.uuid from unnest(helix.take_devices(v_class, v_host.devices)) d);
  v_detail := concat_ws(': ', 'on ' || v_pool.host, nullif(array_to_string(v_taken, ', '), ''));
  v_leased := helix.lease_one(
    (v_choice.batch[1], v_choice.tuple[1], v_choice.lane[1], v_choice.turn[1], v_choice.queue[1],
     v_choice.lease_seconds[1], true, v_choice.stale)::helix.chosen,
    p_worker, p_request, p_start, p_seconds, p_epoch, p_settled, helix.content_hash(null, v_detail, null));
  if v_leased is null then
    return query select * from helix.leases_of(p_worker, p_request, p_settled);
    return;
  end if;
  -- A device that another transaction has taken violates the unique index here, and the claim fails.
  insert into helix.allocation (host, device, batch, number, queue, cpu_cores, ram_gb, disk_gb, worker, process)
  select v_pool.host, t.device, w.batch, w.number, w.queue,
         case when t.device is null then v_class.cpu_cores else 0 end,
         case when t.device is null then v_class.ram_gb else 0 end,
         case when t.device is null then v_class.disk_gb else 0 end, p_worker, v_pool.process
  from helix.work w cross join unnest(array_prepend(null, v_taken)) as t (device)
  where w.batch = v_choice.batch[1];
  insert into helix.result (batch, version, queue, detail)
  select w.batch, w.version, w.queue, v_detail from helix.work w where w.batch = v_choice.batch[1];
  if v_host.reserved is not null then
    update helix.host h set reserved_lane = null, reserved_at = clock_timestamp() where h.name = v_pool.host;
  end if;
  v_number := (select w.number from helix.work w where w.batch = v_choice.batch[1]);
  return next helix.with_devices(v_leased[1], v_number, v_former);
  return next v_leased[2];
  if v_choice.stale then
    perform helix.note_served(v_choice.lane, v_choice.turn);
  end if;
end
$$;

-- Frees what these batches held, whose leases have ended. A worker that ends its lease is no longer using it. After a
-- lost or cancelled lease its process may be running, so the rows stay until `free_former` deletes them.
create function helix.end_allocations(p_batch bigint[]) returns void
language plpgsql as $$
begin
  delete from helix.allocation a using helix.work w
  where a.batch = any (p_batch) and w.batch = a.batch and a.number = w.number
    and (w.reason in ('completed', 'failed') or w.reason = 'released' and helix.is_worker(a.worker, w.actor));
  update helix.allocation a set ended_at = clock_timestamp()
  where a.batch = any (p_batch) and a.ended_at is null;
end
$$;

-- Withdraws a device, or with a null reason returns it. For operators of all tenants: a host has no tenant.
create function helix.withdraw_device_v1(p_host text, p_device text, p_reason text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_found boolean;
begin
  perform helix.enter();
  insert into helix.host (name) select p_host
  where p_reason is not null and not exists (select from helix.host h where h.name = p_host) on conflict do nothing;
  update helix.host h
  set withdrawn = case when p_reason is null then h.withdrawn - p_device
                       else h.withdrawn || jsonb_build_object(p_device, left(p_reason, 200)) end
  where h.name = p_host and (p_reason is not null or h.withdrawn ? p_device)
  returning true into v_found;
  return coalesce(v_found, false);
end
$$;
