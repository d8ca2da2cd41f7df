-- What happened: one event a step, and what remains of refusals, duplicates and retired batches.

-- Append-only. The primary key lets exactly one successor follow each version, whoever races.
-- Partitioned by the internal batch id, which never changes: a partition by time or by state would
-- have rows wander, and archiving would tear batches apart.
create table helix.event (
  batch      bigint not null,
  at         timestamptz not null,
  -- The transaction of the state change. A number: xid8 has no BRIN, and to read it as one would
  -- leak, so that behind row-level security no index could be used.
  xid        bigint not null default pg_current_xact_id()::text::bigint,
  number     bigint,
  version    integer not null,
  to_state   helix.state not null,
  reason     helix.reason not null,
  from_state helix.state,
  epoch      integer,
  attempt    smallint not null,
  late       boolean not null,
  tenant     helix.tenant_name not null,
  actor      text not null,
  hash       bytea not null,  -- over the previous event's hash and this event's columns
  detail     text,
  primary key (batch, version)
) partition by range (batch);
-- Lets a reader of the latest events begin near the end, and one that comes back to old ones look at
-- so many transactions at a time. Events arrive in the order of both, nearly, so a summary of each
-- stretch of pages will do: as good as nothing to keep, where a tree of the transactions would cost a
-- batch a tenth of its log.
create index event_age on helix.event using brin (at, xid) with (autosummarize = on);

-- The chain's byte encoding, fixed for ever: the hash before, the time as PostgreSQL sends it, then
-- sixteen fields with `>` between them, texts behind their length in bytes, nulls empty (of detail,
-- the length is empty too). One concat_ws and not forty functions joined by ||: PostgreSQL prepares
-- each function of an expression anew for every statement, and that was a tenth of a claim.
create function helix.event_hash(
  p_before bytea, p_batch bigint, p_version int, p_tenant text, p_from helix.state,
  p_to helix.state, p_at timestamptz, p_attempt smallint, p_epoch int, p_number bigint,
  p_actor text, p_reason helix.reason, p_detail text, p_late boolean, p_xid bigint
) returns bytea language sql stable parallel safe as $$
  select sha256(
    coalesce(p_before, ''::bytea) || timestamptz_send(p_at) || convert_to(concat_ws('>',
      p_batch, p_version, p_attempt, coalesce(p_epoch::text, ''), coalesce(p_number::text, ''),
      p_late, coalesce(p_from::text, ''), p_to, p_reason, p_xid, octet_length(p_tenant), p_tenant,
      octet_length(p_actor), p_actor, coalesce(octet_length(p_detail)::text, ''),
      coalesce(p_detail, '')), 'UTF8'))
$$;

-- A write with a token that is not the owner's. Kept with both names: who tried, who holds.
-- A zombie that hammers makes one row, with a count.
create table helix.refusal (
  batch        bigint not null,
  epoch        integer not null,
  number       bigint not null,
  operation    text not null check (operation in ('start', 'renew', 'settle', 'release')),
  tenant       helix.tenant_name not null,
  worker       text not null,       -- who presented the stale token
  owner        text,                -- who holds the batch now; null: nobody
  owner_number bigint,
  state        helix.state,         -- where the batch stood
  why          text not null,
  times        integer not null default 1,
  first_at     timestamptz not null default clock_timestamp(),
  last_at      timestamptz not null default clock_timestamp(),
  primary key (batch, number, epoch, operation)
);

-- Decisions that changed no state: duplicates, conflicts, refused submissions, erasures, settings.
-- *new* needs no row here, it is the first event.
create table helix.decision (
  id       bigint generated always as identity primary key,
  at       timestamptz not null default clock_timestamp(),
  tenant   helix.tenant_name not null,
  queue    text not null,
  kind     text not null check (kind in ('duplicate', 'conflict', 'refused', 'erased', 'setting')),
  batch    bigint,
  actor    text not null,
  detail   helix.long_text
);
-- A batch's latest decisions: one that was submitted a million times has a million.
create index decision_batch on helix.decision (batch, id) where batch is not null;
-- For retention: what answered submissions, a queue's oldest first. Erasures and settings are kept for
-- ever; `check` knows by them that a payload is gone for a reason.
create index decision_age on helix.decision (tenant, queue, at)
  where kind in ('duplicate', 'conflict', 'refused');

-- What remains of a batch after retention: its last state and the head of its chain.
create table helix.retired (
  batch       bigint primary key,
  tenant      helix.tenant_name not null,
  state       helix.state not null,
  version     integer not null,
  attempt     smallint not null,
  hash        bytea not null,
  xid         bigint not null,     -- of its last event: who had read so far missed nothing
  finished_at timestamptz not null,
  retired_at  timestamptz not null default clock_timestamp()
);
-- For a reader of changes that comes back, and must be told that some are gone: it asks for what went
-- since it was here, and rows arrive in that order.
create index retired_age on helix.retired using brin (retired_at) with (autosummarize = on);
