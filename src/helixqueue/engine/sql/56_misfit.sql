-- Misfits: work that no worker of the last day could do.

-- Requirements as a row, from their JSON.
create function helix.requirement_of(p_requires jsonb) returns helix.requirement_class
language sql immutable parallel safe as $$
  select row(
    null, p_requires, coalesce((p_requires ->> 'gpus')::int, 0), coalesce((p_requires ->> 'gpu_vram_gb')::real, 0),
    coalesce((p_requires ->> 'cpu_cores')::real, 0), coalesce((p_requires ->> 'ram_gb')::real, 0),
    coalesce((p_requires ->> 'disk_gb')::real, 0), coalesce(p_requires -> 'labels', '{}'),
    array(select jsonb_array_elements_text(
      case jsonb_typeof(p_requires -> 'gpu_model') when 'array' then p_requires -> 'gpu_model'
           when 'string' then jsonb_build_array(p_requires -> 'gpu_model') else '[]' end)),
    coalesce((p_requires ->> 'gpu_cc_min')::real, 0), 0)::helix.requirement_class
$$;

-- Whether a worker has what is required, whatever of it is free now.
create function helix.meets(p_free jsonb, p_class helix.requirement_class) returns boolean
language sql stable as $$
  select case when r.host is not null then helix.fits(p_class, r, array(
                select d from helix.devices_of(p_free) d
                where d.fault is null
                  and not exists (select from helix.host h where h.name = r.host and h.withdrawn ? d.uuid)))
              else p_class.gpus <= r.gpus and p_class.gpu_vram_gb <= r.gpu_vram_gb and p_class.cpu_cores <= r.cpu_cores
                   and p_class.ram_gb <= r.ram_gb and p_class.disk_gb <= r.disk_gb and p_class.labels <@ r.labels
                   and p_class.gpu_model = '{}' and p_class.gpu_cc_min = 0 end
  from helix.resources_of(p_free) r
$$;

-- What no worker of a queue has that reported in the last day, as text; null: some worker has everything, or none
-- reported at all.
create function helix.missing(p_tenant text, p_queue text, p_requires jsonb) returns text
language plpgsql stable
set enable_sort = on as $$
declare
  v_workers jsonb[];
begin
  if coalesce(p_requires, '{}') = '{}' then
    return null;
  end if;
  v_workers := array(
    select distinct w.free - 'health' - 'progress' from helix.worker w
    where w.tenant in (p_tenant, '*') and w.last_seen > clock_timestamp() - interval '1 day'
      -- A worker that reports its queues counts for those.
      and coalesce(w.free -> 'health' -> 'queues' ? p_queue, true)
    limit 1000);
  if v_workers = '{}' or exists (select from unnest(v_workers) w
                                 where helix.meets(w, helix.requirement_of(p_requires)))
  then
    return null;
  end if;
  return (
    select coalesce(string_agg(m.said, ', ') filter (where m.lacks), 'all of ' || string_agg(m.said, ', '))
    from (select format('%s %s', r.key, r.value) as said,
                 not exists (select from unnest(v_workers) w
                             where helix.meets(w, helix.requirement_of(jsonb_build_object(r.key, r.value)))) as lacks
          from jsonb_each(p_requires) r) m);
end
$$;

-- The classes among these that no worker of the queue has, and what is missing.
create function helix.refused_classes(
  p_queue helix.queue, p_class integer[], out classes integer[], out why text
) language plpgsql stable as $$
begin
  select coalesce(array_agg(m.id), '{}'), min(m.missing) into classes, why
  from (select c.id, helix.missing(p_queue.tenant, p_queue.name, c.requires) as missing
        from helix.requirement_class c where c.id = any (p_class)) m
  where m.missing is not null;
end
$$;

-- How many different requirements of the claimable work of each queue no worker has.
create function helix.measure_misfits() returns void
language plpgsql as $$
begin
  perform helix.set_gauges('{helix_no_worker_matches}', array(
    select row(q.tenant, 'helix_no_worker_matches', q.name, '',
               count(distinct l.class) filter (where helix.missing(q.tenant, q.name, c.requires) is not null))::helix.metric
    from helix.lane l
    join helix.requirement_class c on c.id = l.class
    join helix.queue q on q.name = l.queue
    where not l.idle and l.class <> 0
      and (select true from helix.work w where w.pending and w.queue = q.id and w.lane = l.id
           order by w.turn, w.batch limit 1)
    group by q.tenant, q.name));
end
$$;
