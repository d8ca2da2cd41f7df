-- The reply of every fence call, the record of decisions, and the preview of a claim.

-- One shape for every reply; fields that do not apply are null.
create type helix.fence_result as (
  -- granted: the caller holds the fence and executes. repeated, expired: the effect happened before.
  -- in_progress: another call holds it. mismatch: the key belongs to another request. in_doubt: the
  -- outcome is unknown. sealed, done: the write was accepted. fenced_out: the token is not the holder's.
  -- stale: the fence changed meanwhile; read it again.
  decision    text,
  key         bytea,
  life        bigint,
  version     integer,
  state       helix.fence_state,
  attempt     integer,
  epoch       integer,
  number      bigint,
  fingerprint bytea,
  holder      text,
  retry_after real,
  request     text,         -- mismatch: the request that the key belongs to
  effect      text,
  form        text,
  answer      bytea,
  omitted     boolean,
  digest      bytea,
  receipt     bytea,
  sealed_at   timestamptz,
  note        text          -- in_doubt: the cause; SEALED by an operator: how; fenced_out: the write
);

-- The reply about one fence. Answers and requests are returned only with the decisions that need them.
create function helix.fence_answer(
  p_fence helix.fence, p_decision text, p_retry_after real default null, p_note text default null
) returns helix.fence_result
language sql stable as $$
  select (p_decision, p_fence.key, p_fence.life, p_fence.version, p_fence.state, p_fence.attempt,
          p_fence.epoch, p_fence.number, p_fence.fingerprint, p_fence.actor,
          p_retry_after,
          case when p_decision = 'mismatch' then p_fence.request::text end,
          p_fence.effect, p_fence.form,
          case when p_decision in ('repeated', 'sealed') then p_fence.answer end,
          p_fence.omitted, p_fence.digest,
          case when p_fence.state = 'SEALED'
               then helix.fence_receipt(p_fence.tenant, p_fence.name, p_fence.identity, p_fence.key,
                                        p_fence.fingerprint, p_fence.effect, p_fence.form, p_fence.digest,
                                        p_fence.first_at, p_fence.sealed_at) end,
          p_fence.sealed_at,
          -- An operator can correct a resolution, so no cache may keep its answer.
          coalesce(p_note, case when p_fence.state = 'SEALED' and p_fence.reason in ('resolved', 'corrected')
                                then p_fence.reason::text end))::helix.fence_result
$$;

-- Records a decision that changed no state. Where the caller's statement is the whole transaction
-- (p_alone), its commit does not wait for the disk: a crash may lose the record of a repeat, never the
-- record of an effect.
create function helix.record_fence_decision(
  p_fence helix.fence, p_kind helix.fence_decision_kind, p_actor text, p_alone boolean,
  p_detail text default null, p_evidence bytea default null
) returns void
language plpgsql as $$
begin
  if p_alone then
    perform set_config('synchronous_commit', 'off', true);
  end if;
  perform helix.count_answers(p_fence.tenant, p_fence.name, p_actor, array[p_kind::text], null, array[p_detail],
                              p_fence.life, substr(p_evidence, 1, 65536));
end
$$;

-- Whether the key belongs to another request. Compared with the secret that made the stored fingerprint,
-- so rotation causes no mismatch. A RELEASED fence belongs to no request: nothing happened, and a client
-- whose request was refused may correct it and use the same key.
create function helix.fence_differs(p_fence helix.fence, p_request text) returns boolean
language sql stable as $$
  select p_fence.state <> 'RELEASED' and p_fence.fingerprint <> helix.fingerprint(s, p_request)
  from helix.secret s where s.id = p_fence.secret
$$;

-- How many values differ between two JSON documents: members of objects by name, items of lists by position.
-- At most a hundred are counted, and what is nested deeper than eight levels is one value.
create function helix.count_differences(p_was jsonb, p_got jsonb, p_depth integer default 0) returns integer
language plpgsql immutable as $$
begin
  if p_was = p_got then
    return 0;
  end if;
  if p_depth < 8 and jsonb_typeof(p_was) = 'object' and jsonb_typeof(p_got) = 'object' then
    return (select least(100, sum(helix.count_differences(d.was, d.got, p_depth + 1)))
            from (select w.value as was, g.value as got
                  from jsonb_each(p_was) w full join jsonb_each(p_got) g on g.key = w.key
                  where w.value is distinct from g.value limit 100) d);
  end if;
  if p_depth < 8 and jsonb_typeof(p_was) = 'array' and jsonb_typeof(p_got) = 'array' then
    return (select least(100, sum(helix.count_differences(d.was, d.got, p_depth + 1)))
            from (select w.value as was, g.value as got
                  from jsonb_array_elements(p_was) with ordinality as w (value, place)
                  full join jsonb_array_elements(p_got) with ordinality as g (value, place)
                    on g.place = w.place
                  where w.value is distinct from g.value limit 100) d);
  end if;
  return 1;
end
$$;

-- The size of a conflict, for its record; helix_fence_conflict_differences_total sums the numbers.
create function helix.difference_text(p_fence helix.fence, p_request text) returns text
language plpgsql stable as $$
begin
  return 'differences: ' || case when p_fence.request is null then '1 (the request was not kept)'
    else helix.count_differences(p_fence.request::jsonb, p_request::jsonb)::text end;
exception when others then
  -- Text that jsonb cannot hold, such as the character U+0000 or an enormous number.
  return 'differences: 1 (the documents cannot be compared)';
end
$$;

-- The decision that a claim would get now, for callers that check a backlog before they send it again.
-- Writes nothing and locks nothing. A null request is not compared.
create function helix.preview_fence_v1(
  p_tenant text, p_name text, p_identity text, p_request text default null
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_fence helix.fence;
begin
  perform helix.enter_for(p_tenant);
  select * into v_fence from helix.fence f
  where f.key = helix.derive_fence_key(p_tenant, p_name, p_identity)
    and (f.until is null or f.until > v_now);
  if not found then
    v_fence.key := helix.derive_fence_key(p_tenant, p_name, p_identity);
    return helix.fence_answer(v_fence, 'granted');
  end if;
  return helix.fence_answer(v_fence, case
    when p_request is not null and helix.fence_differs(v_fence, p_request) then 'mismatch'
    when v_fence.state = 'SEALED' and (v_fence.omitted or (v_fence.answer is not null
                                                           and v_fence.answer_until > v_now))
      then 'repeated'
    when v_fence.state = 'SEALED' then 'expired'
    when v_fence.state = 'IN_DOUBT' then 'in_doubt'
    when v_fence.state = 'RELEASED' then 'granted'
    when v_fence.deadline > v_now then 'in_progress'
    when v_fence.state = 'CLAIMED' then 'granted'
    else 'in_doubt' end);
end
$$;
