-- Work: the state of every batch, one row per batch from submission to retention.
--
-- Updates stay on their page (HOT) only while they change no column that an index names in its key or
-- predicate. Settling and renewing happen to every batch, so no index may name a column that they
-- change: state, version, version_before, entry, before, came_from, deadline, changed_at, actor, reason,
-- late, content, allocated.
-- There are no foreign keys: on hot rows they cost share locks and multixacts.
-- Columns that are never null stand first, rarely set ones last: PostgreSQL reads a column faster while no null
-- and no text stands before it.
create table helix.work (
  batch         bigint primary key,
  turn          bigint not null,       -- its position in its lane while claimable
  entry         bigint not null,       -- ledger entry of its last step
  changed_at    timestamptz not null,  -- time of the last step
  queue         integer not null,
  lane          integer not null,
  bytes         integer not null,      -- length of the payload; limits a claim (payload_prefix)
  version       integer not null,      -- number of the last step, starting at 1
  state         helix.state not null,
  reason        helix.reason not null,
  attempt       smallint not null,
  pending       boolean not null,      -- claimable: exactly these rows are in the claim indexes
  step          boolean not null,      -- false: this update was no step (a renewal, a move)
  late          boolean not null default false,  -- the last step came after the lease's deadline
  -- The step before; null: the last step is the first.
  came_from     helix.state,           -- its state
  version_before integer,              -- its version
  before        bigint,                -- its ledger entry
  -- The last lease.
  number        bigint,                -- the ledger entry of its claim
  nonce         bigint,                -- the secret part of its token (see lease_nonce)
  deadline      timestamptz,
  epoch         integer,               -- of its token
  lease_seconds real,                  -- what a renewal adds
  actor         text not null,         -- actor of the last step; the lease holder while leased
  cause         helix.cause,           -- why it is PENDING but not claimable
  due           timestamptz,           -- when a delayed batch becomes claimable
  expires_at    timestamptz,           -- not started before this time, it is cancelled
  limit_key     text,
  content       bytea,                 -- SHA-256 of the texts of the last step (helix.result), if any
  allocated     bigint,                -- number of the last lease that held something of a host (23_device.sql)
  run           bigint                 -- of its batch
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05,
        -- A vacuum that leaves the dead index entries of claimed batches makes the next claim slow.
        vacuum_index_cleanup = on);
-- The claim order. A tenant's n-th waiting batch takes the n-th turn after the one being served, so
-- tenants alternate however much one of them submits (start-time fair queuing), and a claim is one range.
create index work_claim on helix.work (lane, turn, batch) where pending;
-- The same for one queue: claims that are bound to tenants must not step over the backlog of others.
-- It also finds the last turn of a queue, so that its next batch follows it.
create index work_claim_of_queue on helix.work (queue, lane, turn, batch) where pending;
-- PENDING batches that are not claimable. They are not in the claim indexes: a claim would have to step
-- over them.
create index work_due on helix.work (due) where cause = 'delay';
create index work_blocked on helix.work (queue, cause, batch) where cause is not null;
create index work_limit on helix.work (queue, limit_key, batch) where cause = 'limit';
-- Finds what was not started in time.
create index work_expiry on helix.work (expires_at)
  where expires_at is not null and (pending or cause is not null);

-- The texts of steps: results, failure classes, details. Only steps with a text have a row;
-- the ledger entry covers it by its hash.
create table helix.result (
  batch   bigint not null,
  version integer not null,        -- of the step
  queue   integer not null,
  failure helix.short_text,        -- class of a failure
  detail  helix.long_text,         -- for readers
  result  helix.document,
  primary key (batch, version)
);

-- The hash of those texts, each after its length in bytes; null if there are none.
create function helix.content_hash(p_failure text, p_detail text, p_result text) returns bytea
language sql stable parallel safe as $$
  select case when p_failure is not null or p_detail is not null or p_result is not null then
    sha256(convert_to(concat_ws('>',
      coalesce(octet_length(p_failure)::text, ''), coalesce(p_failure, ''),
      coalesce(octet_length(p_detail)::text, ''), coalesce(p_detail, ''),
      coalesce(octet_length(p_result)::text, ''), coalesce(p_result, '')), 'UTF8')) end
$$;

-- How a batch ended, as a number: comparing enums is not leakproof, so under row-level security an index
-- on them is not used.
create function helix.ending(p_state helix.state) returns smallint
language sql immutable parallel safe as $$
  select case p_state when 'COMPLETED' then 1 when 'FAILED' then 2 when 'CANCELLED' then 3 end::smallint
$$;

-- Finished batches in the order of their end: retention reads it from the oldest, lists from the newest.
-- Written by the trigger `record_step`; a retry and retention remove rows.
create table helix.ended (
  at     timestamptz not null,     -- work.changed_at
  batch  bigint not null,
  queue  integer not null,
  ending smallint not null,
  primary key (queue, ending, at, batch)
);

-- Claim calls by their request id. The repeat of a call whose answer was lost finds its leases here.
-- `due` is when the reaper looks at the leases of a call: a lower bound of their deadlines that renewals
-- do not touch, and null when no lease is left.
create table helix.request (
  id        uuid primary key,
  number    bigint not null,       -- of its leases: the ledger entry of the claim
  due       timestamptz,
  at        timestamptz not null default clock_timestamp(),
  unsettled integer not null,      -- upper bound of its live leases; see helix.count_settled
  worker    text not null
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index request_due on helix.request (due, number) where due is not null;
create index request_number on helix.request (number);

-- How many leases each limit key has now; counted by the trigger `record_step`, made and locked by claim. A key without
-- a lease may have no row.
create table helix.key_limit (
  queue integer not null,
  held  integer not null default 0 check (held >= 0),
  key   text not null,
  primary key (queue, key)
) with (fillfactor = 50);

-- One sequence numbers ledger entries, and thereby leases.
create sequence helix.entry_id;

-- Workers as they last reported, one row per tenant that each serves. For display only; no rule depends on it.
create table helix.worker (
  -- `*`: it serves every tenant. In byte order, so that the rows of one tenant are adjacent in the key.
  tenant     text collate "C" not null check (tenant <> ''),
  name       text collate "C" not null check (octet_length(name) between 1 and 255),
  role       name not null,
  shared     boolean not null,  -- it serves other tenants as well: the report is not for this one alone
  free       jsonb not null,
  first_seen timestamptz not null default clock_timestamp(),
  last_seen  timestamptz not null default clock_timestamp(),
  ended_at   timestamptz,       -- null: it has not reported its end
  primary key (tenant, name, role)
) with (fillfactor = 50);

-- A worker reports every 15 seconds. Without two reports it is silent: killed, frozen, cut off, or its handler
-- keeps the interpreter busy.
create function helix.worker_status(p_worker helix.worker) returns text
language sql stable as $$
  select case when p_worker.ended_at is not null then 'ended'
              when p_worker.last_seen < clock_timestamp() - interval '30 s' then 'silent' else 'alive' end
$$;

-- Idle workers by the queue they wait for: a submission wakes them (52_wake.sql), and sends nothing while
-- the queue is busy.
create table helix.waiter (
  queue  text not null,
  login  name not null,          -- a role can only end the waiting of its own workers
  worker text not null check (octet_length(worker) between 1 and 255),
  tenants text[],                -- the tenants whose work it may claim; null: all
  channel text not null,         -- where it listens
  until  timestamptz not null,   -- a worker that died waiting is soon forgotten
  primary key (queue, login, worker)
) with (fillfactor = 50);
