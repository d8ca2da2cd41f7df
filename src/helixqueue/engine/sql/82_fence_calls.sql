-- The calls of a holder: claim, start, renew, seal, release, doubt.
-- Every write carries the token of its claim. Every deadline uses the clock of the database.

-- Deletes fences with their events and decisions: their keys are new again.
-- guard_ledger allows this function by its name, which a session may have quoted.
create function helix.delete_fences(p_keys bytea[]) returns void
language plpgsql set quote_all_identifiers = off as $$
declare
  v_lives bigint[] := array(select f.life from helix.fence f where f.key = any (p_keys));
begin
  perform helix.fold_answers(0, v_lives);
  perform helix.count_deleted_fences(v_lives);
  delete from helix.fence_event e where e.life = any (v_lives);
  delete from helix.fence_decision d where d.life = any (v_lives);
  delete from helix.fence_batch l where l.fence = any (p_keys);
  delete from helix.fence f where f.key = any (p_keys);
end
$$;

-- Records the batches of a call whose transaction claimed a fence (helix.fence, set by the claim).
create function helix.link_fence(p_batch bigint[], p_conflict boolean[] default null) returns void
language plpgsql as $$
declare
  v_fence text := nullif(current_setting('helix.fence', true), '');
begin
  if v_fence is not null then
    insert into helix.fence_batch as l (fence, batch, tenant, conflict)
    select f.key, u.batch, f.tenant, bool_or(coalesce(u.conflict, false))
    from helix.fence f cross join unnest(p_batch, p_conflict) as u (batch, conflict)
    where f.key = v_fence::bytea and f.state in ('CLAIMED', 'EFFECT_STARTED') and u.batch is not null
    group by f.key, u.batch, f.tenant
    on conflict (fence, batch) do update set conflict = l.conflict or excluded.conflict;
  end if;
end
$$;

-- Links the batches of these answers with the fence of the transaction.
create function helix.link_submitted(p_answers helix.submitted[]) returns void
language sql volatile as $$
  select helix.link_fence(array_agg(b.id), array_agg(a.decision = 'conflict'))
  from unnest(p_answers) a join helix.batch b on b.key = a.key
$$;

-- Empties the copies of erased batches: requests, answers that show a payload and, with p_identity, all answers.
create function helix.empty_fences(p_batch bigint[], p_identity boolean) returns void
language sql volatile as $$
  update helix.fence f
  set request = null, answer = case when l.conflict or p_identity then null else f.answer end
  from (select l.fence, bool_or(l.conflict) as conflict from helix.fence_batch l
        where l.batch = any (p_batch) group by l.fence) l
  where f.key = l.fence
$$;

-- Gives the fence to a new holder. The caller has locked its row and knows that it has no live holder.
-- With `p_request` the fence takes a new request: only of a RELEASED fence.
create function helix.grant_fence(
  p_fence helix.fence, p_to helix.fence_state, p_reason helix.fence_reason, p_actor text,
  p_nonce bigint, p_lease_seconds real, p_quiet_seconds real, p_detail text default null,
  p_request text default null, p_keep_request boolean default true
) returns helix.fence_result
language plpgsql as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_fence  helix.fence := p_fence;
  v_secret helix.secret;
begin
  if p_request is not null then
    select * into strict v_secret from helix.secret s where s.id = v_fence.secret;
    if v_fence.fingerprint <> helix.fingerprint(v_secret, p_request) then
      p_detail := 'a corrected request takes the released key';
      v_fence.fingerprint := helix.fingerprint(v_secret, p_request);
    end if;
    v_fence.request := case when p_keep_request then p_request::json end;
  end if;
  update helix.fence f
  set state = p_to, version = f.version + 1, attempt = f.attempt + 1, epoch = helix.current_epoch(),
      nonce = p_nonce, number = helix.next_fence_number(), actor = p_actor, reason = p_reason,
      detail = p_detail, lease_seconds = p_lease_seconds, quiet_seconds = p_quiet_seconds,
      deadline = v_now + make_interval(secs => p_lease_seconds), changed_at = v_now, until = null,
      fingerprint = v_fence.fingerprint, request = v_fence.request
  where f.key = p_fence.key
  returning * into v_fence;
  perform set_config('helix.fence', v_fence.key::text, true);
  return helix.fence_answer(v_fence, 'granted');
end
$$;

-- Puts a started effect in doubt. The token stays valid: if the holder returns before a probe or an
-- operator decides, its seal counts.
create function helix.doubt_fence(
  p_key bytea, p_reason helix.fence_reason, p_actor text, p_detail text
) returns helix.fence
language plpgsql as $$
declare
  v_fence helix.fence;
begin
  update helix.fence f
  set state = 'IN_DOUBT', version = f.version + 1, actor = p_actor, reason = p_reason,
      detail = p_detail, deadline = least(f.deadline, clock_timestamp()),
      changed_at = clock_timestamp()
  where f.key = p_key
  returning * into v_fence;
  return v_fence;
end
$$;

-- When a replayable effect may be executed again: at once, then after 1, 3, 7 seconds and so on up to
-- five minutes. Up to a quarter is added to each delay, so that many fences do not retry at once.
create function helix.rerun_at(p_fence helix.fence) returns timestamptz
language sql stable as $$
  select p_fence.deadline + make_interval(
    secs => least(2 ^ (p_fence.attempt - 1) - 1, 300) * (1 + p_fence.number % 100 / 400.0))
$$;

-- Decides a claim of an existing fence. The row is locked or SEALED.
create function helix.decide_fence(
  p_fence helix.fence, p_request text, p_actor text, p_nonce bigint, p_start boolean,
  p_lease_seconds real, p_quiet_seconds real, p_replayable boolean, p_max_attempts integer,
  p_keep_request boolean, p_alone boolean
) returns helix.fence_result
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_fence helix.fence := p_fence;
  v_goal  helix.fence_state := case when p_start then 'EFFECT_STARTED' else 'CLAIMED' end;
  v_wait  real;
begin
  -- First of all, in every state: the key must belong to this request.
  if helix.fence_differs(v_fence, p_request) then
    perform helix.record_fence_decision(v_fence, 'mismatch', p_actor, p_alone,
                                        helix.difference_text(v_fence, p_request));
    return helix.fence_answer(v_fence, 'mismatch');
  end if;
  if v_fence.state = 'SEALED' then
    if v_fence.omitted or (v_fence.answer is not null and v_fence.answer_until > v_now) then
      perform helix.record_fence_decision(v_fence, 'repeated', p_actor, p_alone);
      return helix.fence_answer(v_fence, 'repeated');
    end if;
    perform helix.record_fence_decision(v_fence, 'expired', p_actor, p_alone);
    return helix.fence_answer(v_fence, 'expired');
  end if;
  -- The repeat of a claim whose reply was lost.
  if v_fence.state in ('CLAIMED', 'EFFECT_STARTED') and v_fence.nonce = p_nonce then
    return helix.fence_answer(v_fence, 'granted');
  end if;
  if v_fence.state in ('CLAIMED', 'EFFECT_STARTED') and v_fence.deadline > v_now then
    perform helix.record_fence_decision(v_fence, 'in_progress', p_actor, p_alone);
    return helix.fence_answer(v_fence, 'in_progress', extract(epoch from v_fence.deadline - v_now)::real);
  end if;
  if v_fence.state = 'CLAIMED' then
    return helix.grant_fence(v_fence, v_goal, 'reclaimed', p_actor, p_nonce, p_lease_seconds,
                             p_quiet_seconds);
  end if;
  if v_fence.state = 'RELEASED' then
    return helix.grant_fence(v_fence, v_goal, 'claimed', p_actor, p_nonce, p_lease_seconds,
                             p_quiet_seconds, null, p_request, p_keep_request);
  end if;
  if v_fence.state = 'EFFECT_STARTED' then
    v_fence := helix.doubt_fence(v_fence.key, 'lapsed', p_actor,
                                 format('%s did not renew before %s', v_fence.actor, v_fence.deadline));
    p_alone := false;  -- the step above must reach the disk
  end if;
  if p_replayable and v_fence.attempt < p_max_attempts and helix.rerun_at(v_fence) <= v_now then
    return helix.grant_fence(v_fence, 'EFFECT_STARTED', 'rerun', p_actor, p_nonce,
                            p_lease_seconds, p_quiet_seconds);
  end if;
  perform helix.record_fence_decision(v_fence, 'in_doubt', p_actor, p_alone);
  v_wait := extract(epoch from case when p_replayable then helix.rerun_at(v_fence)
              else v_fence.deadline + make_interval(secs => v_fence.quiet_seconds) end - v_now);
  return helix.fence_answer(v_fence, 'in_doubt', greatest(v_wait, 0)::real,
                          concat_ws('; ', v_fence.detail,
                            case when p_replayable and v_fence.attempt >= p_max_attempts
                                 then format('no attempts left after %s', v_fence.attempt) end));
end
$$;

-- Claims a fence: one statement decides which caller executes the effect. `p_start` commits the marker of an
-- effect outside the database with the claim. `p_nonce` is the caller's secret, by which a repeat of the
-- same call is recognised. `p_alone`: this statement is a transaction of its own.
create function helix.claim_fence_v1(
  p_tenant text, p_name text, p_identity text, p_request text, p_actor text, p_nonce bigint,
  p_start boolean, p_lease_seconds real, p_quiet_seconds real, p_replayable boolean default false,
  p_max_attempts integer default 5, p_keep_request boolean default true,
  p_alone boolean default false
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_actor  text := helix.actor_of(p_actor);
  v_key    bytea;
  v_secret helix.secret;
  v_fence  helix.fence;
  v_reply   helix.fence_result;
begin
  perform helix.enter_for(p_tenant);
  if octet_length(p_request) > 1048576 then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected a request of at most 1048576 bytes, got %s', octet_length(p_request)),
      hint = 'Fingerprint a digest of it instead.';
  end if;
  -- Without an identity the key follows from the nonce: unique to this call, and found again by its repeat.
  v_key := case when p_identity is null then E'\\x00'::bytea || sha256(int8send(p_nonce))
                else helix.derive_fence_key(p_tenant, p_name, p_identity) end;
  select * into v_fence from helix.fence f where f.key = v_key;
  if v_fence.state = 'SEALED' and v_fence.until > clock_timestamp() then
    return helix.decide_fence(v_fence, p_request, v_actor, p_nonce, p_start, p_lease_seconds,
                             p_quiet_seconds, p_replayable, p_max_attempts, p_keep_request, p_alone);
  end if;
  -- A hint, so that no caller blocks on a transaction that holds the key and has not committed. Two keys
  -- with the same hash cost one caller a needless wait; the primary key decides.
  if not pg_try_advisory_xact_lock(('x' || encode(substr(v_key, 2, 8), 'hex'))::bit(64)::bigint) then
    if v_fence.key is null then  -- no committed row to compare with or to record a decision for
      v_fence.key := v_key;
      return helix.fence_answer(v_fence, 'in_progress', 1);
    end if;
    v_reply := helix.fence_answer(v_fence, case when helix.fence_differs(v_fence, p_request)
                                             then 'mismatch' else 'in_progress' end, 1);
    perform helix.record_fence_decision(v_fence, v_reply.decision::helix.fence_decision_kind, v_actor, p_alone,
      case when v_reply.decision = 'mismatch' then helix.difference_text(v_fence, p_request) end);
    return v_reply;
  end if;
  loop
    select * into v_fence from helix.fence f where f.key = v_key for update;
    if found and (v_fence.until is null or v_fence.until > clock_timestamp()) then
      return helix.decide_fence(v_fence, p_request, v_actor, p_nonce, p_start, p_lease_seconds,
                               p_quiet_seconds, p_replayable, p_max_attempts, p_keep_request, p_alone);
    end if;
    if found then
      perform helix.delete_fences(array[v_key]);
    end if;
    select * into strict v_secret from helix.secret s order by s.id desc limit 1;
    insert into helix.fence (key, tenant, name, identity, life, state, version, attempt, fingerprint,
                             secret, request, epoch, nonce, number, actor, reason, lease_seconds,
                             quiet_seconds, deadline)
    select v_key, p_tenant, p_name, p_identity, token.number,
           case when p_start then 'EFFECT_STARTED' else 'CLAIMED' end::helix.fence_state, 1, 1,
           helix.fingerprint(v_secret, p_request), v_secret.id,
           case when p_keep_request then p_request::json end, helix.current_epoch(), p_nonce,
           token.number, v_actor, 'claimed', p_lease_seconds, p_quiet_seconds,
           clock_timestamp() + make_interval(secs => p_lease_seconds)
    from (select helix.next_fence_number() as number) token
    on conflict (key) do nothing
    returning * into v_fence;
    if found then
      exit;
    end if;
  end loop;
  if p_identity is null then
    perform helix.record_fence_decision(v_fence, 'unknown', v_actor, false);
  end if;
  perform set_config('helix.fence', v_key::text, true);
  v_reply := helix.fence_answer(v_fence, 'granted');
  -- Housekeeping once in about a thousand claims, never in a caller's transaction.
  if p_alone and v_fence.number % 1024 = 0 then
    perform helix.sweep_fences(v_actor, 100);
  end if;
  return v_reply;
end
$$;

-- Refuses a write whose token is not the holder's, and records it with the answer it carried.
create function helix.refuse_stale_fence(
  p_key bytea, p_actor text, p_what text, p_evidence bytea default null
) returns helix.fence_result
language plpgsql as $$
declare
  v_fence helix.fence;
begin
  select * into v_fence from helix.fence f where f.key = p_key;
  if not found then
    v_fence.key := p_key;
    return helix.fence_answer(v_fence, 'fenced_out', null, 'no such fence');
  end if;
  perform helix.record_fence_decision(v_fence, 'fenced_out', p_actor, false, p_what, p_evidence);
  return helix.fence_answer(v_fence, 'fenced_out', null, p_what);
end
$$;

-- The holder reports the outcome. A late seal counts while the fence has no other holder: the token decides,
-- not the deadline. A repeat of the same seal gets the same reply. Where the answer is omitted, `p_answer`
-- is its SHA-256.
create function helix.seal_fence_v1(
  p_key bytea, p_epoch integer, p_nonce bigint, p_number bigint, p_actor text, p_effect text,
  p_form text, p_answer bytea, p_omitted boolean, p_answer_seconds double precision,
  p_tombstone_seconds double precision
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_digest bytea := case when p_omitted then p_answer else sha256(p_answer) end;
  v_fence  helix.fence;
begin
  perform helix.enter();
  update helix.fence f
  set state = 'SEALED', version = f.version + 1, actor = helix.actor_of(p_actor),
      reason = 'sealed', detail = null, effect = helix.effect_of(p_key, p_effect),
      form = p_form, digest = v_digest,
      answer = case when p_omitted then null else p_answer end, omitted = p_omitted,
      sealed_at = v_now, changed_at = v_now,
      answer_until = v_now + make_interval(secs => p_answer_seconds),
      until = v_now + make_interval(secs => greatest(p_answer_seconds, p_tombstone_seconds))
  where f.key = p_key and (f.epoch, f.nonce, f.number) = (p_epoch, p_nonce, p_number)
    and f.state in ('CLAIMED', 'EFFECT_STARTED', 'IN_DOUBT')
  returning * into v_fence;
  if found then
    return helix.fence_answer(v_fence, 'sealed');
  end if;
  select * into v_fence from helix.fence f
  where f.key = p_key and (f.epoch, f.nonce, f.number) = (p_epoch, p_nonce, p_number)
    and f.state = 'SEALED' and f.digest = v_digest and f.effect = helix.effect_of(p_key, p_effect);
  if found then
    return helix.fence_answer(v_fence, 'sealed');
  end if;
  return helix.refuse_stale_fence(p_key, helix.actor_of(p_actor), 'seal', p_answer);
end
$$;

-- The holder starts the effect (EFFECT_STARTED), reports that nothing happened (RELEASED), or failed after
-- the start (IN_DOUBT).
create function helix.step_fence_v1(
  p_key bytea, p_epoch integer, p_nonce bigint, p_number bigint, p_to helix.fence_state,
  p_actor text, p_detail text default null, p_tombstone_seconds double precision default 2592000
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_actor text := helix.actor_of(p_actor);
  v_fence helix.fence;
begin
  perform helix.enter();
  update helix.fence f
  set state = p_to, version = f.version + 1, actor = v_actor, detail = left(p_detail, 16000),
      reason = case p_to when 'EFFECT_STARTED' then 'started' when 'RELEASED' then 'released'
                         else 'failed' end::helix.fence_reason,
      changed_at = v_now, request = case p_to when 'RELEASED' then null else f.request end,
      deadline = case p_to when 'EFFECT_STARTED' then v_now + make_interval(secs => f.lease_seconds)
                           else least(f.deadline, v_now) end,
      until = case p_to when 'RELEASED' then v_now + make_interval(secs => p_tombstone_seconds) end
  where f.key = p_key and (f.epoch, f.nonce, f.number) = (p_epoch, p_nonce, p_number)
    and f.state <> p_to
    and f.state = any (case p_to when 'EFFECT_STARTED' then '{CLAIMED}'
                                 when 'RELEASED' then '{CLAIMED,EFFECT_STARTED,IN_DOUBT}'
                                 when 'IN_DOUBT' then '{EFFECT_STARTED}' end::helix.fence_state[])
  returning * into v_fence;
  if found then
    return helix.fence_answer(v_fence, 'done');
  end if;
  -- The repeat of a step whose reply was lost.
  select * into v_fence from helix.fence f
  where f.key = p_key and (f.epoch, f.nonce, f.number) = (p_epoch, p_nonce, p_number)
    and f.state = p_to;
  if found then
    return helix.fence_answer(v_fence, 'done');
  end if;
  return helix.refuse_stale_fence(p_key, v_actor, lower(p_to::text));
end
$$;

-- Renews the leases of many fences in one call; returns the keys that the caller has lost.
create function helix.renew_fences_v1(
  p_key bytea[], p_epoch integer[], p_nonce bigint[], p_number bigint[]
) returns setof bytea
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  return query
  with mine as (
    select f.key from helix.fence f
    join unnest(p_key, p_epoch, p_nonce, p_number) as held (key, epoch, nonce, number)
      on held.key = f.key and (held.epoch, held.nonce, held.number) = (f.epoch, f.nonce, f.number)
    where f.state in ('CLAIMED', 'EFFECT_STARTED')
    order by f.key for update of f
  ),
  renewed as (
    update helix.fence f
    set deadline = clock_timestamp() + make_interval(secs => f.lease_seconds)
    from mine where f.key = mine.key returning f.key
  )
  select held.key from unnest(p_key) as held (key)
  where held.key not in (select r.key from renewed r);
end
$$;
