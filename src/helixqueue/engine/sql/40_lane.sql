-- Lanes and turns: the position of a batch in the order of claims.

-- Whether this transaction may make the row of a name that all tenants share: true unless another transaction, which may
-- stay open for long, is making it. A hint only: of two names with the same hash one gets a needless twin, and the
-- unique key decides.
create function helix.makes_first(p_table text, p_name text) returns boolean
language sql as $$
  select pg_try_advisory_xact_lock(hashtextextended(p_table || ' ' || p_name, 0))
$$;

-- The class of a requirement, created when it is new. Unknown names are refused: a misspelled "gpu"
-- would otherwise run anywhere.
create function helix.class_of(p_requires jsonb) returns integer
language plpgsql as $$
declare
  v_class   integer;
  v_unknown text;
begin
  if p_requires is null then
    return null;
  end if;
  select id into v_class from helix.requirement_class where requires = p_requires order by twin limit 1;
  if found then
    return v_class;
  end if;
  select key into v_unknown from jsonb_object_keys(p_requires) key
  where key not in ('gpus', 'gpu_vram_gb', 'gpu_model', 'gpu_cc_min', 'cpu_cores', 'ram_gb', 'disk_gb', 'labels') limit 1;
  if found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('unknown requirement %L', v_unknown),
      hint = 'Known: gpus, gpu_vram_gb, gpu_model, gpu_cc_min, cpu_cores, ram_gb, disk_gb, labels.';
  end if;
  insert into helix.requirement_class as c (id, twin, requires, gpus, gpu_vram_gb, cpu_cores, ram_gb, disk_gb, labels,
                                       gpu_model, gpu_cc_min)
  select n.id, case when helix.makes_first('requirement_class', p_requires::text) then 0 else n.id end, p_requires,
         r.gpus, r.gpu_vram_gb, r.cpu_cores, r.ram_gb, r.disk_gb, r.labels, r.gpu_model, r.gpu_cc_min
  from (select nextval('helix.requirement_class_id_seq')::integer as id) n
  cross join helix.requirement_of(p_requires) r
  on conflict do nothing;
  return (select id from helix.requirement_class where requires = p_requires order by twin limit 1);
end
$$;

-- How many active lanes of one queue name a tenant may have caused.
create function helix.lane_bound() returns integer
language sql immutable parallel safe as $$ select 256 $$;

-- Among how many tenants, and queues of a lane, claims share out.
create function helix.share_bound() returns integer
language sql immutable parallel safe as $$ select 32 $$;

-- The queues of a lane, and one more.
create function helix.queues_with(p_queues integer[], p_queue integer) returns integer[]
language sql immutable parallel safe as $$
  select case when p_queue = any (p_queues) or cardinality(p_queues) > helix.share_bound() then p_queues
              else p_queues || p_queue end
$$;

-- Lists a queue in an active lane, unless another transaction has locked the lane: a submission must not wait for the
-- end of a caller's transaction. The next submission lists the queue, or the duty `sweep`.
create function helix.list_queue(p_lane integer, p_queue integer) returns void
language sql as $$
  update helix.lane l set used_at = clock_timestamp(), queues = helix.queues_with(l.queues, p_queue)
  where l.id = (select f.id from helix.lane f where f.id = p_lane and not f.idle for update skip locked)
$$;

-- The lane of a (queue, class, priority), created with its first batch. A lane that was idle becomes active again, or
-- stays so until the duty `sweep` where another transaction holds it. With p_has_work it lists the queue.
create function helix.lane_of(
  p_queue helix.queue, p_class integer, p_priority smallint, p_has_work boolean default true
) returns integer
language plpgsql as $$
declare
  v_lane record;
begin
  select l.id, l.idle, p_has_work and (l.used_at < clock_timestamp() - interval '10 min'
                                       or helix.queues_with(l.queues, p_queue.id) <> l.queues) as changes
  into v_lane
  from helix.lane l
  where l.queue = p_queue.name and l.class = p_class and l.priority = p_priority
  order by l.idle, l.twin limit 1;
  if not v_lane.idle then
    if v_lane.changes then
      perform helix.list_queue(v_lane.id, p_queue.id);
    end if;
    return v_lane.id;
  end if;
  if (select count(*) from helix.lane l
      where l.queue = p_queue.name and not l.idle and l.made_for = p_queue.tenant) >= helix.lane_bound()
  then
    raise exception using errcode = 'program_limit_exceeded',
      message = format('queue %s of tenant %s has %s different requirements and priorities in use',
                       p_queue.name, p_queue.tenant, helix.lane_bound()),
      hint = 'Use fewer different requirements; those unused for an hour are forgotten.';
  end if;
  if v_lane.id is not null then
    update helix.lane l
    set used_at = clock_timestamp(), idle = false, made_for = p_queue.tenant,
        queues = case when p_has_work then helix.queues_with(l.queues, p_queue.id) else l.queues end
    where l.id = (select f.id from helix.lane f where f.id = v_lane.id and f.idle for update skip locked);
    return v_lane.id;
  end if;
  insert into helix.lane as l (queue, class, priority, gpus, gpu_vram_gb, cpu_cores, ram_gb, disk_gb,
                               labels, made_for, queues, twin)
  select p_queue.name, c.id, p_priority, c.gpus,
         case when c.gpu_model <> '{}' or c.gpu_cc_min > 0 then 'infinity' else c.gpu_vram_gb end, c.cpu_cores, c.ram_gb, c.disk_gb, c.labels,
         p_queue.tenant, case when p_has_work then array[p_queue.id] else '{}' end,
         case when helix.makes_first('lane', format('%s %s %s', p_class, p_priority, p_queue.name)) then 0
              else (random() * 2e9)::integer + 1 end
  from helix.requirement_class c where c.id = p_class
  on conflict do nothing
  returning l.id into v_lane;
  return coalesce(v_lane.id, (select l.id from helix.lane l where l.queue = p_queue.name and l.class = p_class
                                and l.priority = p_priority order by l.twin limit 1));
end
$$;

-- The next batch of a queue gets the turn after this one: the queue's own last turn in the lane, or the
-- turn that is being served if that is later. Looking only above `served` keeps the look-up short even while an
-- old snapshot holds dead index entries.
create function helix.turn_after(p_lane integer, p_queue integer) returns bigint
language plpgsql stable
-- A plan made while the table was empty would read all of it for every bulk submit.
set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  return (
    select greatest(l.served, (select w.turn from helix.work w
                               where w.pending and w.queue = p_queue and w.lane = l.id
                                 and w.turn > l.served
                               order by w.turn desc, w.batch desc limit 1))
    from helix.lane l where l.id = p_lane);
end
$$;

-- Class, lane and turn of each submission that has options, by position. A call has few different ones,
-- so each is created or found once and then looked up in a short list.
create function helix.lanes_of(
  p_queue helix.queue, p_requires text[], p_priority smallint[], p_count integer,
  out class integer[], out lane integer[], out turn bigint[]
) language plpgsql as $$
declare
  v_words   text[];      -- the different requirements, as written
  v_classes integer[];
  v_pairs   integer[];   -- the different pairs of class and priority, as one number
  v_lanes   integer[];
  v_turns   bigint[];
begin
  v_words := array(select distinct w from unnest(p_requires) w where w is not null);
  v_classes := array(select helix.class_of(w.word::jsonb)
                     from unnest(v_words) with ordinality as w (word, place) order by w.place);
  class := array(select coalesce(v_classes[array_position(v_words, u.requires)], p_queue.class)
                 from unnest(coalesce(p_requires, array_fill(null::text, array[p_count])))
                   with ordinality as u (requires, place) order by u.place);
  v_pairs := array(select distinct u.class * 10 + coalesce(u.priority, 5)
                   from unnest(class, p_priority) as u (class, priority));
  v_lanes := array(select helix.lane_of(p_queue, s.pair / 10, (s.pair % 10)::smallint)
                   from unnest(v_pairs) with ordinality as s (pair, place) order by s.place);
  -- A statement of its own: a lane that was just created is not visible to the statement that did it.
  v_turns := array(select helix.turn_after(l.lane, p_queue.id)
                   from unnest(v_lanes) with ordinality as l (lane, place) order by l.place);
  select array_agg(v_lanes[at.pair] order by at.place), array_agg(v_turns[at.pair] order by at.place)
  into lane, turn
  from (select array_position(v_pairs, u.class * 10 + coalesce(u.priority, 5)) as pair, u.place
        from unnest(class, p_priority) with ordinality as u (class, priority, place)) at;
end
$$;

-- Activates the lanes of batches that become claimable again: claims skip idle lanes, and share out among the
-- queues of the others.
create function helix.activate_lanes(p_batch bigint[]) returns void
language plpgsql as $$
declare
  v_pair record;
begin
  update helix.lane l set idle = false, used_at = clock_timestamp()
  where l.id = any (array(
    select f.id from helix.lane f
    where f.idle and f.id = any (array(select w.lane from helix.work w where w.batch = any (p_batch)))
    order by f.id for update skip locked));
  for v_pair in
    select l.id as lane, w.queue
    from (select distinct w.lane, w.queue from helix.work w where w.batch = any (p_batch)) w
    join helix.lane l on l.id = w.lane
    where helix.queues_with(l.queues, w.queue) <> l.queues
    order by l.id, w.queue
  loop
    perform helix.list_queue(v_pair.lane, v_pair.queue);
  end loop;
end
$$;

-- Makes lanes idle that were unused for an hour and have nothing claimable, so that claims skip them, and
-- active again where a submission used one at that moment. The lane of a queue's own class stays.
create function helix.idle_lanes(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_count integer;
begin
  -- A look-up in the claim order for each idle lane. As a join this would read all claimable work, and while
  -- an old snapshot is held also what was claimed since.
  update helix.lane l set idle = false, used_at = v_now
  where l.idle
    and (select true from helix.work w where w.pending and w.lane = l.id
         order by w.turn, w.batch limit 1);
  update helix.lane l set idle = true, queues = '{}'
  where l.id = any (array(
    select i.id from helix.lane i
    where not i.idle and i.used_at < v_now - interval '1 hour'
      and (select true from helix.work w where w.pending and w.lane = i.id
           order by w.turn, w.batch limit 1) is null
      and not exists (select from helix.queue q where q.name = i.queue and q.class = i.class)
    limit p_limit for update skip locked));
  get diagnostics v_count = row_count;
  return v_count;
end
$$;

-- Lists the queues with claimable work anew: in a lane that lists too many, those that have none leave; in any lane, a
-- queue is added whose submission was not visible when the list was made.
create function helix.list_queues(p_limit integer) returns void
language plpgsql as $$
begin
  update helix.lane l
  set queues = case when cardinality(l.queues) > helix.share_bound() then n.queues
                    else (l.queues || array(select u from unnest(n.queues) u where u <> all (l.queues)))
                         [: helix.share_bound() + 1] end
  from (select i.id, array(select q.id from helix.queue q
                           where q.name = i.queue
                             and (select true from helix.work w
                                  where w.pending and w.queue = q.id and w.lane = i.id
                                  order by w.turn, w.batch limit 1)
                           limit helix.share_bound() + 1) as queues
        from helix.lane i
        where i.id = any (array(select a.id from helix.lane a where not a.idle
                                order by a.id limit p_limit for update skip locked))) n
  where l.id = n.id
    and (cardinality(l.queues) > helix.share_bound() and cardinality(n.queues) <= helix.share_bound()
         or cardinality(l.queues) <= helix.share_bound() and not l.queues @> n.queues);
end
$$;
