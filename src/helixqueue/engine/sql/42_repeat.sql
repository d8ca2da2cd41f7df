-- Where the payload of a refused conflict differs from the stored one: at most five different ones of a batch, for
-- people who may see payloads. Erasing a batch deletes them; no seal covers them, the decision itself is kept.
create table helix.difference (
  id          bigint generated always as identity primary key,
  at          timestamptz not null default clock_timestamp(),
  batch       bigint not null,
  queue       integer not null,
  actor       text not null,
  fingerprint helix.sha256 not null,   -- of the payload that was refused
  changes     helix.document not null  -- see payload_changes
);
create index difference_batch on helix.difference (batch);
do $$
begin
  perform helix.protect_table('helix.difference'::regclass, 'helix.guard'::regproc);
end
$$;

-- The first twenty members that differ, as [name, stored text, received text], each cut to 200 characters; a
-- missing member is null, and payloads that are no objects differ as a whole, without a name.
create function helix.payload_changes(p_stored text, p_received text) returns text
language plpgsql stable as $$
declare
  v_stored   jsonb := p_stored;
  v_received jsonb := p_received;
begin
  if jsonb_typeof(v_stored) <> 'object' or jsonb_typeof(v_received) <> 'object' then
    return jsonb_build_array(jsonb_build_array(null, left(p_stored, 200), left(p_received, 200)));
  end if;
  return (
    select jsonb_agg(jsonb_build_array(left(d.key, 200), left(d.stored, 200), left(d.received, 200)) order by d.key)
    from (select key, s.value::text as stored, r.value::text as received
          from jsonb_each(v_stored) s full join jsonb_each(v_received) r using (key)
          where s.value is distinct from r.value order by key limit 20) d);
exception when others then
  return null;  -- text that jsonb cannot hold, such as the character U+0000 or an enormous number
end
$$;

-- Answers to submissions that made no batch, each kept as a decision: duplicate, conflict, or refused
-- because there is no identity, its expiry has passed, or the queue is closed (p_why). A repeat of known
-- work gets its receipt even if it has expired since or the queue was closed.
-- Tables are narrowed by an array before they are joined; otherwise a repeat would read them whole.
create function helix.answer_repeats(
  p_tenant text, p_queue text, p_actor text, p_key bytea[], p_made integer[], p_payload text[],
  p_priority smallint[], p_run_at timestamptz[], p_expires_at timestamptz[], p_limit_key text[],
  p_class integer[], p_why text, p_reused integer[], p_raw text[]
) returns setof helix.submitted
language plpgsql as $$
declare
  v_sees boolean := helix.sees_payloads();
begin
  return query
    with repeated as materialized (
      select a.place::integer, b.key, b.id as batch, b.fingerprint, b.payload, b.priority, b.run_at,
             b.expires_at, b.limit_key, b.class, b.state as retired_as, b.secret,
             case when b.key is null then 'refused'
                  when b.fingerprint = helix.fingerprint(s, p_payload[a.place]) then 'duplicate'
                  else 'conflict' end as decision,
             case when a.place = any (p_reused) then 'its source stands for another submission'
                  when a.key is null and p_raw[a.place] is not null
                    then format('no identity: %s is a placeholder, and the queue refuses unknown work',
                                left(p_raw[a.place], 200))
                  when a.key is null then 'no identity, and the queue refuses unknown work'
                  when b.key is null then p_why end as note
      from unnest(p_key) with ordinality as a (key, place)
      left join (select * from helix.batch b where b.key = any (p_key)) b on b.key = a.key
      left join helix.secret s on s.id = b.secret
      where a.place <> all (p_made)
    ),
    -- The first conflict has its stored payload, and the next ones as long as all are within one mebibyte: a
    -- thousand small submissions must not read a gigabyte.
    known as materialized (
      select r.*, r.decision = 'conflict' and (
               row_number() over by_decision = 1
               or sum(coalesce(octet_length(r.payload::text), 0)) over by_decision <= 1024 * 1024) as is_compared
      from repeated r
      window by_decision as (partition by r.decision order by r.place)
    ),
    compared as (
      insert into helix.difference (batch, queue, actor, fingerprint, changes)
      select distinct on (b.id, r.fingerprint) b.id, b.queue, p_actor, r.fingerprint, r.changes::helix.document
      -- Locked, so that a batch that is being erased keeps none.
      from (select b.id, b.queue, k.place from known k join helix.batch b on b.id = k.batch
            where k.is_compared and b.payload is not null for share of b) b
      join known k on k.place = b.place
      join helix.secret s on s.id = k.secret
      cross join lateral (select helix.fingerprint(s, p_payload[k.place]) as fingerprint,
                                 helix.payload_changes(k.payload::text, p_payload[k.place]) as changes) r
      where r.changes is not null
        and (select count(*) from helix.difference d where d.batch = b.id) < 5
        and not exists (select from helix.difference d where d.batch = b.id and d.fingerprint = r.fingerprint)
    ),
    -- One row, which the result is joined to: a function that nothing reads from is not called.
    noted as materialized (
      select helix.count_answers(p_tenant, p_queue, p_actor, array_agg(k.decision), array_agg(k.batch),
                                 array_agg(k.note)) from known k
    )
    select k.place, k.decision, k.key, k.fingerprint::bytea, coalesce(w.state, k.retired_as),
           case when k.is_compared and v_sees then k.payload::text end,
           coalesce(k.note, case when k.decision = 'conflict' and v_sees and not k.is_compared then
             'not compared: the stored payloads of this call are too large; submit it alone' end),
           case k.decision when 'duplicate' then array_remove(array[
             case when k.priority <> coalesce(p_priority[k.place], 5) then 'priority' end,
             case when k.run_at is distinct from p_run_at[k.place] then 'run_at' end,
             case when k.expires_at is distinct from p_expires_at[k.place] then 'expires_at' end,
             case when k.limit_key is distinct from p_limit_key[k.place] then 'limit_key' end,
             case when k.class <> p_class[k.place] then 'requires' end], null) end
    from known k
    cross join (select count(*) from noted) n
    left join (select * from helix.work w
               where w.batch = any (array(select known.batch from known))) w on w.batch = k.batch;
end
$$;

-- The state of a batch, also after retention.
create function helix.state_of(p_batch bigint) returns helix.state
language sql stable as $$
  select coalesce((select w.state from helix.work w where w.batch = p_batch),
                  (select b.state from helix.batch b where b.id = p_batch))
$$;

-- Submissions that never reached submit_v1 because their identity violates its profile: kept with the raw
-- bytes, so that a lab can find the tube.
create function helix.note_refused_v1(
  p_tenant text, p_queue text, p_actor text, p_raw bytea[], p_why text[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  perform helix.count_answers(
    p_tenant, coalesce((select q.name from helix.queue q where q.tenant = p_tenant and q.name = p_queue), ''),
    helix.actor_of(p_actor), array_fill('refused'::text, array[cardinality(p_raw)]), null,
    array(select jsonb_build_object('raw_hex', encode(substr(u.raw, 1, 4096), 'hex'), 'why', u.why)::text
          from unnest(p_raw, p_why) with ordinality as u (raw, why, place) order by u.place));
end
$$;
