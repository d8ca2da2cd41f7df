-- What becomes of a submission that makes no batch: it is told what stands there, or why it was refused,
-- and either is on record.

-- The answers to submissions that made no batch: duplicate, conflict, or refused because there is no
-- identity, it came after its own expiry, or the queue is closed (p_why). A repeat gets its receipt
-- though it has expired meanwhile or the queue was closed. Each answer is kept as a decision.
-- Tables are narrowed by array before they are joined, or a repeat would read them whole.
create function helix.answer_repeats(
  p_tenant text, p_queue text, p_actor text, p_key bytea[], p_made integer[], p_payload text[],
  p_priority smallint[], p_run_at timestamptz[], p_expires_at timestamptz[], p_limit_key text[],
  p_class integer[], p_why text
) returns setof helix.submitted
language plpgsql as $$
begin
  return query
    with known as materialized (
      select a.place::integer, i.key, i.batch, i.fingerprint,
             case when i.key is null then 'refused'
                  when i.fingerprint = helix.fingerprint(s, p_payload[a.place]) then 'duplicate'
                  else 'conflict' end as decision,
             case when a.key is null then 'no identity, and the queue refuses unknown work'
                  when i.key is null then p_why end as note
      from unnest(p_key) with ordinality as a (key, place)
      left join (select * from helix.identity i where i.key = any (p_key)) i on i.key = a.key
      left join helix.secret s on s.id = i.secret
      where a.place <> all (p_made)
    ),
    noted as (
      insert into helix.decision (tenant, queue, kind, batch, actor, detail)
      select p_tenant, p_queue, k.decision, k.batch, p_actor, k.note from known k
    )
    select k.place, k.decision, k.key, k.fingerprint,
           helix.state_of(k.batch), case k.decision when 'conflict' then b.payload::text end, k.note,
           case k.decision when 'duplicate' then array_remove(array[
             case when b.priority <> coalesce(p_priority[k.place], 5) then 'priority' end,
             case when b.run_at is distinct from p_run_at[k.place] then 'run_at' end,
             case when b.expires_at is distinct from p_expires_at[k.place] then 'expires_at' end,
             case when b.limit_key is distinct from p_limit_key[k.place] then 'limit_key' end,
             case when b.class <> p_class[k.place] then 'requires' end], null) end
    from known k
    left join (select * from helix.batch b
               where b.id = any (array(select known.batch from known))) b on b.id = k.batch;
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
  perform helix.enter_for(p_tenant);
  insert into helix.decision (tenant, queue, kind, actor, detail)
  select p_tenant, p_queue, 'refused', coalesce(p_actor, session_user),
         jsonb_build_object('raw_hex', encode(substr(u.raw, 1, 4096), 'hex'), 'why', u.why)::text
  from unnest(p_raw, p_why) as u (raw, why);
end
$$;
