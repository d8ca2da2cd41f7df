-- Deliveries of webhooks. The fence of a delivery is its dedupe row: its key is made of tenant, source, event id,
-- version and action, its request is the body. Fence, order mark and submission or effect commit together.

-- The newest version of an entity that took effect, and bodies that must not take effect twice. Rows stay for ever; an
-- entity is kept as a hash.
create table helix.webhook_mark (
  key     helix.sha256 primary key,  -- see mark_key
  tenant  helix.tenant_name not null,
  source  text not null,
  version numeric,                   -- null: of a body
  digest  helix.sha256 not null,     -- of what took effect
  effect  helix.effect_id not null,
  at      timestamptz not null
) with (fillfactor = 80);

do $$
begin
  perform helix.protect_table('helix.webhook_mark'::regclass, 'helix.guard'::regproc);
end
$$;

-- The key of a mark: an entity of a mapping, or a body.
create function helix.mark_key(p_tenant text, p_source text, p_kind text, p_name text) returns bytea
language sql stable parallel safe as $$
  select sha256(helix.framed(p_tenant) || helix.framed(p_source) || helix.framed(p_kind) || helix.framed(p_name))
$$;

-- A delivery whose signature holds.
create type helix.delivery as (
  tenant       text,
  source       text,
  event        text,      -- the id of the delivery as a source of a batch
  identity     text,      -- event id, version and action, joined by U+001F
  request      text,      -- the body as canonical JSON
  nonce        bigint,
  keep_seconds double precision,
  body_once    boolean,   -- an equal body under another id is a duplicate
  clock        text,      -- version | time | none
  mapping      text,      -- with the entity: what versions belong to
  entity       text,
  version      numeric,
  digest       bytea,     -- of the payload, which equal versions must share
  queue        text,      -- where the letter of a delivery belongs
  letter       bytea      -- its message, to be redriven
);

-- What was decided about it.
create type helix.delivery_answer as (
  -- granted: the caller executes the effect and ends the delivery. new, superseded, duplicate_body, dead_letter: it is
  -- over. duplicate: it was over. conflict: the event id belongs to another body. in_progress: another call has it.
  decision text,
  outcome  text,     -- the decision of the first delivery, for duplicates
  effect   text,
  request  text,     -- conflict: the body of the first delivery
  key      bytea,
  epoch    integer,
  number   bigint
);

-- Counts an authentic delivery by its decision.
create function helix.count_delivery(p_delivery helix.delivery, p_decision text) returns void
language sql volatile as $$
  insert into helix.metric_change (tenant, name, queue, label, value)
  values (p_delivery.tenant, 'helix_webhook_deliveries_total', p_delivery.source, p_decision, 1)
$$;

-- Seals the fence of a delivery with its decision, and moves the marks of one that took effect.
create function helix.end_delivery(
  p_delivery helix.delivery, p_actor text, p_answer helix.delivery_answer, p_decision text, p_effect text
) returns helix.delivery_answer
language plpgsql as $$
declare
  v_effect text := helix.effect_of(p_answer.key, p_effect);
  -- The body of the answer. A fence keeps it for two weeks, and itself for as long as the provider may resend.
  v_answer bytea := convert_to(format('{"decision":%s,"effect":%s}', to_json(p_decision), to_json(v_effect)), 'UTF8');
  v_sealed helix.fence_result;
  v_marks  integer;
begin
  v_sealed := helix.seal_fence_v1(
    p_answer.key, p_answer.epoch, p_delivery.nonce, p_answer.number, p_actor, v_effect, 'webhook ' || p_decision,
    v_answer, false, least(p_delivery.keep_seconds, 1209600), p_delivery.keep_seconds);
  if v_sealed.decision <> 'sealed' then
    raise exception using errcode = 'serialization_failure', message = 'another call took this delivery';
  end if;
  if p_decision = 'new' then
    insert into helix.webhook_mark as m (key, tenant, source, version, digest, effect, at)
    select helix.mark_key(p_delivery.tenant, p_delivery.source, k.kind, k.name), p_delivery.tenant, p_delivery.source,
           k.version, k.digest, v_effect, clock_timestamp()
    from (values ('(body)', encode(sha256(convert_to(p_delivery.request, 'UTF8')), 'hex'), null,
                  sha256(convert_to(p_delivery.request, 'UTF8')), p_delivery.body_once),
                 (p_delivery.mapping, p_delivery.entity, p_delivery.version, p_delivery.digest,
                  p_delivery.clock <> 'none')) as k (kind, name, version, digest, wanted)
    where k.wanted
    on conflict (key) do update
    set version = excluded.version, digest = excluded.digest, effect = excluded.effect, at = excluded.at
    -- Advisory locks keep concurrent deliveries of an entity apart; this row decides.
    where excluded.version > m.version or excluded.version = m.version and p_delivery.clock = 'time';
    get diagnostics v_marks = row_count;
    if v_marks <> p_delivery.body_once::integer + (p_delivery.clock <> 'none')::integer then
      raise exception using errcode = 'serialization_failure', message = 'another delivery was faster';
    end if;
  end if;
  perform helix.count_delivery(p_delivery, p_decision);
  p_answer.decision := p_decision;
  p_answer.outcome := p_decision;
  p_answer.effect := v_effect;
  return p_answer;
end
$$;

-- Ends a delivery with a dead letter.
create function helix.bury_delivery(
  p_delivery helix.delivery, p_actor text, p_answer helix.delivery_answer, p_reason text, p_detail text,
  p_key bytea default null
) returns helix.delivery_answer
language plpgsql as $$
declare
  v_letter bigint;
begin
  select w.id into v_letter from helix.write_letters_v1(
    p_delivery.tenant, p_actor, 'webhook', p_delivery.source, array[p_delivery.event], array[p_delivery.queue],
    array[p_reason], array[p_detail], array[p_delivery.letter], array[octet_length(p_delivery.letter)::bigint],
    array[sha256(p_delivery.letter)], array[p_key], p_delivery.keep_seconds) as w (id);
  return helix.end_delivery(p_delivery, p_actor, p_answer, 'dead_letter', 'letter/' || v_letter);
end
$$;

-- Claims the fence of a delivery and compares the order. Nothing waits for a transaction that is open: what another one
-- decides at this moment is in progress.
create function helix.begin_delivery(p_delivery helix.delivery, p_actor text) returns helix.delivery_answer
language plpgsql as $$
declare
  v_body   bytea := case when p_delivery.body_once then helix.mark_key(
    p_delivery.tenant, p_delivery.source, '(body)', encode(sha256(convert_to(p_delivery.request, 'UTF8')), 'hex')) end;
  v_entity bytea := case when p_delivery.clock <> 'none' then helix.mark_key(
    p_delivery.tenant, p_delivery.source, p_delivery.mapping, p_delivery.entity) end;
  v_claim  helix.fence_result;
  v_answer helix.delivery_answer;
  v_mark   helix.webhook_mark;
begin
  if not helix.receives_webhooks() then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not receive webhooks', session_user),
      hint = format('An administrator grants the right: grant helix_webhook to %I;', session_user);
  end if;
  -- Before the fence: what is in progress must leave no fence behind. Of two that need both, one is refused.
  if not coalesce((select bool_and(pg_try_advisory_xact_lock(('x' || encode(substr(k.key, 1, 8), 'hex'))::bit(64)::bigint))
                   from unnest(array[v_body, v_entity]) as k (key) where k.key is not null), true)
  then
    v_answer.decision := 'in_progress';
    perform helix.count_delivery(p_delivery, 'in_progress');
    return v_answer;
  end if;
  v_claim := helix.claim_fence_v1(
    p_delivery.tenant, 'webhook ' || p_delivery.source, p_delivery.identity, p_delivery.request, p_actor,
    p_delivery.nonce, false, 60, 0);
  v_answer.decision := case v_claim.decision when 'repeated' then 'duplicate' when 'expired' then 'duplicate'
                                             when 'mismatch' then 'conflict' when 'granted' then 'granted'
                                             else 'in_progress' end;
  v_answer.effect := v_claim.effect;
  v_answer.outcome := split_part(v_claim.form, ' ', 2);
  v_answer.request := v_claim.request;
  v_answer.key := v_claim.key;
  v_answer.epoch := v_claim.epoch;
  v_answer.number := v_claim.number;
  if v_answer.decision <> 'granted' then
    perform helix.count_delivery(p_delivery, v_answer.decision);
    return v_answer;
  end if;
  select * into v_mark from helix.webhook_mark m where m.key = v_body;
  if found then
    return helix.end_delivery(p_delivery, p_actor, v_answer, 'duplicate_body', v_mark.effect);
  end if;
  select * into v_mark from helix.webhook_mark m where m.key = v_entity;
  if p_delivery.version < v_mark.version then
    return helix.end_delivery(p_delivery, p_actor, v_answer, 'superseded', v_mark.effect);
  end if;
  -- Equal times are a tie: the clock of the provider has its grain.
  if p_delivery.clock = 'version' and p_delivery.version = v_mark.version then
    if p_delivery.digest = v_mark.digest then
      return helix.end_delivery(p_delivery, p_actor, v_answer, 'duplicate_body', v_mark.effect);
    end if;
    return helix.bury_delivery(p_delivery, p_actor, v_answer, 'conflict',
                               format('version %s of this entity took effect with another payload', v_mark.version));
  end if;
  return v_answer;
end
$$;

-- Begins a delivery whose effect the caller executes in this transaction.
create function helix.begin_delivery_v1(p_delivery helix.delivery, p_actor text) returns helix.delivery_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_delivery.tenant);
  return helix.begin_delivery(p_delivery, helix.actor_of(p_actor));
end
$$;

-- Ends it after the effect. The key is the one that the begin returned.
create function helix.end_delivery_v1(
  p_delivery helix.delivery, p_actor text, p_key bytea, p_epoch integer, p_number bigint, p_effect text
) returns helix.delivery_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_answer helix.delivery_answer;
begin
  perform helix.enter_for(p_delivery.tenant);
  v_answer.key := p_key;
  v_answer.epoch := p_epoch;
  v_answer.number := p_number;
  return helix.end_delivery(p_delivery, helix.actor_of(p_actor), v_answer, 'new', p_effect);
end
$$;

-- Decides about a delivery that becomes a batch. With p_reason it cannot become one, and gets a dead letter.
create function helix.submit_delivery_v1(
  p_delivery helix.delivery, p_actor text, p_profile text, p_identity text, p_payload text, p_raw text,
  p_revision text, p_reason text default null, p_detail text default null
) returns helix.delivery_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_actor  text := helix.actor_of(p_actor);
  v_answer helix.delivery_answer;
  v_batch  helix.submitted;
begin
  perform helix.enter_for(p_delivery.tenant);
  v_answer := helix.begin_delivery(p_delivery, v_actor);
  if v_answer.decision <> 'granted' then
    return v_answer;
  end if;
  if p_reason is not null then
    return helix.bury_delivery(p_delivery, v_actor, v_answer, p_reason, p_detail);
  end if;
  select * into v_batch from helix.submit_from_v1(
    p_delivery.tenant, p_delivery.queue, v_actor, p_profile, array['webhook'], array[p_delivery.source],
    array[p_delivery.event], array[p_identity], array[p_payload], array[p_raw], array[coalesce(p_revision, '')]);
  if v_batch.decision in ('new', 'duplicate') then
    return helix.end_delivery(p_delivery, v_actor, v_answer, 'new', helix.public_id(v_batch.key)::text);
  end if;
  return helix.bury_delivery(
    p_delivery, v_actor, v_answer,
    case when v_batch.decision = 'conflict' then 'conflict' when v_batch.differs = '{source}' then 'reused'
         else 'refused' end,
    case when v_batch.decision = 'conflict' then 'the identity was submitted with another payload'
         else coalesce(v_batch.note, 'refused') end,
    v_batch.key);
end
$$;
