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
             b.expires_at, b.limit_key, b.class, b.state as retired_as,
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
    noted as (
      insert into helix.decision (tenant, queue, kind, batch, actor, detail)
      select p_tenant, p_queue, k.decision, k.batch, p_actor, k.note from known k
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
  insert into helix.decision (tenant, queue, kind, actor, detail)
  select p_tenant, p_queue, 'refused', helix.actor_of(p_actor),
         jsonb_build_object('raw_hex', encode(substr(u.raw, 1, 4096), 'hex'), 'why', u.why)::text
  from unnest(p_raw, p_why) as u (raw, why);
end
$$;
