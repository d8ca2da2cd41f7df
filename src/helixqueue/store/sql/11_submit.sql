-- Submit: any number of submissions of one identity make one batch (G1), and the same identity with
-- another payload is refused with what stands there (G7).
--
-- Arrays run in parallel, one element a submission; an array that is null means "the default for
-- all". Identities are canonical (parts joined by U+001F) and payloads are RFC 8785 text: the client
-- makes both, the database makes the key and the fingerprint.
-- Answers carry `place`, the position in the input: new | duplicate | conflict | refused.

create function helix.submit_v1(
  p_tenant text, p_queue text, p_actor text, p_profile text,
  p_identity text[], p_payload text[], p_raw text[] default null, p_revision text[] default null,
  p_priority smallint[] default null, p_run_at timestamptz[] default null,
  p_expires_at timestamptz[] default null, p_limit_key text[] default null,
  p_requires text[] default null
) returns table (
  place integer, decision text, batch uuid, key bytea, fingerprint bytea, state helix.state,
  payload text,      -- a conflict's stored payload, for the diff
  note text,         -- why refused
  differs text[]     -- options of a duplicate that differ from the first submission, which wins
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
-- The planner takes an array for ten rows and would join a thousand with each other one by one.
set enable_nestloop = off as $$
#variable_conflict use_column
declare
  v_queue     helix.queue;
  v_secret    helix.secret;
  v_actor     text := coalesce(p_actor, session_user);
  v_now       timestamptz := clock_timestamp();
  v_refused   text;
  v_lane      integer[];   -- the lanes of this call, parallel to the next three
  v_class     integer[];
  v_priority  smallint[];
  v_turn      bigint[];
  v_place     integer[];   -- of every submission that was not refused
  v_key       bytea[];
  v_new_place integer[];   -- of those that made a batch
  v_new_key   bytea[];
  v_new_print bytea[];
  v_parked    bigint[];    -- batches that may not be claimed yet
begin
  perform helix.enter();
  perform helix.demand_tenant(p_tenant);
  select * into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  v_refused := case
    when not found then format('tenant %s has no queue %s', p_tenant, p_queue)
    when v_queue.closed then format('queue %s is closed to submissions', p_queue)
    when v_queue.profile <> p_profile
      then format('queue %s uses profile %s, not %s', p_queue, v_queue.profile, p_profile)
  end;
  if v_refused is not null then
    return query
      select n, 'refused', null::uuid, null::bytea, null::bytea, null::helix.state, null,
             v_refused, null::text[]
      from generate_series(1, cardinality(p_payload)) n;
    return;
  end if;
  select * into v_secret from helix.secret s order by s.id desc limit 1;

  -- Classes and lanes first, so that the statement below only reads them: each lane of the call with
  -- the turn behind which this tenant's batches go.
  if p_requires is null and p_priority is null then
    v_class := array[v_queue.class];
    v_priority := array[5];
    v_lane := array[helix.lane_of(p_queue, v_queue.class, 5::smallint)];
    v_turn := array[helix.turn_after(v_lane[1], p_tenant)];
  else
    perform helix.class_of(asked.requires::jsonb)
    from (select distinct requires from unnest(p_requires) requires
          where requires is not null) asked;
    select array_agg(asked.class), array_agg(asked.priority),
           array_agg(helix.lane_of(p_queue, asked.class, asked.priority))
    into v_class, v_priority, v_lane
    from (select distinct coalesce(c.id, v_queue.class) as class,
                 coalesce(u.priority, 5::smallint) as priority
          from unnest(p_payload, p_requires, p_priority) as u (payload, requires, priority)
          left join helix.requirement_class c on c.requires = u.requires::jsonb) asked;
    -- In a statement of its own: a lane that was just made does not show to the one that made it.
    v_turn := array(select helix.turn_after(l.lane, p_tenant)
                    from unnest(v_lane) with ordinality as l (lane, place) order by l.place);
  end if;

  with given as materialized (
    select u.place::int, u.identity, u.raw, coalesce(u.revision, '') as revision, u.payload,
           coalesce(u.priority, 5)::smallint as priority, u.run_at, u.expires_at, u.limit_key,
           coalesce(c.id, v_queue.class) as class,
           -- Work without identity gets a key that nothing else will ever have.
           coalesce(u.identity, gen_random_uuid()::text) as named
    from unnest(p_identity, p_payload, p_raw, p_revision, p_priority, p_run_at, p_expires_at,
                p_limit_key, p_requires) with ordinality
      as u (identity, payload, raw, revision, priority, run_at, expires_at, limit_key, requires, place)
    left join helix.requirement_class c on c.requires = u.requires::jsonb
    where u.identity is not null or v_queue.unknown = 'accept'
  ),
  asked as materialized (
    select g.*, helix.derive_key(p_tenant, p_queue, g.named, g.revision) as key from given g
  ),
  first as materialized (
    select distinct on (a.key) a.*, l.lane, l.turn,
           case when a.run_at > v_now then 'delay' when v_queue.paused then 'paused' end::helix.cause
             as cause
    from asked a
    join unnest(v_lane, v_class, v_priority, v_turn) as l (lane, class, priority, turn)
      on l.class = a.class and l.priority = a.priority
    where a.expires_at is null or a.expires_at > v_now
    order by a.key, a.place
  ),
  -- Sorted by key, so that two submitters of overlapping sets wait for each other in one direction.
  won as (
    insert into helix.identity as i (key, batch, tenant, fingerprint, secret)
    select f.key, nextval('helix.batch_id'), p_tenant,
           sha256(v_secret.outer_pad || sha256(v_secret.inner_pad || convert_to(f.payload, 'UTF8'))),
           v_secret.id
    from first f order by f.key
    on conflict do nothing
    returning i.key, i.batch, i.fingerprint
  ),
  placed as materialized (
    select f.*, w.batch, w.fingerprint from won w join first f using (key)
  ),
  stored as (
    insert into helix.batch (id, key, tenant, slot, queue, identity, raw, profile, revision, payload,
                             class, priority, run_at, expires_at, limit_key, actor, created_at)
    select p.batch, p.key, p_tenant,
           helix.derive_slot(p_tenant, p.named),
           p_queue, p.identity, nullif(p.raw, p.identity), p_profile, p.revision, p.payload::json,
           p.class, p.priority, p.run_at, p.expires_at, p.limit_key, v_actor, v_now
    from placed p
  ),
  readied as (
    insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn, limit_key,
                             expires_at)
    select p.batch, p_tenant, 1, 0, v_actor, 'submitted', p.lane,
           p.turn + row_number() over (partition by p.lane order by p.place),
           p.limit_key, p.expires_at
    from placed p where p.cause is null
  )
  select array_agg(a.place), array_agg(a.key),
         array_agg(p.place) filter (where p.batch is not null),
         array_agg(p.key) filter (where p.batch is not null),
         array_agg(p.fingerprint) filter (where p.batch is not null),
         array_agg(p.batch) filter (where p.cause is not null)
  into v_place, v_key, v_new_place, v_new_key, v_new_print, v_parked
  from asked a left join placed p on p.place = a.place;

  -- Apart from the statement above, because most submissions need neither and every insert, even
  -- of no rows, pays for its triggers.
  if v_parked is not null then
    insert into helix.waiting (batch, tenant, version, attempt, actor, reason, lane, queue, cause,
                               due, limit_key, expires_at)
    select b.id, p_tenant, 1, 0, v_actor, 'submitted', l.id, p_queue,
           case when b.run_at > v_now then 'delay' else 'paused' end::helix.cause,
           case when b.run_at > v_now then b.run_at end, b.limit_key, b.expires_at
    from helix.batch b
    join helix.lane l on l.queue = p_queue and l.class = b.class and l.priority = b.priority
    where b.id = any (v_parked);
  end if;
  if p_limit_key is not null then
    insert into helix.key_limit (tenant, queue, key)
    select distinct p_tenant, p_queue, u.key from unnest(p_limit_key) as u (key)
    where u.key is not null order by 3
    on conflict do nothing;
  end if;

  return query
    select n.place, 'new', helix.public_id(n.key), n.key, n.print, 'PENDING'::helix.state,
           null::text, null::text, null::text[]
    from unnest(v_new_place, v_new_key, v_new_print) as n (place, key, print);
  if coalesce(cardinality(v_new_place), 0) = cardinality(p_payload) then
    return;
  end if;

  return query
    select u.n::int, 'refused', null::uuid, null::bytea, null::bytea, null::helix.state, null,
           'no identity, and the queue refuses unknown work', null::text[]
    from unnest(p_identity) with ordinality as u (identity, n)
    where not u.n = any (coalesce(v_place, '{}'));

  -- A second statement, hence a new snapshot: the winners of the race have committed by now. What has
  -- no key even here had expired when it came; a repeat that expired meanwhile gets its receipt.
  -- Tables are narrowed by array before they are joined, or a repeat would read them whole.
  return query
    with known as materialized (
      select a.place, i.key, i.batch, i.fingerprint,
             i.fingerprint = helix.fingerprint(s, p_payload[a.place]) as same
      from unnest(v_place, v_key) as a (place, key)
      left join (select * from helix.identity i where i.key = any (v_key)) i on i.key = a.key
      left join helix.secret s on s.id = i.secret
      where not a.place = any (coalesce(v_new_place, '{}'))
    ),
    noted as (
      insert into helix.decision (tenant, queue, kind, batch, actor)
      select p_tenant, p_queue, case when k.same then 'duplicate' else 'conflict' end, k.batch, v_actor
      from known k where k.key is not null
    )
    select k.place,
           case when k.key is null then 'refused' when k.same then 'duplicate' else 'conflict' end,
           helix.public_id(k.key), k.key, k.fingerprint, helix.state_of(k.batch),
           case when not k.same then b.payload::text end,
           case when k.key is null then 'expires_at is in the past' end,
           case when k.same then array_remove(array[
             case when b.priority <> coalesce(p_priority[k.place], 5) then 'priority' end,
             case when b.run_at is distinct from p_run_at[k.place] then 'run_at' end,
             case when b.expires_at is distinct from p_expires_at[k.place] then 'expires_at' end,
             case when b.limit_key is distinct from p_limit_key[k.place] then 'limit_key' end,
             case when b.class <> coalesce(c.id, v_queue.class) then 'requires' end], null) end
    from known k
    left join (select * from helix.batch b
               where b.id = any (array(select known.batch from known))) b on b.id = k.batch
    left join helix.requirement_class c on c.requires = p_requires[k.place]::jsonb;
end
$$;

-- Where one batch stands, also after retention. A batch always stands somewhere, but between the
-- look-ups of one statement nothing moves: they share a snapshot.
create function helix.state_of(p_batch bigint) returns helix.state
language sql stable as $$
  select coalesce(
    (select o.state from helix.outcome o where o.batch = p_batch),
    (select a.state from helix.active a where a.batch = p_batch),
    (select r.state from helix.ready r where r.batch = p_batch),
    (select w.state from helix.waiting w where w.batch = p_batch),
    (select d.state from helix.retired d where d.batch = p_batch))
$$;

-- Submissions that never reached submit_v1 because their identity broke its profile: kept with
-- the raw bytes, so that a lab can find the tube.
create function helix.note_refused_v1(
  p_tenant text, p_queue text, p_actor text, p_raw bytea[], p_why text[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  perform helix.demand_tenant(p_tenant);
  insert into helix.decision (tenant, queue, kind, actor, detail)
  select p_tenant, p_queue, 'refused', coalesce(p_actor, session_user),
         jsonb_build_object('raw_hex', encode(substr(u.raw, 1, 4096), 'hex'), 'why', u.why)::text
  from unnest(p_raw, p_why) as u (raw, why);
end
$$;
