-- Claim: leases for a worker, at most p_count and no more than fit what it has free.
-- In one call it may settle what is finished, and start what it takes: one commit a round.

create type helix.lease as (
  answer        text,     -- leased; the answer to a settlement of this call; or more: there are
                          -- further batches, but these are as much as one answer carries
  batch         bigint,
  owner         text,     -- of a refused settlement
  late          boolean,  -- of a settlement
  state         helix.state,
  key           helix.key,
  tenant        helix.tenant_name,
  queue         text,
  identity      helix.identity_text,
  revision      helix.short_text,
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
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
-- And every join is a look-up by key: hashing or merging, planned while a table was empty, would read
-- the whole of it ever after.
set enable_hashjoin = off set enable_mergejoin = off
-- On PostgreSQL 15 to 17 a disabled path counts as enormously dear, and dear plans are compiled.
set jit = off as $$
declare
  v_tenants text[] := helix.enter();
  v_free    helix.resources := helix.read_resources(p_free);
  v_count   integer := least(p_count, 1000);
  v_due     text[];
  v_answers helix.answer[];
  v_lease   helix.lease;
  v_choice  helix.choice;
  v_chosen  integer;
  v_portion integer;
  v_epoch   integer;
  v_nonce   bigint;
begin
  -- A repeat that overtakes its first call would find every batch locked and answer "nothing", and
  -- the leases of the first would be nobody's until they ran out. So it waits here. No more than the
  -- waiting rests on this lock: which call is the first is decided by the key of helix.request.
  -- (As a condition it is evaluated; as a statement it would be planned and executed.)
  if pg_advisory_xact_lock(hashtextextended(p_request::text, 0)) is null then
    return;
  end if;
  if p_done_batch is not null then
    v_answers := helix.settle(
      p_worker, p_done_batch, p_done_epoch, p_done_nonce, p_done_number, p_done_outcome,
      p_done_result, p_done_failure, p_done_detail, p_done_permanent, p_done_after);
    if cardinality(v_answers) = 1 then
      -- One row is quicker made by hand than queried.
      v_lease.answer := v_answers[1].answer;
      v_lease.batch := v_answers[1].batch;
      v_lease.owner := v_answers[1].owner;
      v_lease.late := v_answers[1].late;
      v_lease.state := v_answers[1].state;
      return next v_lease;
    else
      return query
        select a.answer, a.batch, a.owner, a.late, a.state, null::helix.key, null::helix.tenant_name,
               null, null::helix.identity_text, null::helix.short_text, null, null::smallint,
               null::integer, null::bigint, null::bigint, null::timestamptz, null::real,
               null::integer, null::bigint
        from unnest(v_answers) a;
    end if;
  end if;
  v_due := helix.duties_due();
  if v_due is not null or v_tenants is not null then
    perform helix.tend(p_worker, v_tenants, v_due);
  end if;

  if v_count = 1 and v_tenants is null then
    v_choice := helix.choose_one(p_queues, v_free, p_hint_lane, p_hint_turn, p_hint_batch);
  end if;
  if v_choice.batch is null then
    v_choice := helix.choose(p_worker, p_queues, v_tenants, v_free, v_count, p_hint_lane,
                             p_hint_turn, p_hint_batch);
  end if;

  -- The repeat of a call whose answer was lost meets its request id, waiting while the first is
  -- still under way, and gets the leases of the first. A call that found nothing writes nothing, so
  -- that an idle worker costs no commits.
  if v_choice.batch = '{}' then
    if exists (select from helix.request r where r.id = p_request) then
      return query select * from helix.leases_of(p_worker, p_request);
    end if;
    return;
  end if;
  -- Up to sixteen cannot be too much, and are not looked at. What is left stays ready.
  v_chosen := cardinality(v_choice.batch);
  v_portion := case when v_chosen <= 16 then v_chosen else helix.portion(v_choice.batch) end;
  if v_portion < v_chosen then
    v_choice := (v_choice.batch[: v_portion], v_choice.tuple[: v_portion],
                 v_choice.queue[: v_portion], v_choice.lease_seconds[: v_portion], v_choice.stale);
  end if;
  v_epoch := helix.current_epoch();
  -- 64 of the 122 bits that the server's strong random source puts into a UUID.
  v_nonce := hashtextextended(gen_random_uuid()::text, 0);
  -- From ready to active under fresh tokens, with what the worker needs; nothing where the request id
  -- is known. The attempt is counted here, in the transaction of the claim, so that a crash counts.
  return query
    with asked as (
      insert into helix.request (id, worker) values (p_request, p_worker)
      on conflict do nothing returning id
    ),
    taken as (
      delete from helix.ready r
      using unnest(v_choice.tuple, v_choice.queue, v_choice.lease_seconds)
        as u (tuple, queue, lease_seconds)
      where r.ctid = u.tuple and exists (select from asked)
      returning r.batch, r.tenant, r.version, r.attempt, r.lane, r.turn, r.limit_key, u.queue,
                coalesce(p_lease_seconds, u.lease_seconds) as lease_seconds
    ),
    leased as (
      insert into helix.active (batch, tenant, state, version, attempt, epoch, number, actor, reason,
                                nonce, worker, deadline, lane, turn, queue, lease_seconds, request,
                                limit_key)
      select t.batch, t.tenant, case when p_start then 'RUNNING' else 'ASSIGNED' end::helix.state,
             t.version + 1 + p_start::int, t.attempt + 1, v_epoch, nextval('helix.lease_number'),
             p_worker, case when p_start then 'started' else 'claimed' end::helix.reason, v_nonce,
             p_worker, clock_timestamp() + make_interval(secs => t.lease_seconds), t.lane, t.turn,
             t.queue, t.lease_seconds, p_request, t.limit_key
      from taken t
      returning batch, state, tenant, queue, attempt, number, deadline, lease_seconds, lane, turn
    )
    select 'leased', l.batch, null::text, false, l.state, b.key, l.tenant, l.queue, b.identity,
           b.revision, b.payload::text, l.attempt, v_epoch, v_nonce, l.number,
           l.deadline, l.lease_seconds, l.lane, l.turn
    from leased l join helix.batch b on b.id = l.batch;
  if not found then
    return query select * from helix.leases_of(p_worker, p_request);
    return;
  end if;
  if v_portion < v_chosen then
    v_lease := null;
    v_lease.answer := 'more';
    return next v_lease;
  end if;
  if v_choice.stale then
    perform helix.note_served(v_choice.batch);
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
    select 'leased', a.batch, null::text, false, a.state, b.key,
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
