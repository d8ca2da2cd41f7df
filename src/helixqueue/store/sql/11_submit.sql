-- Submit: any number of submissions of one identity make one batch (G1), and the same identity with
-- another payload is refused with what stands there (G7).
--
-- Arrays run in parallel, one element a submission; an array that is null means "the default for
-- all". Identities are canonical (parts joined by U+001F) and payloads are RFC 8785 text: the client
-- makes both, the database makes the key and the fingerprint.
-- Answers carry `place`, the position in the input: new | duplicate | conflict | refused.

-- The answer to one submission.
create type helix.submitted as (
  place       integer,
  decision    text,
  key         helix.key, -- helix.public_id(key) is the batch's id
  fingerprint bytea,
  state       helix.state,
  payload     text,      -- a conflict's stored payload, for the diff
  note        text,      -- why refused
  differs     text[]     -- options of a duplicate that differ from the first submission, which wins
);

-- Submits: the short way for one, or the long way.
create function helix.submit_v1(
  p_tenant text, p_queue text, p_actor text, p_profile text,
  p_identity text[], p_payload text[], p_raw text[] default null, p_revision text[] default null,
  p_priority smallint[] default null, p_run_at timestamptz[] default null,
  p_expires_at timestamptz[] default null, p_limit_key text[] default null,
  p_requires text[] default null
) returns setof helix.submitted
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_tenants text[] := helix.enter_for(p_tenant);
  v_actor   text := coalesce(p_actor, session_user);
  v_one     helix.submitted;
begin
  if cardinality(p_payload) = 1 and p_identity[1] is not null and p_requires is null
     and p_run_at is null and p_expires_at is null and p_limit_key is null
  then
    v_one := helix.submit_one(p_tenant, p_queue, v_actor, p_profile, p_identity[1], p_payload[1],
                              p_raw[1], coalesce(p_revision[1], ''),
                              coalesce(p_priority[1], 5::smallint));
    if v_one.place is not null then
      return next v_one;
      return;
    end if;
  end if;
  return query
    select * from helix.submit_many(
      p_tenant, p_queue, v_actor, p_profile, p_identity, p_payload, p_raw, p_revision, p_priority,
      p_run_at, p_expires_at, p_limit_key, p_requires);
end
$$;

-- One submission that is new, has an identity and asks for nothing special, in four statements.
-- Whatever is not so is null here and takes the long way, which does all over again: a race that is
-- lost here is lost there too.
create function helix.submit_one(
  p_tenant text, p_queue text, p_actor text, p_profile text, p_identity text, p_payload text,
  p_raw text, p_revision text, p_priority smallint
) returns helix.submitted
language plpgsql
-- Every row here is found by its key: a plan made while the tables were small would sort and merge
-- them, which was a fifth of the whole, and read all of `ready` once that has grown.
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_hashjoin = off set enable_sort = off set jit = off as $$
declare
  v_to     record;
  v_key    bytea;
  v_print  bytea;
  v_batch  bigint;
begin
  -- The queue, the lane of its usual work and the tenant's last turn in it, the secret, and whether
  -- anybody waits for work.
  select q.class, l.id as lane,
         greatest(l.served, (select r.turn from helix.ready r
                             where r.lane = l.id and r.tenant = p_tenant and r.turn > l.served
                             order by r.turn desc limit 1)) as turn,
         s.id as secret, s.inner_pad, s.outer_pad,
         exists (select from helix.waiter w
                 where w.queue = p_queue and w.until > clock_timestamp()) as awaited
  into v_to
  from helix.queue q
  join helix.lane l on l.queue = q.name and l.class = q.class and l.priority = p_priority
  cross join lateral (select * from helix.secret order by id desc limit 1) s
  where q.tenant = p_tenant and q.name = p_queue and q.profile = p_profile
    and not q.closed and not q.paused;
  if not found then
    return null;
  end if;
  v_key := helix.derive_key(p_tenant, p_queue, p_identity, p_revision);
  v_print := sha256(v_to.outer_pad || sha256(v_to.inner_pad || convert_to(p_payload, 'UTF8')));
  -- The race for the key.
  insert into helix.identity as i (key, batch, tenant, fingerprint, secret)
  values (v_key, nextval('helix.batch_id'), p_tenant, v_print, v_to.secret)
  on conflict do nothing
  returning i.batch into v_batch;
  if not found then
    return null;
  end if;
  insert into helix.batch (id, key, tenant, queue, identity, raw, profile, revision, payload, class,
                           priority, actor)
  values (v_batch, v_key, p_tenant, p_queue, p_identity, nullif(p_raw, p_identity), p_profile,
          p_revision, p_payload::json, v_to.class, p_priority, p_actor);
  insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn)
  values (v_batch, p_tenant, 1, 0, p_actor, 'submitted', v_to.lane, v_to.turn + 1);
  if v_to.awaited then
    perform pg_notify(helix.wake_channel(p_queue), '');
  end if;
  return (1, 'new', v_key, v_print, 'PENDING', null, null, null)::helix.submitted;
end
$$;

-- Any number of submissions of any kind.
create function helix.submit_many(
  p_tenant text, p_queue text, p_actor text, p_profile text, p_identity text[], p_payload text[],
  p_raw text[], p_revision text[], p_priority smallint[], p_run_at timestamptz[],
  p_expires_at timestamptz[], p_limit_key text[], p_requires text[]
) returns setof helix.submitted
language plpgsql
-- The planner takes an array for ten rows and would join a thousand with each other one by one.
set enable_nestloop = off
-- On PostgreSQL 15 to 17 a disabled path counts as enormously dear, and dear plans are compiled.
set jit = off as $$
declare
  v_queue    helix.queue;
  v_secret   helix.secret;
  v_now      timestamptz := clock_timestamp();
  v_refused  text;
  v_scope    bytea := helix.framed(p_tenant) || helix.framed(p_queue);
  v_key      bytea[];      -- by place; null where there is no identity and the queue wants one
  v_class    integer[];    -- by place; null where every submission has the queue's own
  v_lane     integer[];    -- by place, likewise
  v_turn     bigint[];     -- by place, likewise: the turn behind which its lane goes on
  v_usual    integer;      -- the lane of submissions without options
  v_behind   bigint;       -- and its turn
  v_print    bytea[];      -- by place: fingerprints
  v_id       bigint[];     -- by place: what its batch will be, if it makes one
  v_place    integer[];    -- of submissions that made a batch, parallel to
  v_batch    bigint[];     -- their batches
begin
  select * into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  v_refused := case
    when not found then format('tenant %s has no queue %s', p_tenant, p_queue)
    when v_queue.profile <> p_profile
      then format('queue %s uses profile %s, not %s', p_queue, v_queue.profile, p_profile)
  end;
  if v_refused is not null then
    insert into helix.decision (tenant, queue, kind, actor, detail)
    values (p_tenant, p_queue, 'refused', p_actor, v_refused);
    return query
      select n, 'refused', null::helix.key, null::bytea, null::helix.state, null,
             v_refused, null::text[]
      from generate_series(1, cardinality(p_payload)) n;
    return;
  end if;
  select * into v_secret from helix.secret s order by s.id desc limit 1;

  -- The keys. Work without identity gets one that nothing else will ever have; the sub-select makes
  -- one name of it before it is hashed.
  v_key := array(
    select case when u.identity is not null or v_queue.unknown = 'accept'
                then helix.key_within(v_scope, u.named, u.revision) end
    from (select g.identity, coalesce(g.identity, gen_random_uuid()::text) as named,
                 coalesce(g.revision, '') as revision, g.place
          from unnest(p_identity, p_revision) with ordinality as g (identity, revision, place)
          offset 0) u
    order by u.place);

  if p_requires is null and p_priority is null then
    v_usual := helix.lane_of(p_queue, v_queue.class, 5::smallint);
    v_behind := helix.turn_after(v_usual, p_tenant);
  else
    select l.class, l.lane, l.turn into v_class, v_lane, v_turn
    from helix.lanes_of(p_tenant, p_queue, v_queue.class, p_requires, p_priority,
                        cardinality(p_payload)) l;
  end if;

  if not v_queue.closed then   -- Where it is, there is nothing new; what is known still answers below.
    v_print := array(
      select sha256(v_secret.outer_pad || sha256(v_secret.inner_pad || convert_to(u.payload, 'UTF8')))
      from unnest(p_payload) with ordinality as u (payload, place) order by u.place);
    v_id := array(select nextval('helix.batch_id') from generate_series(1, cardinality(p_payload)));
    v_batch := helix.win(p_tenant, v_secret.id, v_key, v_id, v_print, p_expires_at, v_now);
    if cardinality(v_batch) = cardinality(p_payload) then
      v_batch := v_id;
      v_place := array(select generate_series(1, cardinality(p_payload)));
    elsif v_batch is not null then
      select array_agg(u.place order by u.place), array_agg(u.id order by u.place)
      into v_place, v_batch
      from unnest(v_id) with ordinality as u (id, place) where u.id in (select unnest(v_batch));
    end if;
  end if;

  if v_place is not null then
    insert into helix.batch (id, key, tenant, queue, identity, raw, profile, revision, payload, class,
                             priority, run_at, expires_at, limit_key, actor, created_at)
    select n.batch, v_key[n.place], p_tenant, p_queue, p_identity[n.place],
           nullif(p_raw[n.place], p_identity[n.place]), p_profile, coalesce(p_revision[n.place], ''),
           p_payload[n.place]::json, coalesce(v_class[n.place], v_queue.class),
           coalesce(p_priority[n.place], 5), p_run_at[n.place], p_expires_at[n.place],
           p_limit_key[n.place], p_actor, v_now
    from unnest(v_place, v_batch) as n (place, batch);

    if v_queue.paused then
      null;
    elsif v_lane is null and p_run_at is null then
      insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn, limit_key,
                               expires_at)
      select n.batch, p_tenant, 1, 0, p_actor, 'submitted', v_usual, v_behind + n.nth,
             p_limit_key[n.place], p_expires_at[n.place]
      from unnest(v_place, v_batch) with ordinality as n (place, batch, nth);
    else
      insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn, limit_key,
                               expires_at)
      select n.batch, p_tenant, 1, 0, p_actor, 'submitted', n.lane,
             n.turn + row_number() over (partition by n.lane order by n.place),
             p_limit_key[n.place], p_expires_at[n.place]
      from (select u.batch, u.place, coalesce(v_lane[u.place], v_usual) as lane,
                   coalesce(v_turn[u.place], v_behind) as turn
            from unnest(v_place, v_batch) as u (place, batch)
            where p_run_at[u.place] is null or p_run_at[u.place] <= v_now) n;
    end if;
    if not v_queue.paused
       and exists (select from helix.waiter w where w.queue = p_queue and w.until > v_now)
    then
      perform pg_notify(helix.wake_channel(p_queue), '');
    end if;
    -- Apart, because most submissions need neither, and every insert, even of no rows, pays for its
    -- triggers.
    if v_queue.paused or p_run_at is not null then
      insert into helix.waiting (batch, tenant, version, attempt, actor, reason, lane, queue, cause,
                                 due, limit_key, expires_at)
      select n.batch, p_tenant, 1, 0, p_actor, 'submitted', coalesce(v_lane[n.place], v_usual),
             p_queue, case when p_run_at[n.place] > v_now then 'delay' else 'paused' end::helix.cause,
             case when p_run_at[n.place] > v_now then p_run_at[n.place] end, p_limit_key[n.place],
             p_expires_at[n.place]
      from unnest(v_place, v_batch) as n (place, batch)
      where v_queue.paused or p_run_at[n.place] > v_now;
    end if;
    if p_limit_key is not null then
      insert into helix.key_limit (tenant, queue, key)
      select distinct p_tenant, p_queue, u.key from unnest(p_limit_key) as u (key)
      where u.key is not null order by 3
      on conflict do nothing;
    end if;
    return query
      select n.place, 'new', v_key[n.place]::helix.key, v_print[n.place], 'PENDING'::helix.state,
             null::text, null::text, null::text[]
      from unnest(v_place) as n (place);
  end if;

  if coalesce(cardinality(v_place), 0) < cardinality(p_payload) then
    -- A function, hence a new snapshot: the winners of the race have committed by now.
    return query
      select * from helix.answer_repeats(
        p_tenant, p_queue, p_actor, v_key, coalesce(v_place, '{}'), p_payload, p_priority, p_run_at,
        p_expires_at, p_limit_key,
        coalesce(v_class, array_fill(v_queue.class, array[cardinality(p_payload)])),
        case when v_queue.closed then format('queue %s is closed to submissions', p_queue)
             else 'expires_at is in the past' end);
  end if;
end
$$;

-- The race for the keys, sorted, so that two submitters of overlapping sets wait for each other in one
-- direction. Of equal keys in one call the first place counts. Returns the batches that won.
create function helix.win(
  p_tenant text, p_secret smallint, p_key bytea[], p_id bigint[], p_print bytea[],
  p_expires_at timestamptz[], p_now timestamptz
) returns bigint[]
language plpgsql as $$
declare
  v_key   bytea[];
  v_id    bigint[];
  v_print bytea[];
begin
  select array_agg(f.key), array_agg(f.id), array_agg(f.print) into v_key, v_id, v_print
  from (select distinct on (k.key) k.key, k.id, k.print
        from unnest(p_key, p_id, p_print, p_expires_at) with ordinality
          as k (key, id, print, expires_at, place)
        where k.key is not null and (k.expires_at is null or k.expires_at > p_now)
        order by k.key, k.place) f;
  -- Mostly all are new. Then a plain insert will do: one that is ready to meet others looks each key
  -- up twice and writes each row to the log twice.
  begin
    insert into helix.identity (key, batch, tenant, fingerprint, secret)
    select k.key, k.id, p_tenant, k.print, p_secret
    from unnest(v_key, v_id, v_print) as k (key, id, print);
    return v_id;
  exception when unique_violation then
    with won as (
      insert into helix.identity as i (key, batch, tenant, fingerprint, secret)
      select k.key, k.id, p_tenant, k.print, p_secret
      from unnest(v_key, v_id, v_print) as k (key, id, print)
      on conflict do nothing
      returning i.batch
    )
    select array_agg(w.batch) into v_id from won w;
    return v_id;
  end;
end
$$;

-- Class, lane and turn of each submission that comes with options, by place. There are few different
-- ones in a call, so each is made or found once and then looked up by its position in a short list.
create function helix.lanes_of(
  p_tenant text, p_queue text, p_usual integer, p_requires text[], p_priority smallint[],
  p_count integer, out class integer[], out lane integer[], out turn bigint[]
) language plpgsql as $$
declare
  v_words   text[];      -- the different requirements, as they were written
  v_classes integer[];
  v_spots   integer[];   -- the different pairs of class and priority, as one number
  v_lanes   integer[];
  v_turns   bigint[];
begin
  v_words := array(select distinct w from unnest(p_requires) w where w is not null);
  v_classes := array(select helix.class_of(w.word::jsonb)
                     from unnest(v_words) with ordinality as w (word, place) order by w.place);
  class := array(select coalesce(v_classes[array_position(v_words, u.requires)], p_usual)
                 from unnest(coalesce(p_requires, array_fill(null::text, array[p_count])))
                   with ordinality as u (requires, place) order by u.place);
  v_spots := array(select distinct u.class * 10 + coalesce(u.priority, 5)
                   from unnest(class, p_priority) as u (class, priority));
  v_lanes := array(select helix.lane_of(p_queue, s.spot / 10, (s.spot % 10)::smallint)
                   from unnest(v_spots) with ordinality as s (spot, place) order by s.place);
  -- A statement of its own: a lane that was just made does not show to the one that made it.
  v_turns := array(select helix.turn_after(l.lane, p_tenant)
                   from unnest(v_lanes) with ordinality as l (lane, place) order by l.place);
  select array_agg(v_lanes[at.spot] order by at.place), array_agg(v_turns[at.spot] order by at.place)
  into lane, turn
  from (select array_position(v_spots, u.class * 10 + coalesce(u.priority, 5)) as spot, u.place
        from unnest(class, p_priority) with ordinality as u (class, priority, place)) at;
end
$$;
