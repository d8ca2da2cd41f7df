-- Ends of a doubt: probes, operators, corrections; and the housekeeping that only needs the clock.

-- Records the finding of a probe. `p_version` is the version that the probe looked at; if the fence has
-- changed since, the finding is stale. `applied` seals the answer that the probe found; `not_applied`
-- counts only after the quiet period, and gives the fence to the caller of the probe.
create function helix.probe_fence_v1(
  p_key bytea, p_version integer, p_found text, p_actor text, p_nonce bigint,
  p_lease_seconds real, p_quiet_seconds real, p_effect text default null, p_form text default null,
  p_answer bytea default null, p_omitted boolean default false,
  p_answer_seconds double precision default 86400,
  p_tombstone_seconds double precision default 2592000
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_actor text := helix.actor_of(p_actor);
  v_fence helix.fence;
  v_left  real;
begin
  perform helix.enter();
  select * into v_fence from helix.fence f where f.key = p_key for update;
  -- The repeat of a finding whose reply was lost.
  if v_fence.state = 'EFFECT_STARTED' and v_fence.nonce = p_nonce then
    return helix.fence_answer(v_fence, 'granted');
  end if;
  if v_fence.state is distinct from 'IN_DOUBT' or v_fence.version <> p_version then
    return helix.fence_answer(v_fence, 'stale');
  end if;
  if p_found = 'applied' then
    return helix.seal_doubt(v_fence, 'probed', v_actor, 'a probe found the effect', p_effect, p_form,
                            p_answer, p_omitted, p_answer_seconds, p_tombstone_seconds);
  end if;
  v_left := extract(epoch from v_fence.deadline + make_interval(secs => v_fence.quiet_seconds)
                               - clock_timestamp());
  if p_found = 'not_applied' and v_left <= 0 then
    return helix.grant_fence(v_fence, 'EFFECT_STARTED', 'probed', v_actor, p_nonce, p_lease_seconds,
                            p_quiet_seconds, 'a probe did not find the effect');
  end if;
  perform helix.record_fence_decision(v_fence, 'probe_unknown', v_actor, false,
                           case when p_found = 'not_applied'
                                then format('not found, but %s s of the quiet period are left', v_left)
                                else 'the probe found no answer' end);
  return helix.fence_answer(v_fence, 'in_doubt', greatest(v_left, 0)::real);
end
$$;

-- Seals a fence for a probe or an operator. The token ends: the holder can no longer write. Where the answer
-- is omitted, `p_answer` is its SHA-256.
create function helix.seal_doubt(
  p_fence helix.fence, p_reason helix.fence_reason, p_actor text, p_detail text, p_effect text,
  p_form text, p_answer bytea, p_omitted boolean, p_answer_seconds double precision,
  p_tombstone_seconds double precision
) returns helix.fence_result
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_fence helix.fence;
begin
  update helix.fence f
  set state = 'SEALED', version = f.version + 1, actor = p_actor, reason = p_reason,
      detail = p_detail, nonce = null, effect = helix.effect_of(f.key, p_effect), form = p_form,
      digest = case when p_omitted then p_answer else sha256(p_answer) end,
      answer = case when p_omitted then null else p_answer end, omitted = p_omitted,
      sealed_at = v_now, changed_at = v_now,
      answer_until = v_now + make_interval(secs => p_answer_seconds),
      until = v_now + make_interval(secs => greatest(p_answer_seconds, p_tombstone_seconds))
  where f.key = p_fence.key
  returning * into v_fence;
  return helix.fence_answer(v_fence, 'sealed');
end
$$;

-- An operator decides a doubt, by name and for a reason: the effect happened, with this answer, or it did not
-- happen and the key is free. With `p_correct` the operator corrects an earlier resolution instead: that
-- is allowed while the resolution is the last step of the fence, and writes a further event.
create function helix.resolve_fence_v1(
  p_key bytea, p_version integer, p_applied boolean, p_actor text, p_reason text,
  p_effect text default null, p_form text default null, p_answer bytea default null,
  p_omitted boolean default false, p_answer_seconds double precision default 86400,
  p_tombstone_seconds double precision default 2592000, p_correct boolean default false
) returns helix.fence_result
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now    timestamptz := clock_timestamp();
  v_reason helix.fence_reason := case when p_correct then 'corrected' else 'resolved' end;
  v_fence  helix.fence;
begin
  perform helix.enter();
  if coalesce(btrim(p_reason), '') = '' or coalesce(btrim(p_actor), '') = '' then
    raise exception using errcode = 'invalid_parameter_value',
      message = 'expected the name of the operator and a reason, got an empty text',
      hint = 'Both are kept in helix.fence_event.';
  end if;
  select * into v_fence from helix.fence f where f.key = p_key for update;
  if v_fence.state = 'EFFECT_STARTED' and v_fence.deadline <= v_now and v_fence.version = p_version
     and not p_correct
  then
    v_fence := helix.doubt_fence(p_key, 'lapsed', p_actor,
                                 format('%s did not renew before %s', v_fence.actor, v_fence.deadline));
    p_version := v_fence.version;
  end if;
  if v_fence.version is distinct from p_version
     or (not p_correct and v_fence.state <> 'IN_DOUBT')
     or (p_correct and v_fence.reason not in ('resolved', 'corrected'))
     or (p_correct and v_fence.state = 'RELEASED' and not p_applied)  -- there is nothing to correct
  then
    return helix.fence_answer(v_fence, 'stale');
  end if;
  if p_applied then
    return helix.seal_doubt(v_fence, v_reason, p_actor, p_reason, p_effect, p_form, p_answer,
                            p_omitted, p_answer_seconds, p_tombstone_seconds);
  end if;
  update helix.fence f
  set state = 'RELEASED', version = f.version + 1, actor = p_actor, reason = v_reason,
      detail = p_reason, nonce = null, changed_at = v_now, request = null,
      until = v_now + make_interval(secs => p_tombstone_seconds),
      effect = null, form = null, digest = null, answer = null, omitted = false, sealed_at = null,
      answer_until = null
  where f.key = p_key
  returning * into v_fence;
  return helix.fence_answer(v_fence, 'done');
end
$$;

-- Housekeeping in small chunks: expired leases, answers and tombstones. Every claim checks the clock itself;
-- this keeps the tables small and doubts visible.
create function helix.sweep_fences(p_actor text, p_limit integer)
returns table (doubted integer, released integer, emptied integer, forgotten integer)
language plpgsql as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_expired bytea[];
begin
  with lapsed as (
    select f.key from helix.fence f
    where f.state in ('CLAIMED', 'EFFECT_STARTED') and f.deadline < v_now
    order by f.deadline limit p_limit for update skip locked
  ),
  moved as (
    update helix.fence f
    set state = case f.state when 'CLAIMED' then 'RELEASED' else 'IN_DOUBT' end::helix.fence_state,
        version = f.version + 1, reason = 'lapsed', actor = p_actor, changed_at = v_now,
        detail = format('%s did not renew before %s', f.actor, f.deadline),
        request = case f.state when 'CLAIMED' then null else f.request end,
        until = case f.state when 'CLAIMED' then v_now + interval '30 days' end
    from lapsed where f.key = lapsed.key
    returning f.state
  )
  select count(*) filter (where m.state = 'IN_DOUBT'), count(*) filter (where m.state = 'RELEASED')
  into doubted, released from moved m;
  with past as (
    select f.key from helix.fence f
    where f.sealed_at is not null and (f.answer is not null or f.request is not null)
      and f.answer_until < v_now
    order by f.answer_until limit p_limit for update skip locked
  )
  update helix.fence f set answer = null, request = null from past where f.key = past.key;
  get diagnostics emptied = row_count;
  -- Fences that are claimed, started or in doubt have no tombstone.
  v_expired := array(select f.key from helix.fence f where f.until < v_now
                     order by f.until limit p_limit for update skip locked);
  perform helix.delete_fences(v_expired);
  forgotten := cardinality(v_expired);
  return next;
end
$$;

-- For a service that runs housekeeping on a schedule; one claim in a thousand runs it as well.
create function helix.sweep_fences_v1(p_actor text, p_limit integer default 1000)
returns table (doubted integer, released integer, emptied integer, forgotten integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  return query select * from helix.sweep_fences(helix.actor_of(p_actor), least(p_limit, 10000));
end
$$;

-- After a restore it is unknown which effects happened after the backup: started fences are in doubt,
-- claimed fences are free, and no earlier token is valid.
create function helix.recover_fences(p_actor text, p_detail text) returns integer
language plpgsql as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_doubted integer;
begin
  with ended as (
    select f.key from helix.fence f where f.state in ('CLAIMED', 'EFFECT_STARTED')
    order by f.key for update
  ),
  moved as (
    update helix.fence f
    set state = case f.state when 'CLAIMED' then 'RELEASED' else 'IN_DOUBT' end::helix.fence_state,
        version = f.version + 1, reason = 'recovered', actor = p_actor, detail = p_detail,
        nonce = null, deadline = v_now, changed_at = v_now,
        request = case f.state when 'CLAIMED' then null else f.request end,
        until = case f.state when 'CLAIMED' then v_now + interval '30 days' end
    from ended where f.key = ended.key
    returning f.state
  )
  select count(*) filter (where m.state = 'IN_DOUBT') into v_doubted from moved m;
  -- Also the tokens of fences that were in doubt before.
  update helix.fence f set nonce = null where f.state = 'IN_DOUBT' and f.nonce is not null;
  return v_doubted;
end
$$;
