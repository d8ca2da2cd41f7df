-- Appending to a user ledger.

-- The answer to one event.
create type helix.appended as (
  place    integer,   -- of the event in the call, from 1
  decision text,      -- written | duplicate_suppressed_by_db | conflict | illegal | refused | undecided
  key      bytea,
  version  integer,   -- of the event within its entity; null: not written
  state    text,      -- of the entity after this call; null: it has no event
  seq      bigint,    -- the greatest seq of the entity; null: it has no event
  rules    text[],    -- illegal: violated rules; written: those recorded with the event; refused: the reason
  payload  text       -- conflict: the stored payload, if the login may see payloads
);

-- Whether the unique constraints that decide are in place. An operator may have dropped one, or a rebuild may
-- have left one invalid; until it is back, no append can tell a duplicate. Volatile: its query has a snapshot of
-- its own, where the transaction takes several. One that keeps an older snapshot still sees the row of a dropped
-- index; pg_get_indexdef reads the current catalog and returns null for it.
create function helix.ledger_is_unique() returns boolean
language plpgsql as $$
begin
  return (select count(*) = 3 from pg_index i
          where i.indrelid = 'helix.ledger_event'::regclass and i.indisunique and i.indisvalid and i.indisready
            and pg_get_indexdef(i.indexrelid) is not null);
end
$$;

-- The same, asked once per plan: immutable, so the planner replaces the call by its result. Call it only in a
-- statement that names helix.ledger_event: whatever adds or drops an index of that table makes PostgreSQL discard
-- the plan, and a plan is made and used under a lock that holds such changes off. In a transaction that keeps one
-- snapshot, which may be older than a change, the result is false.
create function helix.ledger_was_unique() returns boolean
language sql immutable as $$
  select current_setting('transaction_isolation') = 'read committed' and helix.ledger_is_unique()
$$;

-- One event. A legal new one of a strict ledger, whose payload is not part of the identity and is compared whole,
-- takes one statement. In every other case, also after a lost race for the version, that statement writes
-- nothing, and append_v1 decides.
create function helix.append_one_v1(
  p_tenant text, p_ledger text, p_actor text, p_entity text, p_seq bigint, p_kind text, p_payload text, p_node text
) returns helix.appended
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- Every row here is found by its key: a plan made while the tables were small would read and sort them.
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off as $$
declare
  v_tenants  text[] := helix.enter_for(p_tenant);
  v_actor    text := session_user;
  v_now      timestamptz := clock_timestamp();
  v_position bigint := helix.current_position();   -- Before the insert: it may move the sequence ahead.
  v_sent     bytea := convert_to(p_payload, 'UTF8');
  v_key      bytea := helix.event_key(p_tenant, p_ledger, p_entity, p_seq, p_kind, '');
  v_answer   helix.appended;
begin
  if p_actor is not null then
    v_actor := helix.actor_of(p_actor);
  end if;
  insert into helix.ledger_event (
    seq, at, position, feed_position, ledger, version, secret, is_strict, tenant, entity, kind, bound, key,
    fingerprint, hash, node, actor, payload)
  select p_seq, v_now, v_position, t.feed_position, t.ledger, p_seq, t.secret, true, t.tenant, p_entity, p_kind,
         '', v_key, t.print,
         helix.event_hash(t.before, v_key, p_seq::integer, v_now, v_position, t.feed_position, t.print, p_node, v_actor,
                          null, v_sent),
         p_node, v_actor, p_payload::json
  from (select l.id as ledger, l.tenant, s.id as secret, last.hash as before,
               greatest(v_position, last.feed_position) as feed_position,
               sha256(s.outer_pad || sha256(s.inner_pad || v_sent)) as print
        from helix.ledger l
        cross join lateral (select * from helix.secret order by id desc limit 1) s
        left join lateral (
          select e.version, e.hash, e.feed_position, e.kind from helix.ledger_event e
          where e.ledger = l.id and e.entity = p_entity order by e.version desc limit 1) last on true
        where l.tenant = p_tenant and l.name = p_ledger and l.is_strict and l.gaps = 'refuse' and not l.bound and l.ignored = '{}'
          and helix.ledger_was_unique()
          -- The event before has the seq before, so this one is new, and its kind may follow.
          and p_seq = coalesce(last.version, 0) + 1 and l.machine ? p_kind
          and case when last.version is null then p_kind = any (l.initial)
                   else l.machine -> last.kind ? p_kind end
        offset 0) t
  on conflict do nothing;
  if found then
    return (1, 'written', v_key, p_seq, p_kind, p_seq, null, null)::helix.appended;
  end if;
  select * into v_answer
  from helix.append_v1(p_tenant, p_ledger, p_actor, array[p_entity], array[p_seq], array[p_kind],
                       array[p_payload], array[p_node]);
  return v_answer;
end
$$;

-- Any number of events. The n-th event of each entity in the call belongs to round n: within a round entities
-- are distinct, so one statement decides and writes the whole round.
create function helix.append_v1(
  p_tenant text, p_ledger text, p_actor text, p_entity text[], p_seq bigint[], p_kind text[],
  p_payload text[], p_node text[]
) returns setof helix.appended
language plpgsql security definer set search_path = pg_catalog, pg_temp
-- One plan for calls of every size: planning takes longer than an append. The planner takes an array for ten
-- rows and would join a thousand events with each other one by one.
set plan_cache_mode = force_generic_plan set enable_nestloop = off set enable_seqscan = off
set jit = off as $$
declare
  v_ledger helix.ledger;
  v_round  record;
  -- A variable, because the collation of session_user would otherwise apply inside append_round, where the
  -- indexes do not have it.
  v_actor  text := helix.actor_of(p_actor);
begin
  perform helix.demand_parallel(cardinality(p_entity), helix.shape(p_entity), helix.shape(p_seq),
                                helix.shape(p_kind), helix.shape(p_payload), helix.shape(p_node));
  perform helix.enter_for(p_tenant);
  select * into v_ledger from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger;
  -- No constraint can be dropped between the check and the insert.
  lock table helix.ledger_event in row exclusive mode;
  if not found or not helix.ledger_is_unique() then
    return query
      select n, case when v_ledger.id is null then 'refused' else 'undecided' end, null::bytea, null::integer,
             null::text, null::bigint,
             array[case when v_ledger.id is null then format('tenant %s has no ledger %s', p_tenant, p_ledger)
                        else 'a unique constraint of helix.ledger_event is missing or invalid' end],
             null::text
      from generate_series(1, cardinality(p_entity)) n;
    return;
  end if;
  if cardinality(p_entity) = 1 then
    return query select * from helix.append_round(v_ledger, v_actor, '{1}', p_entity, p_seq, p_kind, p_payload,
                                                  p_node);
    return;
  end if;
  for v_round in
    select r.round, array_agg(r.place order by r.entity) as place, array_agg(r.entity order by r.entity) as entity,
           array_agg(r.seq order by r.entity) as seq, array_agg(r.kind order by r.entity) as kind,
           array_agg(r.payload order by r.entity) as payload, array_agg(r.node order by r.entity) as node
    from (select u.*, row_number() over (partition by u.entity order by u.place) as round
          from unnest(p_entity, p_seq, p_kind, p_payload, p_node) with ordinality
            as u (entity, seq, kind, payload, node, place)) r
    group by r.round order by r.round
  loop
    return query select * from helix.append_round(v_ledger, v_actor, v_round.place, v_round.entity, v_round.seq,
                                                  v_round.kind, v_round.payload, v_round.node);
  end loop;
end
$$;

-- Decides and writes the events of one round, whose entities are distinct and in order. An event that loses
-- the race for its version is decided again with a new snapshot, which shows the winner.
create function helix.append_round(
  p_ledger helix.ledger, p_actor text, p_place bigint[], p_entity text[], p_seq bigint[], p_kind text[],
  p_payload text[], p_node text[]
) returns setof helix.appended
language plpgsql as $$
declare
  v_secret   helix.secret;
  v_sees     boolean := helix.sees_payloads();
  v_now      timestamptz := clock_timestamp();
  v_position bigint := helix.current_position();   -- Before the insert: it may move the sequence ahead.
  v_answers  helix.appended[];
begin
  select * into v_secret from helix.secret s order by s.id desc limit 1;
  while p_place <> '{}' loop
    with sent as materialized (
      select u.*,
             case when p_ledger.ignored = '{}' then u.payload
                  else helix.compared(u.payload, p_ledger.ignored) end as compared,
             case when p_ledger.bound then sha256(convert_to(u.payload, 'UTF8')) else '' end as bound
      from unnest(p_place, p_entity, p_seq, p_kind, p_payload, p_node)
        as u (place, entity, seq, kind, payload, node)
    ),
    -- Each event beside the last one of its entity, the one with the greatest seq, and the known one.
    seen as materialized (
      select s.*, helix.event_key(p_ledger.tenant, p_ledger.name, s.entity, s.seq, s.kind, s.bound) as key,
             sha256(v_secret.outer_pad
                    || sha256(v_secret.inner_pad || convert_to(s.compared, 'UTF8'))) as print,
             coalesce(last.version, 0) + 1 as next, last.hash as before,
             greatest(v_position, last.feed_position) as feed_position, coalesce(top.kind, last.kind) as state,
             coalesce(top.seq, last.seq) as reached, known.version as known_version,
             known.payload as known_payload, known.print = known_print.print as is_same
      from sent s
      left join lateral (
        select e.version, e.hash, e.feed_position, e.kind, e.seq from helix.ledger_event e
        where e.ledger = p_ledger.id and e.entity = s.entity order by e.version desc limit 1) last on true
      left join lateral (   -- In a strict ledger the last event has the greatest seq.
        select e.kind, e.seq from helix.ledger_event e
        where not p_ledger.is_strict and e.ledger = p_ledger.id and e.entity = s.entity
        order by e.seq desc, e.version desc limit 1) top on true
      left join lateral (   -- In a strict ledger no event after the last one is known.
        select e.version, e.payload::text as payload, e.secret, e.fingerprint as print
        from helix.ledger_event e
        where (not p_ledger.is_strict or s.seq <= last.seq)
          and e.ledger = p_ledger.id and e.entity = s.entity and e.seq = s.seq and e.kind = s.kind
          and e.bound = s.bound limit 1) known on true
      left join lateral (
        select helix.fingerprint(k, s.compared) as print from helix.secret k
        where k.id = known.secret) known_print on true
    ),
    decided as materialized (
      select s.*, r.rules,
             case when s.is_same then 'duplicate_suppressed_by_db'
                  when s.known_version is not null then 'conflict'
                  -- A kind that the machine does not have is illegal in every ledger: no fold could read it.
                  when r.rules is null then 'written'
                  when 'gap' = any (r.rules) and p_ledger.gaps = 'refuse' or 'kind' = any (r.rules) then 'illegal'
                  when not p_ledger.is_strict or r.rules = '{gap}' then 'written'
                  else 'illegal' end as decision
      from seen s
      cross join lateral (
        select nullif(array_remove(array[
          case when not p_ledger.machine ? s.kind then 'kind' end,
          case when s.seq > coalesce(s.reached, 0) + 1 and p_ledger.gaps <> 'allow' then 'gap' when s.seq <= s.reached then 'seq' end,
          case when s.state is null and s.kind <> all (p_ledger.initial) then 'initial'
               when s.state is null or s.seq <= s.reached then null
               when p_ledger.machine -> s.state = '[]' then 'terminal'
               when not p_ledger.machine -> s.state ? s.kind then 'arrow' end], null), '{}') as rules
        where s.known_version is null
        union all
        select null where s.known_version is not null) r
    ),
    written as (
      insert into helix.ledger_event as e (
        seq, at, position, feed_position, ledger, version, secret, is_strict, tenant, entity, kind, bound, key,
        fingerprint, hash, node, actor, violations, payload)
      select d.seq, v_now, v_position, d.feed_position, p_ledger.id, d.next, v_secret.id,
             p_ledger.is_strict and p_ledger.gaps = 'refuse',
             p_ledger.tenant, d.entity, d.kind, d.bound, d.key, d.print,
             helix.event_hash(d.before, d.key, d.next, v_now, v_position, d.feed_position, d.print,
                              d.node, p_actor, d.rules, convert_to(d.payload, 'UTF8')),
             d.node, p_actor, d.rules, d.payload::json
      from decided d where d.decision = 'written'
      order by d.entity
      on conflict do nothing
      returning e.entity::text as entity, e.version
    )
    select array_agg((
             d.place::integer, case when d.decision = 'written' and w.entity is null then 'again' else d.decision end,
             d.key, coalesce(w.version, d.known_version),
             case when w.entity is not null and d.seq >= coalesce(d.reached, 0) then d.kind else d.state end,
             greatest(d.reached, case when w.entity is not null then d.seq end), d.rules,
             case when d.decision = 'conflict' and v_sees then d.known_payload end)::helix.appended)
    into v_answers
    from decided d left join written w on w.entity = d.entity;
    return query select * from unnest(v_answers) a where a.decision <> 'again';
    -- What another transaction got the version of.
    select coalesce(array_agg(u.place), '{}'), array_agg(u.entity), array_agg(u.seq), array_agg(u.kind),
           array_agg(u.payload), array_agg(u.node)
    into p_place, p_entity, p_seq, p_kind, p_payload, p_node
    from unnest(p_place, p_entity, p_seq, p_kind, p_payload, p_node)
      as u (place, entity, seq, kind, payload, node)
    where u.place in (select a.place from unnest(v_answers) a where a.decision = 'again');
  end loop;
end
$$;

-- The epoch, and a key for hints of this ledger in a cache: derived from the database's secret, so that no other
-- database derives it, and from what differs after every restore: the cluster, the database, the table, and the
-- start of the server. A restored database may have lost events that old hints name; it finds none of those hints.
-- The key opens nothing: a hint only saves its own tenant a query.
create function helix.ledger_hint_key_v1(p_tenant text, p_ledger text)
returns table (epoch integer, key bytea)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  return query
    select helix.current_epoch(),
           helix.fingerprint(s, concat_ws(chr(31), 'ledger hint', p_tenant, p_ledger, c.system_identifier,
                                          (select d.oid from pg_database d where d.datname = current_database()),
                                          'helix.ledger_event'::regclass::oid,
                                          pg_relation_filenode('helix.ledger_event'::regclass),
                                          extract(epoch from pg_postmaster_start_time())))
    from helix.secret s, pg_control_system() c order by s.id limit 1;
end
$$;
