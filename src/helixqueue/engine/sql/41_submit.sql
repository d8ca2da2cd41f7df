-- Submit: any number of submissions of one identity make one batch (G1), and the same identity with
-- another payload is refused together with the stored payload (G7).
--
-- Arrays run in parallel, one element per submission; an array that is null means "the default for
-- all". Identities are canonical (parts joined by U+001F) and payloads are RFC 8785 text: the client
-- makes both, the database makes the key and the fingerprint.

-- The answer to one submission.
create type helix.submitted as (
  place       integer,   -- its position in the input
  decision    text,      -- new | duplicate | conflict | refused
  key         helix.key, -- helix.public_id(key) is the batch's id
  fingerprint bytea,
  state       helix.state,
  payload     text,      -- conflict: the stored payload, for the diff, if the login may see payloads
  note        text,      -- refused: why; new: that it has no identity
  differs     text[]     -- duplicate: options that differ from the first submission, which wins
);

-- Whether each of these is null or has one element that is not null. Not inlined: PostgreSQL prepares every operator
-- of an expression in each transaction, and most submissions have none of these options.
create function helix.are_single(p_raw text[], p_revision text[], p_priority smallint[]) returns boolean
language plpgsql immutable as $$
begin
  return (p_raw is null or cardinality(p_raw) = 1 and p_raw[1] is not null)
     and (p_revision is null or cardinality(p_revision) = 1 and p_revision[1] is not null)
     and (p_priority is null or cardinality(p_priority) = 1 and p_priority[1] is not null);
end
$$;

-- Submits by the short path for one plain submission, else by the general one.
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
  v_actor   text := helix.actor_of(p_actor);
  v_one     helix.submitted;
  v_fenced  boolean := current_setting('helix.fence', true) <> '';
  v_many    helix.submitted[];
begin
  -- One element that is the first is an array of the right shape.
  if cardinality(p_payload) = 1 and p_payload[1] is not null
     and cardinality(p_identity) = 1 and p_identity[1] is not null
     and p_requires is null and p_run_at is null and p_expires_at is null and p_limit_key is null
     and (p_raw is null and p_revision is null and p_priority is null
          or helix.are_single(p_raw, p_revision, p_priority))
  then
    v_one := helix.submit_one(p_tenant, p_queue, v_actor, p_profile, p_identity[1], p_payload[1],
                              p_raw[1], coalesce(p_revision[1], ''),
                              coalesce(p_priority[1], 5::smallint));
    if v_one.place is not null then
      if p_raw is not null then
        perform helix.count_respelled(p_tenant, p_queue, 1) where p_raw[1] <> p_identity[1];
      end if;
      if v_fenced then
        perform helix.link_submitted(array[v_one]);
      end if;
      return next v_one;
      return;
    end if;
  end if;
  perform helix.demand_parallel(
    cardinality(p_payload), helix.shape(p_identity), helix.shape(p_payload), helix.shape(p_raw),
    helix.shape(p_revision), helix.shape(p_priority), helix.shape(p_run_at), helix.shape(p_expires_at),
    helix.shape(p_limit_key), helix.shape(p_requires));
  select w.p_identity, w.p_raw into p_identity, p_raw
  from helix.without_placeholders(p_tenant, p_queue, p_identity, p_raw) w;
  if v_fenced then
    v_many := array(
      select s from helix.submit_many(
        p_tenant, p_queue, v_actor, p_profile, p_identity, p_payload, p_raw, p_revision, p_priority,
        p_run_at, p_expires_at, p_limit_key, p_requires) s);
    perform helix.link_submitted(v_many);
    return query select * from unnest(v_many);
    return;
  end if;
  return query
    select * from helix.submit_many(
      p_tenant, p_queue, v_actor, p_profile, p_identity, p_payload, p_raw, p_revision, p_priority,
      p_run_at, p_expires_at, p_limit_key, p_requires);
end
$$;

-- One new submission with an identity and without options, in three statements. In every other case, also
-- after a lost race for the key, it has inserted no batch and returns null: submit_v1 takes the general path.
create function helix.submit_one(
  p_tenant text, p_queue text, p_actor text, p_profile text, p_identity text, p_payload text,
  p_raw text, p_revision text, p_priority smallint
) returns helix.submitted
language plpgsql
-- Every row here is found by its key: a plan made while the tables were small would sort and merge them.
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set enable_hashjoin = off set enable_sort = off set jit = off as $$
declare
  v_queue   integer;
  v_class   integer;
  v_lane    integer;
  v_turn    bigint;
  v_secret  smallint;
  v_inner   bytea;       -- the pads of the secret
  v_outer   bytea;
  v_awaited boolean;     -- a worker waits for this queue
  v_words   text[];      -- its placeholders
  v_epoch   integer;
  v_key     bytea;
  v_print   bytea;
  v_batch   bigint;
  v_now     timestamptz := clock_timestamp();
begin
  -- The queue, the lane of its plain work and the queue's last turn in it, the secret, and whether a
  -- worker waits.
  select q.id, q.class, l.id,
         greatest(l.served, (select w.turn from helix.work w
                             where w.pending and w.queue = q.id and w.lane = l.id and w.turn > l.served
                             order by w.turn desc, w.batch desc limit 1)),
         s.id, s.inner_pad, s.outer_pad,
         exists (select from helix.waiter w where w.queue = p_queue and w.until > v_now), q.placeholders
  into v_queue, v_class, v_lane, v_turn, v_secret, v_inner, v_outer, v_awaited, v_words
  from helix.queue q
  join helix.lane l on l.queue = q.name and l.class = q.class and l.priority = p_priority and not l.idle
                    and (q.id = any (l.queues) or cardinality(l.queues) > helix.share_bound())
  cross join lateral (select * from helix.secret order by id desc limit 1) s
  where q.tenant = p_tenant and q.name = p_queue and q.profile = p_profile
    and not q.closed and not q.paused and q.misfit = 'wait';
  if not found
     -- Where only the identity has digits it is none. Nearly every identity has some, and the comparison took 7 % of
     -- the instructions of a submission.
     or (p_identity !~ '[0-9]' or array_to_string(v_words, '') ~ '[0-9]')
        and helix.placeholders_in(array[p_identity], v_words) <> '{}'
  then
    return null;
  end if;
  v_key := helix.derive_key(p_tenant, p_queue, p_identity, p_revision);
  v_print := sha256(v_outer || sha256(v_inner || convert_to(p_payload, 'UTF8')));
  v_epoch := helix.current_epoch();  -- compares the timeline before an id is drawn
  -- The race for the key.
  insert into helix.batch as b (id, created_at, queue, class, secret, priority, key, fingerprint, actor,
                                revision, identity, raw, payload)
  values (nextval('helix.batch_id'), v_now, v_queue, v_class, v_secret, p_priority, v_key,
          v_print, p_actor, p_revision, p_identity, nullif(p_raw, p_identity), p_payload::json)
  on conflict do nothing
  returning b.id into v_batch;
  if not found then
    return null;
  end if;
  insert into helix.work (batch, turn, entry, changed_at, queue, lane, bytes, version, state, reason,
                          attempt, pending, step, actor)
  values (v_batch, v_turn + 1, nextval('helix.entry_id'), v_now, v_queue, v_lane, octet_length(p_payload), 1,
          'PENDING', 'submitted', 0, true, true, p_actor);
  if v_awaited then
    perform helix.wake(p_tenant, p_queue);
  end if;
  return (1, 'new', v_key, v_print, 'PENDING', null, null, null)::helix.submitted;
end
$$;

-- Any number of submissions of any kind.
create function helix.submit_many(
  p_tenant text, p_queue text, p_actor text, p_profile text, p_identity text[], p_payload text[],
  p_raw text[], p_revision text[], p_priority smallint[], p_run_at timestamptz[],
  p_expires_at timestamptz[], p_limit_key text[], p_requires text[],
  p_key bytea[] default null,      -- by place: keys that the caller has derived (45_source.sql)
  p_reused integer[] default '{}', -- places that are refused because of their source
  p_run bigint default null        -- the run that the batches belong to (64_run.sql)
) returns setof helix.submitted
language plpgsql
-- The planner takes an array for ten rows and would join a thousand with each other one by one.
set enable_nestloop = off
-- On PostgreSQL 15 to 17 a disabled path has an enormous cost, and expensive plans are compiled.
set jit = off as $$
declare
  v_queue   helix.queue;
  v_secret  helix.secret;
  v_now     timestamptz := clock_timestamp();
  v_refused text;
  v_scope   bytea := helix.framed(p_tenant) || helix.framed(p_queue);
  v_key     bytea[];      -- by place; null where there is no identity and the queue wants one
  v_print   bytea[];      -- by place: fingerprints
  v_id      bigint[];     -- by place: the id of its batch, if it makes one
  v_class   integer[];    -- by place; null where every submission has the queue's own
  v_lane    integer[];    -- by place, likewise
  v_turn    bigint[];     -- by place, likewise: the turn after which its lane continues
  v_usual   integer;      -- the lane of submissions without options
  v_after   bigint;       -- and its turn
  v_place   integer[];    -- of submissions that made a batch
  v_misfit  integer[] := '{}';  -- classes that the queue refuses (56_misfit.sql),
  v_missing text;               -- and why
begin
  perform helix.count_respelled(p_tenant, p_queue, n.number)
  from (select count(*) as number from unnest(p_identity, p_raw) as u (identity, raw)
        where u.raw <> u.identity) n
  where n.number > 0;
  select * into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  v_refused := case
    when not found then format('tenant %s has no queue %s', p_tenant, p_queue)
    when v_queue.profile <> p_profile
      then format('queue %s uses profile %s, not %s', p_queue, v_queue.profile, p_profile)
  end;
  if v_refused is not null then
    -- Without a queue: its name is any text.
    perform helix.count_answers(p_tenant, coalesce(v_queue.name, ''), p_actor, '{refused}', null, array[v_refused]);
    return query
      select n, 'refused', null::helix.key, null::bytea, null::helix.state, null,
             v_refused, null::text[]
      from generate_series(1, cardinality(p_payload)) n;
    return;
  end if;
  select * into v_secret from helix.secret s order by s.id desc limit 1;

  -- Work without identity gets a key that no other submission will ever have; the sub-select computes
  -- its name once, before it is hashed.
  if p_key is null then
    v_key := array(
      select case when u.identity is not null or v_queue.unknown = 'accept'
                  then helix.key_within(v_scope, u.named, u.revision) end
      from (select g.identity, coalesce(g.identity, gen_random_uuid()::text) as named,
                   coalesce(g.revision, '') as revision, g.place
            from unnest(p_identity, p_revision) with ordinality as g (identity, revision, place)
            offset 0) u
      order by u.place);
  else
    v_key := array(
      select case when u.place = any (p_reused) then null
                  when u.key is not null then u.key
                  when v_queue.unknown = 'accept' then helix.key_within(v_scope, u.named, u.revision) end
      from (select g.key, case when g.key is null then gen_random_uuid()::text end as named,
                   coalesce(g.revision, '') as revision, g.place
            from unnest(p_key, p_revision) with ordinality as g (key, revision, place)
            offset 0) u
      order by u.place);
  end if;

  if p_requires is null and p_priority is null then
    v_usual := helix.lane_of(v_queue, v_queue.class, 5::smallint);
    v_after := helix.turn_after(v_usual, v_queue.id);
  else
    select l.class, l.lane, l.turn into v_class, v_lane, v_turn
    from helix.lanes_of(v_queue, p_requires, p_priority, cardinality(p_payload)) l;
  end if;

  if v_queue.misfit = 'refuse' then
    select r.classes, r.why into v_misfit, v_missing from helix.refused_classes(v_queue, v_class || v_queue.class) r;
  end if;
  if not v_queue.closed then   -- A closed queue takes nothing new; repeats are answered below.
    v_print := array(
      select sha256(v_secret.outer_pad || sha256(v_secret.inner_pad || convert_to(u.payload, 'UTF8')))
      from unnest(p_payload) with ordinality as u (payload, place) order by u.place);
    perform helix.current_epoch();   -- Where the timeline changed, the sequence moves ahead first.
    v_id := array(select nextval('helix.batch_id') from generate_series(1, cardinality(p_payload)));
    v_place := helix.insert_batches(
      v_queue, v_secret, p_actor, v_now, v_key, v_id, v_print, p_identity, p_payload, p_raw, p_revision,
      p_priority, p_run_at, p_expires_at, p_limit_key, v_class, p_run, v_misfit);
  end if;

  if v_place is not null then
    perform helix.insert_work(v_queue, p_actor, v_now, v_place, v_id, coalesce(v_lane, array[v_usual]),
                              coalesce(v_turn, array[v_after]), p_payload, p_run_at, p_expires_at,
                              p_limit_key, p_run);
    -- By this record `check` knows an identity that was removed from one that never was.
    insert into helix.decision (tenant, queue, kind, batch, actor)
    select p_tenant, p_queue, 'unnamed', v_id[n.place], p_actor
    from unnest(v_place) as n (place) where p_identity[n.place] is null;
    return query
      select n.place, 'new', v_key[n.place]::helix.key, v_print[n.place], 'PENDING'::helix.state,
             null::text, case when p_identity[n.place] is null then 'stored without identity' end,
             null::text[]
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
             else coalesce('no_worker_matches: no worker has ' || v_missing, 'expires_at is in the past') end,
        p_reused, p_raw);
  end if;
end
$$;

-- The race for the keys. Rows are inserted in key order, so that two submitters of overlapping sets wait
-- for each other in one direction. Of equal keys in one call the first place counts. Returns the places
-- that won, ascending.
create function helix.insert_batches(
  p_queue helix.queue, p_secret helix.secret, p_actor text, p_now timestamptz, p_key bytea[], p_id bigint[],
  p_print bytea[], p_identity text[], p_payload text[], p_raw text[], p_revision text[],
  p_priority smallint[], p_run_at timestamptz[], p_expires_at timestamptz[], p_limit_key text[],
  p_class integer[], p_run bigint, p_misfit integer[]
) returns integer[]
language plpgsql as $$
declare
  v_first integer[];
  v_won   bigint[];
begin
  v_first := array(
    select f.place from (
      select distinct on (k.key) k.key, k.place::integer
      from unnest(p_key, p_expires_at) with ordinality as k (key, expires_at, place)
      where k.key is not null and (k.expires_at is null or k.expires_at > p_now)
        and (p_misfit = '{}' or coalesce(p_class[k.place], p_queue.class) <> all (p_misfit))
      order by k.key, k.place) f
    order by f.key);
  -- Usually all are new, and a plain insert is enough: one that expects conflicts looks each key up twice
  -- and writes more to the log.
  begin
    insert into helix.batch (id, created_at, run_at, expires_at, queue, class, secret, priority, key,
                             fingerprint, actor, revision, identity, raw, limit_key, limit_print,
                             payload, run)
    select p_id[n], p_now, p_run_at[n], p_expires_at[n], p_queue.id, coalesce(p_class[n], p_queue.class),
           p_secret.id, coalesce(p_priority[n], 5), p_key[n], p_print[n], p_actor,
           coalesce(p_revision[n], ''), p_identity[n], nullif(p_raw[n], p_identity[n]), p_limit_key[n],
           case when p_limit_key[n] is not null then helix.fingerprint(p_secret, p_limit_key[n]) end,
           p_payload[n]::json, p_run
    from unnest(v_first) n;
    return array(select n from unnest(v_first) n order by n);
  exception when unique_violation then
    with won as (
      insert into helix.batch as b (id, created_at, run_at, expires_at, queue, class, secret, priority, key,
                                    fingerprint, actor, revision, identity, raw, limit_key, limit_print,
                                    payload, run)
      select p_id[n], p_now, p_run_at[n], p_expires_at[n], p_queue.id, coalesce(p_class[n], p_queue.class),
             p_secret.id, coalesce(p_priority[n], 5), p_key[n], p_print[n], p_actor,
             coalesce(p_revision[n], ''), p_identity[n], nullif(p_raw[n], p_identity[n]), p_limit_key[n],
             case when p_limit_key[n] is not null then helix.fingerprint(p_secret, p_limit_key[n]) end,
             p_payload[n]::json, p_run
      from unnest(v_first) n
      on conflict do nothing
      returning b.id
    )
    select array_agg(w.id) into v_won from won w;
    return (select array_agg(u.place::integer order by u.place)
            from unnest(p_id) with ordinality as u (id, place)
            where u.id in (select unnest(v_won)));
  end;
end
$$;

-- The first step of new batches, claimable or not, and a wake-up for waiting workers.
create function helix.insert_work(
  p_queue helix.queue, p_actor text, p_now timestamptz, p_place integer[], p_id bigint[],
  p_lane integer[],   -- by place, or one for all
  p_turn bigint[],    -- likewise
  p_payload text[], p_run_at timestamptz[], p_expires_at timestamptz[], p_limit_key text[], p_run bigint
) returns void
language plpgsql as $$
declare
  v_entry bigint := helix.next_entry();
begin
  if cardinality(p_lane) = 1 and p_run_at is null then
    insert into helix.work (batch, turn, entry, expires_at, changed_at, queue, lane, bytes, version, state,
                            reason, cause, attempt, pending, step, actor, limit_key, run)
    select p_id[n.place], p_turn[1] + n.nth, v_entry, p_expires_at[n.place], p_now, p_queue.id, p_lane[1],
           octet_length(p_payload[n.place]), 1, 'PENDING', 'submitted',
           case when p_queue.paused then 'paused' end::helix.cause, 0,
           not p_queue.paused, true, p_actor, p_limit_key[n.place], p_run
    from unnest(p_place) with ordinality as n (place, nth);
  else
    insert into helix.work (batch, turn, entry, due, expires_at, changed_at, queue, lane, bytes, version,
                            state, reason, cause, attempt, pending, step, actor, limit_key, run)
    select p_id[n.place], n.turn + row_number() over (partition by n.lane, n.cause order by n.place),
           v_entry, n.due, p_expires_at[n.place], p_now, p_queue.id, n.lane,
           octet_length(p_payload[n.place]), 1, 'PENDING', 'submitted',
           n.cause, 0, n.cause is null, true, p_actor, p_limit_key[n.place], p_run
    from (select u.place, p_lane[least(u.place, cardinality(p_lane))] as lane,
                 p_turn[least(u.place, cardinality(p_turn))] as turn,
                 case when p_run_at[u.place] > p_now then p_run_at[u.place] end as due,
                 case when p_run_at[u.place] > p_now then 'delay'
                      when p_queue.paused then 'paused' end::helix.cause as cause
          from unnest(p_place) as u (place)) n;
  end if;
  if not p_queue.paused then
    perform helix.wake(p_queue.tenant, p_queue.name);
  end if;
end
$$;
