-- Claim: leases for a worker, at most p_count and no more than fit its free resources. One call may
-- also settle finished leases and start the new ones, all in one commit.

-- One lease. What the leases of a call have in common is in the first row, whose batch is null and whose
-- payload is JSON (`claim_header`), so that server and client handle fewer columns per lease.
create type helix.lease as (
  batch    bigint,
  queue    integer,
  attempt  smallint,
  key      helix.key,
  identity helix.identity_text,
  revision helix.revision_text,
  payload  text,
  run      bigint
);

-- The answers to settlements, for the header. A function of its own: with its query the header could not be
-- evaluated as an expression.
create function helix.settled_json(p_settled helix.answer[]) returns text
language sql stable as $$
  select coalesce(json_agg(json_build_array(a.batch, a.answer, a.owner, a.state, a.late, a.mismatch))::text,
                  'null')
  from unnest(p_settled) a
$$;

-- The first row of a claim's answer.
--   settled   null: everything was completed in time; else [batch, answer, owner, state, late, mismatch]
--             for each settlement
--   state, epoch, nonce, number   of the leases
--   queues    {"id": [tenant, name, lease seconds, deadline in microseconds since 1970]}
--   hints     [lane or member of it, turn, batch] up to which this call looked, for the next claim
--   more      there are further batches, but one answer does not carry them
create function helix.claim_header(
  p_settled helix.answer[], p_state helix.state, p_epoch integer, p_nonce bigint, p_number bigint,
  p_queues text, p_hints text, p_more boolean
) returns helix.lease
language sql stable as $$
  select row(null, null, null, null, null, null, format(
    '{"settled":%s,"state":"%s","epoch":%s,"nonce":%s,"number":%s,"queues":{%s},"hints":[%s],"more":%s}',
    case when p_settled is null then 'null' else helix.settled_json(p_settled) end,
    p_state, coalesce(p_epoch, 0), coalesce(p_nonce, 0), coalesce(p_number, 0), p_queues, p_hints,
    p_more::text), null)::helix.lease
$$;

-- One queue of the header.
create function helix.queue_header(
  p_id integer, p_tenant text, p_name text, p_seconds real, p_deadline timestamptz
) returns text
language sql stable as $$
  select format('"%s":["%s","%s",%s,%s]', p_id, p_tenant, p_name, p_seconds,
                floor(extract(epoch from p_deadline) * 1000000)::bigint)
$$;

-- Settles, does the duties that are due, then leases batches, most urgent first. With p_tenant only that
-- tenant's, also where the login may act for others.
create function helix.claim_v1(
  p_worker text, p_request uuid, p_queues text[], p_count integer, p_free jsonb default null,
  p_start boolean default false, p_lease_seconds real default null,
  p_hint_lane integer[] default null, p_hint_turn bigint[] default null,
  p_hint_batch bigint[] default null,
  p_done_batch bigint[] default null, p_done_epoch integer[] default null,
  p_done_nonce bigint[] default null, p_done_number bigint[] default null,
  p_done_outcome text[] default null, p_done_result text[] default null,
  p_done_failure text[] default null, p_done_detail text[] default null,
  p_done_permanent boolean[] default null, p_done_after real[] default null,
  p_tenant text default null
) returns setof helix.lease
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
-- A queue is read from its front, through an index, a few rows at a time. Statistics of a table that
-- fills and empties within a minute are outdated, and a plan made of them sorts a whole lane for five
-- rows. Every join is a look-up by key: hashing or merging, planned while a table was empty, would read
-- all of it from then on.
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set enable_hashjoin = off set enable_mergejoin = off
-- On PostgreSQL 15 to 17 a disabled path has an enormous cost, and expensive plans are compiled.
set jit = off as $$
declare
  v_tenants text[] := case when p_tenant is null then helix.enter() else helix.enter_for(p_tenant) end;
  v_mine    integer[] := helix.claimable_queues(
    case when p_tenant is null then v_tenants else array[p_tenant] end, p_queues);
  v_free    helix.resources := helix.resources_of(p_free);
  v_count   integer := least(p_count, 1000);
  v_settled helix.answer[];
  v_is_shared boolean;     -- among tenants
  v_one     helix.chosen;
  v_leased  helix.lease[];
  v_choice  helix.choice;
  v_chosen  integer;
  v_prefix  integer;       -- how many of them this answer carries
  v_seconds helix.lease_seconds := p_lease_seconds;
  v_epoch   integer;
  v_entry   bigint;
  v_nonce   bigint;
  v_now     timestamptz;
  v_state   helix.state;
begin
  p_worker := helix.actor_of(p_worker);
  -- A repeat that overtakes its first call would find every batch locked and answer "nothing", and
  -- no worker would know of the first call's leases until they expired. So it waits here. Only the waiting
  -- depends on this lock: the key of helix.request decides which call is the first.
  -- (As a condition it is evaluated; as a statement it would be planned and executed.)
  if pg_advisory_xact_lock(hashtextextended(p_request::text, 0)) is null then
    return;
  end if;
  if p_done_batch is not null then
    v_epoch := helix.current_epoch();  -- compares the timeline before an id is drawn
    v_settled := helix.settle(
      p_worker, p_done_batch, p_done_epoch, p_done_nonce, p_done_number, p_done_outcome,
      p_done_result, p_done_failure, p_done_detail, p_done_permanent, p_done_after);
  end if;
  perform helix.run_claim_duties(p_worker);

  if v_free.host is not null then
    return query select * from helix.claim_on_host(p_worker, p_request, p_queues, v_mine, p_free, p_start, v_seconds,
                                                   v_epoch, v_settled);
    return;
  end if;
  v_is_shared := cardinality(v_mine) is distinct from 1 and helix.is_shared(p_queues, v_mine);
  if v_count = 1 and not v_is_shared and (v_mine is null or cardinality(v_mine) = 1) then
    v_one := helix.choose_one(p_queues, v_mine[1], v_free, p_hint_lane, p_hint_turn, p_hint_batch);
    if v_one.plain then
      v_leased := helix.lease_one(v_one, p_worker, p_request, p_start, v_seconds, v_epoch, v_settled);
      if v_leased is null then
        return query select * from helix.leases_of(p_worker, p_request, v_settled);
        return;
      end if;
      return next v_leased[1];
      return next v_leased[2];
      if v_one.stale then
        perform helix.note_served(array[v_one.lane], array[v_one.turn]);
      end if;
      return;
    elsif v_one.batch is null then
      v_choice.batch := '{}';
    end if;
  end if;
  if v_choice.batch is null then
    v_choice := helix.choose(p_worker, p_queues, v_mine, v_is_shared, v_free, v_count,
                             p_hint_lane, p_hint_turn, p_hint_batch);
  end if;

  -- The repeat of a call whose answer was lost gets the leases of the first call. A call that found
  -- nothing writes nothing, so that an idle worker costs no commits.
  if v_choice.batch = '{}' then
    if exists (select from helix.request r where r.id = p_request) then
      return query select * from helix.leases_of(p_worker, p_request, v_settled);
    else
      return next helix.claim_header(v_settled, null, null, null, null, '', '', false);
    end if;
    return;
  end if;
  -- Up to sixteen payloads cannot be too much. What is left stays claimable.
  v_chosen := cardinality(v_choice.batch);
  v_prefix := case when v_chosen <= 16 then v_chosen else helix.payload_prefix(v_choice.bytes) end;
  if v_epoch is null then
    v_epoch := helix.current_epoch();
  end if;
  v_entry := nextval('helix.entry_id');
  -- 64 of the 122 bits that the server's strong random source puts into a UUID.
  v_nonce := hashtextextended(gen_random_uuid()::text, 0);
  v_now := clock_timestamp();
  v_state := case when p_start then 'RUNNING' else 'ASSIGNED' end;
  -- The reaper looks at this call once after ten seconds, because most leases have ended by then, and
  -- from there on at the least deadline that is left.
  insert into helix.request (id, number, worker, unsettled, due)
  values (p_request, v_entry, p_worker, v_prefix, v_now + make_interval(
            secs => least(10, v_seconds, (select min(s) from unnest(v_choice.lease_seconds) s))))
  on conflict do nothing;
  if not found then
    return query select * from helix.leases_of(p_worker, p_request, v_settled);
    return;
  end if;
  return next helix.claim_header(
    v_settled, v_state, v_epoch, v_nonce, v_entry,
    (select string_agg(helix.queue_header(q.id, q.tenant, q.name, l.seconds,
                                          v_now + make_interval(secs => l.seconds)), ',')
     from helix.queue q
     cross join lateral (select coalesce(v_seconds, q.lease_seconds) as seconds) l
     where q.id in (select unnest(v_choice.queue[: v_prefix]))),
    (select string_agg(format('[%s,%s,%s]', h.lane, h.turn, h.batch), ',')
     from (select distinct on (u.lane) u.lane, u.turn, u.batch
           from unnest(v_choice.hint[: v_prefix], v_choice.turn[: v_prefix], v_choice.batch[: v_prefix])
             as u (lane, turn, batch)
           order by u.lane, u.turn desc, u.batch desc) h),
    v_prefix < v_chosen);
  -- The attempt is counted here, in the transaction of the claim, so that a crash counts.
  return query
    with leased as (
      update helix.work w
      set state = v_state, pending = false, version = w.version + 1 + p_start::int,
          version_before = w.version,
          attempt = w.attempt + 1, epoch = v_epoch, nonce = v_nonce, number = v_entry,
          deadline = v_now + make_interval(secs => coalesce(v_seconds, u.seconds)),
          lease_seconds = coalesce(v_seconds, u.seconds), entry = v_entry, before = w.entry,
          came_from = w.state, reason = case when p_start then 'started' else 'claimed' end::helix.reason,
          changed_at = v_now, actor = p_worker, step = true, late = false, content = null
      from unnest(v_choice.tuple[: v_prefix], v_choice.lease_seconds[: v_prefix]) as u (tuple, seconds)
      where w.ctid = u.tuple
      returning w.batch, w.queue, w.attempt
    )
    select l.batch, l.queue, l.attempt, b.key, b.identity, b.revision, b.payload::text, b.run
    from leased l join helix.batch b on b.id = l.batch;
  if v_choice.stale then
    perform helix.note_served(v_choice.lane, v_choice.turn);
  end if;
end
$$;

-- Records how far lanes have been served, each at most once a second and never waiting for another claim.
create function helix.note_served(p_lane integer[], p_turn bigint[]) returns void
language plpgsql as $$
declare
  v_stale integer[];
begin
  v_stale := array(select l.id from helix.lane l
                   where l.id = any (p_lane) and l.served_at < clock_timestamp() - interval '1 s'
                   for update skip locked);
  if v_stale <> '{}' then
    update helix.lane l set served = greatest(l.served, u.turn), served_at = clock_timestamp()
    from (select u.lane, max(u.turn) as turn from unnest(p_lane, p_turn) as u (lane, turn)
          group by u.lane) u
    where l.id = u.lane and l.id = any (v_stale);
  end if;
end
$$;

-- The answer to the repeat of a call: its leases that are still held. The ledger entry of the claim names
-- their batches.
create function helix.leases_of(p_worker text, p_request uuid, p_settled helix.answer[])
returns setof helix.lease
language plpgsql as $$
declare
  v_queues integer[] := helix.scope_queues();
  v_held   bigint[];
begin
  -- Counted: a second assignment that was prevented.
  insert into helix.metric_change (tenant, name, queue, label, value)
  select distinct q.tenant, 'helix_assign_conflict_total', q.name, 'claim', 1
  from helix.request r
  join helix.entry e on e.id = r.number
  cross join lateral unnest(e.queue) as u (queue)
  join helix.queue q on q.id = u.queue
  where r.id = p_request and r.worker = p_worker and (v_queues is null or u.queue = any (v_queues));
  v_held := array(
    select w.batch
    from helix.request r
    join helix.entry e on e.id = r.number
    cross join lateral unnest(e.batch) as u (batch)
    cross join lateral (select l.batch, l.queue from helix.work l
                        where l.batch = u.batch and l.number = r.number
                          and l.state in ('ASSIGNED', 'RUNNING') offset 0) w
    where r.id = p_request and r.worker = p_worker
      and (v_queues is null or w.queue = any (v_queues)));
  return query
    select (h.header).*
    from (select helix.with_devices(helix.claim_header(
                   p_settled, max(w.state), max(w.epoch), max(w.nonce), max(w.number),
                   (select string_agg(helix.queue_header(q.id, q.tenant, q.name, d.seconds, d.deadline), ',')
                    from (select l.queue, min(l.lease_seconds) as seconds, min(l.deadline) as deadline
                          from helix.work l where l.batch = any (v_held) group by l.queue) d
                    join helix.queue q on q.id = d.queue), '', false), max(w.number), '[]') as header
          from helix.work w where w.batch = any (v_held)) h;
  return query
    select w.batch, w.queue, w.attempt, b.key, b.identity, b.revision, b.payload::text, b.run
    from helix.work w join helix.batch b on b.id = w.batch
    where w.batch = any (v_held);
end
$$;

-- Records that a worker is alive, or that it has ended, so that lists of workers show it. With p_tenant it serves
-- that tenant only, else every tenant of its login. p_free null: as last reported.
create function helix.hello_v1(
  p_worker text, p_free jsonb default null, p_tenant text default null, p_ended boolean default false
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_tenants text[] := case when p_tenant is null then helix.enter() else helix.enter_for(p_tenant) end;
begin
  if p_tenant is not null then
    v_tenants := array[p_tenant];
  end if;
  insert into helix.worker as w (tenant, name, role, shared, free, ended_at)
  select t.tenant, helix.actor_of(p_worker), session_user, v_tenants is null or cardinality(v_tenants) > 1,
         coalesce(p_free, '{}'), case when p_ended then clock_timestamp() end
  from (select unnest(coalesce(v_tenants, '{*}')) as tenant order by 1) t
  on conflict (tenant, name, role) do update
    set last_seen = clock_timestamp(), ended_at = excluded.ended_at, shared = excluded.shared,
        free = coalesce(p_free, w.free);
end
$$;
