-- Claim: leases for a worker, at most p_count and no more than fit what it has free.
-- In one call it may settle what is finished, and start what it takes: one commit a round.

create type helix.lease as (
  answer        text,     -- leased, or the answer to a settlement of this call
  batch         bigint,
  owner         text,     -- of a refused settlement
  late          boolean,  -- of a settlement
  state         helix.state,
  public_id     uuid,
  key           bytea,
  fingerprint   bytea,
  tenant        text,
  queue         text,
  identity      text,
  revision      text,
  payload       text,
  attempt       smallint,
  epoch         integer,
  nonce         bigint,
  number        bigint,
  deadline      timestamptz,
  lease_seconds real,
  lane          integer,  -- with turn and batch: the hint for the next claim
  turn          bigint
);

-- The tenants this session is bound to; null means every tenant. The policies decide anyway; this
-- lets a claim walk the right index instead of stepping over other tenants' rows.
create function helix.session_tenants() returns text[]
language sql stable set search_path = pg_catalog, pg_temp as $$
  select case
    when pg_has_role(session_user, 'helix_operator', 'member') or bool_or(everyone) then null
    else coalesce(array_agg(name) filter (where name <> ''), '{}') end
  from (select tenant = '*' and not by_setting as everyone,
               case when not by_setting then
                 case when coalesce(nullif(current_setting('helix.tenant', true), ''), tenant) = tenant
                      then tenant end
               when tenant in ('*', current_setting('helix.tenant', true))
               then current_setting('helix.tenant', true) end as name
        from helix.role_tenant where role = session_user) bound
$$;

-- Locks the next batches of a lane, passing over what others have locked. Two ways through the same
-- rows: by the lane's order for a session that sees all tenants, tenant by tenant for one that does
-- not. `plain` is false where a batch is paused, limited or expired and needs a closer look.
create function helix.pick(
  p_lane integer, p_queue text, p_tenants text[], p_turn bigint, p_batch bigint, p_count integer,
  p_passed bigint[]
) returns table (batch bigint, turn bigint, plain boolean)
language plpgsql set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  if p_tenants is null then
    return query
      select r.batch, r.turn,
             not q.paused and r.limit_key is null
             and (r.expires_at is null or r.expires_at > clock_timestamp())
      from helix.ready r join helix.queue q on q.tenant = r.tenant and q.name = p_queue
      where r.lane = p_lane and (r.turn, r.batch) > (p_turn, p_batch)
        and r.batch <> all (p_passed)
      order by r.turn, r.batch limit p_count for update of r skip locked;
  else
    return query
      select one.batch, one.turn, one.plain
      from unnest(p_tenants) as mine (tenant)
      cross join lateral (
        select r.batch, r.turn,
               not q.paused and r.limit_key is null
               and (r.expires_at is null or r.expires_at > clock_timestamp()) as plain
        from helix.ready r join helix.queue q on q.tenant = r.tenant and q.name = p_queue
        where r.lane = p_lane and r.tenant = mine.tenant and r.turn >= p_turn
          and (r.turn, r.batch) > (p_turn, p_batch) and r.batch <> all (p_passed)
        order by r.turn limit p_count for update of r skip locked) one
      order by one.turn, one.batch limit p_count;
  end if;
end
$$;

-- Moves locked rows from ready to active under fresh tokens. The attempt is counted here, in the
-- transaction of the claim, so that a crash counts.
create function helix.lease_out(
  p_batch bigint[], p_worker text, p_request uuid, p_epoch integer, p_nonce bigint, p_queue text,
  p_lease_seconds real
) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  with taken as (
    delete from helix.ready r using helix.queue q
    where r.batch = any (p_batch) and q.tenant = r.tenant and q.name = p_queue
    returning r.*, coalesce(p_lease_seconds, q.lease_seconds) as lease_seconds
  )
  insert into helix.active (batch, tenant, state, version, attempt, epoch, number, actor, reason,
                            nonce, worker, deadline, lane, queue, lease_seconds, request, limit_key)
  select t.batch, t.tenant, 'ASSIGNED', t.version + 1, t.attempt + 1, p_epoch,
         nextval('helix.lease_number'), p_worker, 'claimed', p_nonce, p_worker,
         clock_timestamp() + make_interval(secs => t.lease_seconds), t.lane, p_queue,
         t.lease_seconds, p_request, t.limit_key
  from taken t;
end
$$;

-- The closer look at what pick called not plain: expired batches are cancelled, paused and
-- over-limit ones step aside into waiting. Returns those that may be leased after all.
create function helix.set_aside(p_batch bigint[], p_queue text, p_worker text) returns bigint[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_leasable bigint[];
begin
  perform helix.expire(p_batch, p_worker);

  with aside as (
    delete from helix.ready r using helix.queue q
    where r.batch = any (p_batch) and q.tenant = r.tenant and q.name = p_queue and q.paused
    returning r.*
  )
  insert into helix.waiting (batch, tenant, version, attempt, epoch, number, actor, reason, detail,
                             late, lane, queue, cause, limit_key, expires_at)
  select batch, tenant, version, attempt, epoch, number, actor, reason, detail, late, lane, p_queue,
         'paused', limit_key, expires_at
  from aside;

  -- Limits: a key that another claim is counting right now is passed over; its row lock is what
  -- keeps two claims from both taking the last place.
  with counted as materialized (
    select k.tenant, k.key, k.held from helix.key_limit k
    where k.queue = p_queue
      and (k.tenant, k.key) in (select r.tenant, r.limit_key from helix.ready r
                                where r.batch = any (p_batch) and r.limit_key is not null)
    order by k.tenant, k.queue, k.key for update skip locked
  ),
  ranked as materialized (
    select r.batch,
           counted.held + row_number() over (partition by r.tenant, r.limit_key
                                             order by r.turn, r.batch) <= q.key_limit as fits
    from helix.ready r
    join counted on counted.tenant = r.tenant and counted.key = r.limit_key
    join helix.queue q on q.tenant = r.tenant and q.name = p_queue
    where r.batch = any (p_batch)
  ),
  aside as (
    delete from helix.ready r using ranked where r.batch = ranked.batch and not ranked.fits
    returning r.*
  ),
  parked as (
    insert into helix.waiting (batch, tenant, version, attempt, epoch, number, actor, reason, detail,
                               late, lane, queue, cause, limit_key, expires_at)
    select batch, tenant, version, attempt, epoch, number, actor, reason, detail, late, lane, p_queue,
           'limit', limit_key, expires_at
    from aside
  )
  select array_agg(ranked.batch) into v_leasable from ranked where ranked.fits;
  return coalesce(v_leasable, '{}');
end
$$;

-- What may run on this worker, from most urgent to least; equals take turns by chance.
create function helix.lanes_for(
  p_queues text[], p_tenants text[], p_free jsonb, p_priority smallint,
  p_hint_lane integer[], p_hint_turn bigint[], p_hint_batch bigint[]
) returns table (lane helix.lane, class helix.requirement_class, turn bigint, batch bigint)
language sql volatile as $$
  select l, c, coalesce(h.turn, -1), coalesce(h.batch, -1)
  from helix.lane l
  join helix.requirement_class c on c.id = l.class
  left join unnest(p_hint_lane, p_hint_turn, p_hint_batch) as h (lane, turn, batch) on h.lane = l.id
  where l.queue = any (p_queues) and l.priority >= p_priority
    and c.gpus <= coalesce((p_free ->> 'gpus')::int, 0)
    and c.gpu_vram_gb <= coalesce((p_free ->> 'gpu_vram_gb')::real, 0)
    and c.cpu_cores <= coalesce((p_free ->> 'cpu_cores')::real, 0)
    and c.ram_gb <= coalesce((p_free ->> 'ram_gb')::real, 0)
    and c.disk_gb <= coalesce((p_free ->> 'disk_gb')::real, 0)
    and c.labels <@ coalesce(p_free -> 'labels', '{}')
    and case when p_tenants is null
        then exists (select from helix.ready r where r.lane = l.id
                     and (r.turn, r.batch) > (coalesce(h.turn, -1), coalesce(h.batch, -1)))
        else exists (select from unnest(p_tenants) as mine (tenant)
                     where exists (select from helix.ready r
                                   where r.lane = l.id and r.tenant = mine.tenant
                                     and r.turn >= coalesce(h.turn, -1)
                                     and (r.turn, r.batch) > (coalesce(h.turn, -1),
                                                              coalesce(h.batch, -1))))
        end
  order by l.priority, random() limit 64
$$;

-- How many batches of a class still fit.
create function helix.capacity(p_class helix.requirement_class, p_free jsonb) returns integer
language sql immutable as $$
  select case when p_class.id = 0 then 1000000 else least(
    1000000,
    case when p_class.gpus > 0 then (p_free ->> 'gpus')::int / p_class.gpus end,
    case when p_class.cpu_cores > 0 then floor((p_free ->> 'cpu_cores')::real / p_class.cpu_cores) end,
    case when p_class.ram_gb > 0 then floor((p_free ->> 'ram_gb')::real / p_class.ram_gb) end,
    case when p_class.disk_gb > 0 then floor((p_free ->> 'disk_gb')::real / p_class.disk_gb) end
  )::integer end
$$;

create function helix.free_after(p_free jsonb, p_class helix.requirement_class, p_taken integer)
returns jsonb
language sql immutable as $$
  select case when p_class.id = 0 then p_free else p_free || jsonb_build_object(
    'gpus',      coalesce((p_free ->> 'gpus')::int, 0)       - p_taken * p_class.gpus,
    'cpu_cores', coalesce((p_free ->> 'cpu_cores')::real, 0) - p_taken * p_class.cpu_cores,
    'ram_gb',    coalesce((p_free ->> 'ram_gb')::real, 0)    - p_taken * p_class.ram_gb,
    'disk_gb',   coalesce((p_free ->> 'disk_gb')::real, 0)   - p_taken * p_class.disk_gb) end
$$;

-- Duties that every claim shares, so that nothing stays stuck while anybody claims (G6), and the
-- worker's entry in the list of workers. Sessions that see all tenants take turns; one that is
-- bound to some can only do the duty for those, so it does not wait for its turn.
create function helix.tend(p_worker text, p_free jsonb, p_tenants text[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_seen timestamptz;
begin
  if p_tenants is not null or helix.duty_due('reap', '250 ms') then
    perform helix.reap(p_worker, 1000);
  end if;
  if p_tenants is not null or helix.duty_due('promote', '250 ms') then
    perform helix.promote(1000);
  end if;
  if p_tenants is not null or helix.duty_due('expire', '2 s') then
    perform helix.expire_due(p_worker, 1000);
  end if;
  if helix.duty_due('sweep', '60 s') then
    perform helix.extend_ledger();
    delete from helix.request r where r.at < clock_timestamp() - interval '1 day';
  end if;
  select w.last_seen into v_seen from helix.worker w
  where w.role = session_user and w.name = p_worker;
  if v_seen is null or v_seen < clock_timestamp() - interval '10 s' then
    insert into helix.worker (role, name, free) values (session_user, p_worker, coalesce(p_free, '{}'))
    on conflict (role, name) do update
      set last_seen = clock_timestamp(), free = excluded.free;
  end if;
end
$$;

create function helix.claim_v1(
  p_worker text, p_request uuid, p_queues text[], p_count integer, p_free jsonb default null,
  p_start boolean default false, p_lease_seconds real default null,
  p_hint_lane integer[] default null, p_hint_turn bigint[] default null,
  p_hint_batch bigint[] default null,
  p_done_batch bigint[] default null, p_done_epoch integer[] default null,
  p_done_nonce bigint[] default null, p_done_number bigint[] default null,
  p_done_outcome text[] default null, p_done_result text[] default null,
  p_done_failure text[] default null, p_done_detail text[] default null,
  p_done_permanent boolean[] default null, p_done_after real[] default null
) returns setof helix.lease
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
  v_epoch    integer;
  v_nonce    bigint;
  v_tenants  text[] := helix.session_tenants();
  v_free     jsonb := p_free;
  v_wanted   integer := least(p_count, 1000);
  v_priority smallint := 0;   -- lanes more urgent than this have nothing left to give
  v_row      record;
  v_visited  integer;         -- lanes of the pass
  v_moved    integer;         -- batches of the pass that were leased or set aside
  v_share    integer;
  v_plain    bigint[];
  v_odd      bigint[];
  v_turns    bigint[];
  v_batch    bigint[] := '{}';
  v_turn     bigint[] := '{}';
  v_passed   bigint[] := '{}';
begin
  if p_done_batch is not null then
    return query
      select s.answer, s.batch, s.owner, s.late, s.state, null::uuid, null::bytea, null::bytea,
             null::text, null::text, null::text, null::text, null::text, null::smallint, null::int,
             null::bigint, null::bigint, null::timestamptz, null::real, null::int, null::bigint
      from helix.settle_v1(p_worker, p_done_batch, p_done_epoch, p_done_nonce, p_done_number,
                           p_done_outcome, p_done_result, p_done_failure, p_done_detail,
                           p_done_permanent, p_done_after) s;
  end if;
  perform helix.tend(p_worker, p_free, v_tenants);

  -- The repeat of a call whose answer was lost gets the leases of the first.
  if exists (select from helix.request r where r.id = p_request) then
    return query select * from helix.leases_of(p_worker, p_request);
    return;
  end if;

  <<passes>>
  while v_wanted > 0 loop
    v_visited := 0;
    v_moved := 0;
    for v_row in
      select f.*, count(*) over (partition by (f.lane).priority) as peers
      from helix.lanes_for(p_queues, v_tenants, v_free, v_priority, p_hint_lane, p_hint_turn,
                           p_hint_batch) f
      order by (f.lane).priority
    loop
      if v_visited = 0 then
        v_priority := (v_row.lane).priority;
      end if;
      exit when v_wanted = 0 or (v_row.lane).priority > v_priority;
      if v_epoch is null then
        -- From here on the call writes, so its request id is noted. While a first call with this id
        -- is still under way, the insert waits for it.
        insert into helix.request (id, worker) values (p_request, p_worker) on conflict do nothing;
        if not found then
          return query select * from helix.leases_of(p_worker, p_request);
          return;
        end if;
        v_epoch := helix.current_epoch();
        -- 64 of the 122 bits that the server's strong random source put into the UUID.
        v_nonce := hashtextextended(gen_random_uuid()::text, 0);
      end if;

      -- An even share for each lane of this priority, as far as the worker's resources go.
      v_share := least(ceil(v_wanted::real / (v_row.peers - v_visited))::int,
                       helix.capacity(v_row.class, v_free));
      v_visited := v_visited + 1;
      continue when v_share <= 0;
      select coalesce(array_agg(c.batch) filter (where c.plain), '{}'),
             array_agg(c.batch) filter (where not c.plain), array_agg(c.turn) filter (where c.plain)
      into v_plain, v_odd, v_turns
      from helix.pick((v_row.lane).id, (v_row.lane).queue, v_tenants, v_row.turn, v_row.batch,
                      v_share, v_passed) c;
      if v_odd is not null then
        v_passed := v_passed || v_odd;
        v_moved := v_moved + cardinality(v_odd);
        v_odd := helix.set_aside(v_odd, (v_row.lane).queue, p_worker);
        v_plain := v_plain || v_odd;
        v_turns := v_turns || array_fill(null::bigint, array[cardinality(v_odd)]);
      end if;
      continue when v_plain = '{}';

      perform helix.lease_out(v_plain, p_worker, p_request, v_epoch, v_nonce,
                              (v_row.lane).queue, p_lease_seconds);
      perform helix.note_served(v_row.lane, v_turns);
      v_batch := v_batch || v_plain;
      v_turn := v_turn || v_turns;
      v_moved := v_moved + cardinality(v_plain);
      v_wanted := v_wanted - cardinality(v_plain);
      v_free := helix.free_after(v_free, v_row.class, cardinality(v_plain));
    end loop;
    exit passes when v_visited = 0;
    if v_moved = 0 then
      v_priority := v_priority + 1;   -- everything there is locked by others: look further down
    end if;
  end loop;

  if v_batch = '{}' then
    return;
  end if;
  if p_start then
    update helix.active a set state = 'RUNNING', version = a.version + 1, reason = 'started'
    where a.batch = any (v_batch);
  end if;
  return query select * from helix.leases(v_batch, v_turn);
end
$$;

-- Notes how far a lane has been served, at most once a second and never waiting for another claim.
create function helix.note_served(p_lane helix.lane, p_turn bigint[]) returns void
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if p_lane.served_at > clock_timestamp() - interval '1 s' then
    return;
  end if;
  update helix.lane l
  set served = greatest(l.served, (select max(turn) from unnest(p_turn) turn)),
      served_at = clock_timestamp()
  where l.id = (select s.id from helix.lane s where s.id = p_lane.id for update skip locked);
end
$$;

-- Leases as a worker needs them: the batch, what is to be done, and the token.
create function helix.leases(p_batch bigint[], p_turn bigint[]) returns setof helix.lease
language sql stable as $$
  select 'leased', a.batch, null::text, false, a.state, helix.public_id(b.key), b.key, i.fingerprint,
         a.tenant, a.queue, b.identity, b.revision, b.payload::text, a.attempt, a.epoch, a.nonce,
         a.number, a.deadline, a.lease_seconds, a.lane, u.turn
  from unnest(p_batch, p_turn) as u (batch, turn)
  join helix.active a on a.batch = u.batch
  join helix.batch b on b.id = a.batch
  join helix.identity i on i.key = b.key
$$;

-- The leases of an earlier call that are still held. Rare, so it needs no index.
create function helix.leases_of(p_worker text, p_request uuid) returns setof helix.lease
language sql stable as $$
  select l.* from helix.leases(
    array(select a.batch from helix.active a
          where a.request = p_request and a.worker = p_worker order by a.batch), null) l
$$;
