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

-- Moves locked rows from ready to active under fresh tokens, and answers with what the worker needs.
-- The attempt is counted here, in the transaction of the claim, so that a crash counts.
create function helix.lease_out(
  p_batch bigint[], p_worker text, p_request uuid, p_epoch integer, p_nonce bigint,
  p_lease_seconds real, p_start boolean
) returns setof helix.lease
language plpgsql as $$
begin
  return query
  with taken as (
    delete from helix.ready r using helix.lane l, helix.queue q
    where r.batch = any (p_batch) and l.id = r.lane and q.tenant = r.tenant and q.name = l.queue
    returning r.*, l.queue, coalesce(p_lease_seconds, q.lease_seconds) as lease_seconds
  ),
  leased as (
    insert into helix.active (batch, tenant, state, version, attempt, epoch, number, actor, reason,
                              nonce, worker, deadline, lane, turn, queue, lease_seconds, request,
                              limit_key)
    select t.batch, t.tenant, case when p_start then 'RUNNING' else 'ASSIGNED' end::helix.state,
           t.version + 1 + p_start::int, t.attempt + 1, p_epoch, nextval('helix.lease_number'),
           p_worker, case when p_start then 'started' else 'claimed' end::helix.reason, p_nonce,
           p_worker, clock_timestamp() + make_interval(secs => t.lease_seconds), t.lane, t.turn,
           t.queue, t.lease_seconds, p_request, t.limit_key
    from taken t
    returning batch, state, tenant, queue, attempt, number, deadline, lease_seconds, lane, turn
  )
  select 'leased', l.batch, null::text, false, l.state, helix.public_id(b.key), b.key,
         l.tenant, l.queue, b.identity, b.revision, b.payload::text, l.attempt, p_epoch, p_nonce,
         l.number,
         l.deadline, l.lease_seconds, l.lane, l.turn
  from leased l join helix.batch b on b.id = l.batch;
end
$$;

-- Work for a worker: settles what it brings back, tends what anybody may tend, then leases batches
-- that fit what it has free, most urgent first.
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
set plan_cache_mode = force_generic_plan
-- A queue is read from its front, through an index, a few rows at a time. What statistics say of a
-- table that fills and empties within a minute is history, and a plan made of them sorts a whole
-- lane to find five rows.
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
declare
  v_tenants  text[] := helix.enter();
  v_free     helix.resources := helix.read_resources(p_free);
  v_left     helix.resources;   -- v_free less the shares of the pass
  v_wanted   integer := least(p_count, 1000);
  v_priority smallint;
  v_dry      integer[] := '{}'; -- lanes in which everything is locked by others
  v_row      record;
  v_lane     integer[];         -- the lanes of the pass, and what each may give
  v_class    helix.requirement_class[];
  v_turn     bigint[];
  v_batch    bigint[];
  v_share    integer[];
  v_picked   bigint[];          -- the batches that were picked, and their lanes
  v_of_lane  integer[];
  v_plain    bigint[];
  v_odd      bigint[];
  v_fruitless integer := 0;     -- passes that met nothing but what had to step aside
  v_passed   bigint[] := '{}';  -- what this call has looked at
  v_taken    bigint[] := '{}';  -- what it will lease
  v_stale    boolean := false;  -- some lane's `served` is older than a second
begin
  -- A repeat that overtakes its first call would find every batch locked and answer "nothing", and
  -- the leases of the first would be nobody's until they ran out. So it waits here. No more than the
  -- waiting rests on this lock: which call is the first is decided by the key of helix.request.
  perform pg_advisory_xact_lock(hashtextextended(p_request::text, 0));
  if p_done_batch is not null then
    return query
      select s.answer, s.batch, s.owner, s.late, s.state, null::uuid, null::bytea, null::text,
             null::text, null::text, null::text, null::text, null::smallint, null::int, null::bigint,
             null::bigint, null::timestamptz, null::real, null::int, null::bigint
      from helix.settle(p_worker, p_done_batch, p_done_epoch, p_done_nonce, p_done_number,
                        p_done_outcome, p_done_result, p_done_failure, p_done_detail,
                        p_done_permanent, p_done_after) s;
  end if;
  perform helix.tend(p_worker, v_tenants);

  while v_wanted > 0 loop
    -- One pass: the lanes of the most urgent priority that has anything, an even share for each as
    -- far as the worker's resources go.
    v_lane := '{}'; v_class := '{}'; v_turn := '{}'; v_batch := '{}';
    for v_row in
      select * from helix.lanes_for(p_queues, v_tenants, v_free, v_dry, p_hint_lane, p_hint_turn,
                                    p_hint_batch, v_passed, least(v_wanted, 64))
    loop
      exit when v_lane <> '{}' and v_row.priority > v_priority;
      v_priority := v_row.priority;
      v_stale := v_stale or v_row.served_at < clock_timestamp() - interval '1 s';
      v_lane := v_lane || v_row.id;
      v_class := v_class || v_row.class;
      v_turn := v_turn || v_row.turn;
      v_batch := v_batch || v_row.batch;
    end loop;
    exit when v_lane = '{}';
    v_left := v_free;
    v_share := '{}';
    for n in 1 .. cardinality(v_lane) loop
      v_share := v_share || least(ceil(v_wanted::real / cardinality(v_lane))::int,
                                  helix.capacity(v_class[n], v_left));
      v_left := helix.free_after(v_left, v_class[n], v_share[n]);
    end loop;

    select array_agg(c.batch), array_agg(c.lane),
           coalesce(array_agg(c.batch) filter (where c.plain), '{}'),
           array_agg(c.batch) filter (where not c.plain)
    into v_picked, v_of_lane, v_plain, v_odd
    from helix.pick(v_lane, v_share, v_turn, v_batch, v_tenants, v_passed) c;
    if v_picked is null then
      v_dry := v_dry || v_lane;
      continue;
    end if;
    v_passed := v_passed || v_picked;
    if v_odd is not null then
      v_plain := v_plain || helix.set_aside(v_odd, v_taken, p_worker);
      -- What stepped aside uses nothing of the worker's.
      v_of_lane := array(select p.lane from unnest(v_picked, v_of_lane) as p (batch, lane)
                         where p.batch = any (v_plain));
      -- A claim is one of many: it does a part of such work and leaves the rest to the next.
      v_fruitless := v_fruitless + (v_plain = '{}')::int;
      exit when v_fruitless = 10;
    end if;
    -- A share rounds up, so the lanes together may have given a few too many; those stay ready.
    v_plain := v_plain[1 : v_wanted];
    v_taken := v_taken || v_plain;
    v_wanted := v_wanted - cardinality(v_plain);
    for n in 1 .. cardinality(v_lane) loop
      v_free := helix.free_after(v_free, v_class[n],
                                 coalesce(cardinality(array_positions(v_of_lane, v_lane[n])), 0));
    end loop;
  end loop;

  -- The repeat of a call whose answer was lost meets its request id, waiting while the first is
  -- still under way, and gets the leases of the first. A call that found nothing writes nothing, so
  -- that an idle worker costs no commits.
  if v_taken = '{}' then
    if exists (select from helix.request r where r.id = p_request) then
      return query select * from helix.leases_of(p_worker, p_request);
    end if;
    return;
  end if;
  insert into helix.request (id, worker) values (p_request, p_worker) on conflict do nothing;
  if not found then
    return query select * from helix.leases_of(p_worker, p_request);
    return;
  end if;
  -- The nonce: 64 of the 122 bits that the server's strong random source puts into a UUID.
  return query
    select * from helix.lease_out(v_taken, p_worker, p_request, helix.current_epoch(),
                                  hashtextextended(gen_random_uuid()::text, 0), p_lease_seconds,
                                  p_start);
  if v_stale then
    perform helix.note_served(v_taken);
  end if;
end
$$;

-- Notes how far lanes have been served, each at most once a second and never waiting for another
-- claim.
create function helix.note_served(p_batch bigint[]) returns void
language plpgsql as $$
declare
  v_stale integer[];
begin
  v_stale := array(select l.id from helix.lane l
                   where l.served_at < clock_timestamp() - interval '1 s'
                     and l.id in (select a.lane from helix.active a where a.batch = any (p_batch))
                   for update skip locked);
  if v_stale <> '{}' then
    update helix.lane l set served = greatest(l.served, a.turn), served_at = clock_timestamp()
    from (select a.lane, max(a.turn) as turn from helix.active a
          where a.batch = any (p_batch) and a.lane = any (v_stale) group by a.lane) a
    where l.id = a.lane;
  end if;
end
$$;

-- The leases of an earlier call that are still held. Rare, so it needs no index.
create function helix.leases_of(p_worker text, p_request uuid) returns setof helix.lease
language plpgsql stable as $$
begin
  return query
    select 'leased', a.batch, null::text, false, a.state, helix.public_id(b.key), b.key,
           a.tenant, a.queue, b.identity, b.revision, b.payload::text, a.attempt, a.epoch, a.nonce,
           a.number,
           a.deadline, a.lease_seconds, a.lane, a.turn
    from helix.active a join helix.batch b on b.id = a.batch
    where a.request = p_request and a.worker = p_worker;
end
$$;

-- A worker introduces itself now and then, so that people can see who is there.
create function helix.hello_v1(p_worker text, p_free jsonb default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  insert into helix.worker (role, name, free) values (session_user, p_worker, coalesce(p_free, '{}'))
  on conflict (role, name) do update set last_seen = clock_timestamp(), free = excluded.free;
end
$$;
