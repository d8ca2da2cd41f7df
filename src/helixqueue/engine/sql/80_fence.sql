-- A fence guards one effect. A batch is work that the engine assigns; a fence surrounds work that a
-- caller starts (a request, a message, a function call) and lets it take effect once.
--
--   (new) > CLAIMED > EFFECT_STARTED > SEALED            claimed, started, done: the answer is kept
--                     EFFECT_STARTED > IN_DOUBT          started, outcome unknown
--           CLAIMED, EFFECT_STARTED  > RELEASED          the effect did not happen: the key is free
--
-- An effect inside the database goes CLAIMED > SEALED in the transaction of the effect itself, so a
-- rollback erases the fence. An effect outside the database commits EFFECT_STARTED before it starts. A
-- fence in that state without a live holder may have taken effect and is not executed again.

create type helix.fence_state as enum (
  'CLAIMED',         -- (new), CLAIMED, RELEASED -> CLAIMED: held, the effect has not started
  'EFFECT_STARTED',  -- (new), CLAIMED, RELEASED, IN_DOUBT -> EFFECT_STARTED: it may have happened
  'SEALED',          -- CLAIMED, EFFECT_STARTED, IN_DOUBT -> SEALED: it happened once; final but for corrections
  'RELEASED',        -- CLAIMED, EFFECT_STARTED, IN_DOUBT -> RELEASED: it did not happen; the key is free
  'IN_DOUBT'         -- EFFECT_STARTED -> IN_DOUBT: the outcome is unknown until a probe or an operator decides
);

create type helix.fence_reason as enum (
  'claimed',    -- (new), RELEASED -> CLAIMED, EFFECT_STARTED
  'started',    -- CLAIMED -> EFFECT_STARTED
  'reclaimed',  -- CLAIMED -> CLAIMED, EFFECT_STARTED: the holder's lease expired before the effect started
  'sealed',     -- CLAIMED, EFFECT_STARTED, IN_DOUBT -> SEALED by the holder
  'released',   -- -> RELEASED: the holder reports that nothing happened
  'failed',     -- EFFECT_STARTED -> IN_DOUBT: the holder failed after the effect had started
  'lapsed',     -- EFFECT_STARTED -> IN_DOUBT, CLAIMED -> RELEASED: the lease expired
  'probed',     -- IN_DOUBT -> SEALED, EFFECT_STARTED: a probe decided
  'rerun',   -- IN_DOUBT -> EFFECT_STARTED: an effect that is declared replayable
  'resolved',   -- IN_DOUBT -> SEALED, RELEASED: an operator decided
  'corrected',  -- SEALED -> SEALED, RELEASED and RELEASED -> SEALED: an operator corrected a resolution
  'recovered'   -- EFFECT_STARTED -> IN_DOUBT, CLAIMED -> RELEASED: `helixq recover`
);

-- The legal arrows; the trigger `record_fence_step` rejects every other step.
create table helix.fence_arrow (
  from_state helix.fence_state,          -- null: there was no fence
  to_state   helix.fence_state not null,
  -- Only an operator takes this arrow, and only to correct the resolution that was the last step.
  correction boolean not null default false,
  unique nulls not distinct (from_state, to_state)
);
insert into helix.fence_arrow (from_state, to_state) values
  (null,             'CLAIMED'),
  (null,             'EFFECT_STARTED'),
  ('CLAIMED',        'CLAIMED'),
  ('CLAIMED',        'EFFECT_STARTED'),
  ('CLAIMED',        'SEALED'),
  ('CLAIMED',        'RELEASED'),
  ('EFFECT_STARTED', 'SEALED'),
  ('EFFECT_STARTED', 'RELEASED'),
  ('EFFECT_STARTED', 'IN_DOUBT'),
  ('IN_DOUBT',       'SEALED'),
  ('IN_DOUBT',       'RELEASED'),
  ('IN_DOUBT',       'EFFECT_STARTED'),
  ('RELEASED',       'CLAIMED'),
  ('RELEASED',       'EFFECT_STARTED');
insert into helix.fence_arrow (from_state, to_state, correction) values
  ('SEALED',         'SEALED',   true),
  ('SEALED',         'RELEASED', true),
  ('RELEASED',       'SEALED',   true);

-- Bounds of a fence's columns. Domains and not CHECKs of the table, for the reason in 11_vocabulary.
create domain helix.fence_name as text check (octet_length(value) between 1 and 255);
-- A name of 255 bytes behind the name of a login.
create domain helix.actor_name as text check (octet_length(value) between 1 and 320);
create domain helix.fence_identity as text
  check (value is nfc normalized and octet_length(value) between 1 and 4096);
create domain helix.quiet_seconds as real check (value between 0 and 604800);
create domain helix.effect_id as text check (octet_length(value) between 1 and 1024);
create domain helix.kept_answer as bytea check (octet_length(value) <= 16777216);
create domain helix.evidence as bytea check (octet_length(value) <= 65536);

create sequence helix.fence_number;  -- numbers the leases of fences

-- The primary key decides which of many concurrent claims gets the fence. The row outlives the effect
-- until its tombstone expires, so that a late repeat finds it.
create table helix.fence (
  key           helix.key primary key,
  tenant        helix.tenant_name not null,
  name          helix.fence_name not null,  -- the operation that is fenced
  -- The parts of the key joined by U+001F. Null: a call without a key, never merged with another.
  identity      helix.fence_identity,
  life          bigint not null,  -- from its first claim until its tombstone expires
  state         helix.fence_state not null,
  version       integer not null,
  attempt       integer not null,
  -- HMAC-SHA256 of the request's canonical text, and the secret it was made with. A claim of a RELEASED
  -- fence replaces both: nothing happened, so a corrected request may use the key.
  fingerprint   bytea not null,
  secret        smallint not null,
  request       helix.document,  -- for the diff; null: not kept
  -- The token. Null: no holder may write any more.
  epoch         integer,
  nonce         bigint,
  number        bigint,
  actor         helix.actor_name not null,
  reason        helix.fence_reason not null,
  detail        helix.long_text,
  lease_seconds helix.lease_seconds not null,
  -- How long after its lease a frozen holder may still act. A probe's "not applied" counts only after it.
  quiet_seconds helix.quiet_seconds not null,
  deadline      timestamptz not null,   -- of the lease
  first_at      timestamptz not null default clock_timestamp(),
  changed_at    timestamptz not null default clock_timestamp(),
  -- The outcome.
  effect        helix.effect_id,        -- its id in the system where it happened
  form          helix.fence_name,       -- the encoding of `answer`
  digest        helix.sha256,           -- of the answer
  answer        helix.kept_answer,
  omitted       boolean not null default false,  -- the answer was too large to store, or not storable
  sealed_at     timestamptz,
  answer_until  timestamptz,            -- then the answer is deleted, the fence stays
  until         timestamptz,            -- the tombstone: then the key is new again
  check ((state = 'SEALED') = (digest is not null)),
  check ((state = 'SEALED') = (sealed_at is not null)),
  check ((state in ('SEALED', 'RELEASED')) = (until is not null)),
  check (state not in ('CLAIMED', 'EFFECT_STARTED') or nonce is not null),
  -- Nothing happened: there is no reason to keep what was asked.
  check (state <> 'RELEASED' or request is null)
) with (fillfactor = 70);
-- Finds expired leases.
create index fence_deadline on helix.fence (deadline) where state in ('CLAIMED', 'EFFECT_STARTED');
-- Lists fences that wait for a probe or an operator, newest first.
create index fence_doubt on helix.fence (tenant, life) where state = 'IN_DOUBT';
-- Housekeeping: expired answers with their requests, and expired tombstones.
create index fence_answer_until on helix.fence (answer_until)
  where sealed_at is not null and (answer is not null or request is not null);
create index fence_until on helix.fence (until) where until is not null;
-- List one tenant's fences, newest first: all, and those of a name. Every step of a fence costs an entry
-- in each index, so there is none on life alone: the trigger that writes events, and their primary key,
-- keep lives unique.
create unique index fence_age on helix.fence (tenant, life);
create index fence_listed on helix.fence (tenant, name, life);

-- Every step of every fence, append-only. The trigger below writes it in the statement that makes the
-- step. The primary key admits one successor per version.
create table helix.fence_event (
  life       bigint not null,
  version    integer not null,
  tenant     helix.tenant_name not null,
  from_state helix.fence_state,
  to_state   helix.fence_state not null,
  at         timestamptz not null,
  attempt    integer not null,
  epoch      integer,
  number     bigint,
  actor      text not null,
  reason     helix.fence_reason not null,
  detail     text,
  content    helix.sha256 not null,  -- of the fence after the step (fence_content)
  position   bigint not null default helix.current_position(),  -- for seals
  hash       helix.sha256 not null,  -- over this row (hash_row)
  primary key (life, version)
);
-- What operators decided, newest first.
create index fence_event_action on helix.fence_event (tenant, at, life) where reason in ('resolved', 'corrected');
create index fence_event_position on helix.fence_event using brin (position) with (autosummarize = on);

-- The batches that the request of a fence was about, for calls in the transaction of its claim: the request, and
-- the answer where it shows a stored payload, are copies that erasing a batch has to find.
create table helix.fence_batch (
  fence    helix.key not null,
  batch    bigint not null,
  tenant   helix.tenant_name not null,
  conflict boolean not null,  -- the answer shows differences to the stored payload
  primary key (fence, batch)
);
-- Finds the copies of a batch.
create index fence_batch_batch on helix.fence_batch (batch);

create type helix.fence_decision_kind as enum (
  'repeated',      -- the kept answer was returned
  'expired',       -- it happened, but the answer is no longer kept
  'in_progress',   -- another call holds the fence
  'mismatch',      -- the key belongs to another request
  'in_doubt',      -- the outcome is unknown
  'probe_unknown', -- a probe found nothing, or was too early
  'unknown',       -- a call without a key: stored, never merged
  'fenced_out'     -- a write with a token that is not the holder's
);

-- Decisions that changed no state: repeats, refusals, and late writes of holders that lost their fence.
create table helix.fence_decision (
  life     bigint not null,
  id       bigint generated always as identity,
  at       timestamptz not null default clock_timestamp(),
  tenant   helix.tenant_name not null,
  name     helix.fence_name not null,
  kind     helix.fence_decision_kind not null,
  actor    helix.actor_name not null,
  detail   helix.long_text,
  evidence helix.evidence,  -- the answer of a late holder
  times    integer not null default 1,  -- equal ones of one minute, `at` the first (44_answer_count.sql)
  last_at  timestamptz,
  position bigint not null default helix.current_position(),  -- for seals
  hash     helix.sha256 not null,
  primary key (life, id)
);
create index fence_decision_position on helix.fence_decision using brin (position) with (autosummarize = on);
create trigger hash_row before insert or update on helix.fence_event
  for each row execute function helix.hash_row();
create trigger hash_row before insert or update on helix.fence_decision
  for each row execute function helix.hash_row();

-- The key of a fence: tenant, name and key parts, each prefixed with its length, like a batch's key.
create function helix.derive_fence_key(p_tenant text, p_name text, p_identity text)
returns bytea language sql stable parallel safe as $$
  select E'\\x01'::bytea || sha256(E'\\x66656e6365'::bytea || helix.framed(p_tenant)
                                 || helix.framed(p_name) || helix.framed_identity(p_identity))
$$;

-- The id of an effect that the application did not name: the idempotency key that the next system got (fence/receipt.py
-- derives the same text).
create function helix.effect_of(p_key bytea, p_effect text) returns text
language sql immutable parallel safe as $$
  select coalesce(nullif(p_effect, ''), 'hx1-' || left(encode(sha256(E'\\x01646f776e73747265616d'::bytea || p_key), 'hex'), 48))
$$;

-- The id of a receipt covers the whole receipt: whose request it was, what it asked, what came of it, when it
-- arrived and when it was sealed. All of it is stored, so the id is the same on every repeat, and anyone who
-- has the parts can verify it (fence/receipt.py derives the same bytes).
create function helix.fence_receipt(
  p_tenant text, p_name text, p_identity text, p_key bytea, p_fingerprint bytea, p_effect text,
  p_form text, p_digest bytea, p_first_at timestamptz, p_sealed_at timestamptz
) returns bytea language sql stable parallel safe as $$
  select sha256(E'\\x0272656365697074'::bytea || helix.framed(p_tenant) || helix.framed(p_name)
                || helix.framed(coalesce(p_identity, '')) || p_key || p_fingerprint
                || helix.framed(coalesce(p_effect, '')) || helix.framed(p_form) || p_digest
                || timestamptz_send(p_first_at) || timestamptz_send(p_sealed_at))
$$;

-- Covers what a fence says about its effect, so that an edit of the row shows. Not its answer, which the digest
-- covers and housekeeping empties, and not the lease, which renewals change.
create function helix.fence_content(
  p_key bytea, p_tenant text, p_name text, p_identity text, p_fingerprint bytea, p_secret smallint,
  p_effect text, p_form text, p_digest bytea, p_omitted boolean, p_first_at timestamptz,
  p_sealed_at timestamptz, p_answer_until timestamptz, p_until timestamptz
) returns bytea language sql stable parallel safe as $$
  select sha256(p_key || p_fingerprint || helix.framed(p_tenant) || helix.framed(p_name)
                || helix.framed(coalesce(p_identity, '')) || helix.framed(coalesce(p_effect, ''))
                || helix.framed(coalesce(p_form, '')) || coalesce(p_digest, ''::bytea)
                || helix.framed(concat_ws('>', p_secret, p_omitted, extract(epoch from p_first_at),
                     coalesce(extract(epoch from p_sealed_at)::text, ''),
                     coalesce(extract(epoch from p_answer_until)::text, ''),
                     coalesce(extract(epoch from p_until)::text, ''))))
$$;

-- Writes the event of every step; rejects the statement that takes an illegal one.
create function helix.record_fence_step() returns trigger
language plpgsql as $$
begin
  insert into helix.fence_event (life, version, tenant, from_state, to_state, at, attempt, epoch,
                                 number, actor, reason, detail, content)
  select n.life, n.version, n.tenant, head.to_state, n.state, clock_timestamp(), n.attempt, n.epoch,
         n.number, n.actor, n.reason, n.detail,
         helix.fence_content(n.key, n.tenant, n.name, n.identity, n.fingerprint, n.secret, n.effect, n.form,
                             n.digest, n.omitted, n.first_at, n.sealed_at, n.answer_until, n.until)
  from arrived n
  left join lateral (select e.version, e.to_state, e.reason from helix.fence_event e
                     where e.life = n.life order by e.version desc limit 1) head on true
  left join helix.fence_arrow a on a.from_state is not distinct from head.to_state
                               and a.to_state = n.state
  where case
    -- An update without a step. An insert is always a step: an event of its life belongs to another fence.
    when tg_op = 'UPDATE' and head.version = n.version and head.to_state = n.state then false
    when n.version = coalesce(head.version, 0) + 1 and a.to_state is not null
      and (not a.correction or (n.reason = 'corrected' and head.reason in ('resolved', 'corrected'))) then true
    else helix.refuse_fence_step(n.life, head.to_state, head.version, n.state, n.version) end;
  return null;
end
$$;

-- Rejects a statement whose step is not a legal arrow.
create function helix.refuse_fence_step(
  p_life bigint, p_from helix.fence_state, p_from_version integer, p_to helix.fence_state,
  p_to_version integer
) returns boolean
language plpgsql as $$
begin
  raise exception using errcode = 'QH001',
    message = format('fence %s: no arrow %s (version %s) -> %s (version %s)', p_life,
                     coalesce(p_from::text, '(new)'), coalesce(p_from_version, 0), p_to,
                     p_to_version),
    hint = 'The table helix.fence_arrow lists the legal arrows; each step raises the version by one. Only a resolution can be corrected.';
end
$$;

-- A new fence writes its event in the statement that inserts it.
create trigger record after insert on helix.fence
  referencing new table as arrived for each statement execute function helix.record_fence_step();
-- Every change of a fence writes its event too; one trigger cannot have both events and a transition table.
create trigger record_update after update on helix.fence
  referencing new table as arrived for each statement execute function helix.record_fence_step();

do $$
declare
  v_table regclass;
begin
  foreach v_table in array '{helix.fence_arrow,helix.fence,helix.fence_batch,helix.fence_event,helix.fence_decision}'::regclass[]
  loop
    perform helix.protect_table(v_table, case v_table::text when 'helix.fence_event'
                                         then 'helix.guard_ledger' else 'helix.guard' end::regproc);
  end loop;
end
$$;
