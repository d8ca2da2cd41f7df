-- Where every batch stands: exactly one row in ready, waiting, active or outcome.
-- All four have the same columns, and some of their own, because the trigger `record` (07_record.sql)
-- turns each arrival into a ledger event, whichever table it arrives in:
--   batch, tenant, state, version   what moved, and the how-manieth step of its life this is
--   attempt, epoch, number          which try, under which token (nulls before the first)
--   actor, reason, detail, late     who did it and why
-- There are no foreign keys: on hot rows they cost share locks and multixacts. Here and in the ledger
-- columns stand by their width, the widest first and texts last: PostgreSQL aligns each by itself, and
-- in another order a lease would be a fifth longer for its padding.

-- A lane is the order in which batches of one (queue, class, priority) are claimed. Lanes are few,
-- are never deleted, and cross tenants.
create table helix.lane (
  id        integer generated always as identity primary key,
  queue     text not null,
  class     integer not null,
  priority  smallint not null,
  -- What its class asks for, copied here because a class never changes: a claim compares its lanes
  -- with what a worker has free, and looking each class up was a seventh of it.
  gpus        integer not null,
  gpu_vram_gb real    not null,
  cpu_cores   real    not null,
  ram_gb      real    not null,
  disk_gb     real    not null,
  labels      jsonb   not null,
  -- The turn that claims have reached, written at most once a second: a new arrival is placed
  -- here, not behind the backlog of a tenant that came earlier.
  served    bigint not null default 0,
  served_at timestamptz not null default '-infinity',
  unique (queue, class, priority)
);

-- PENDING and claimable. Order inside a lane is (turn, batch). A tenant's n-th waiting batch takes
-- the n-th turn after the one being served, so tenants alternate however much one of them submits
-- (start-time fair queuing), and a claim stays one index range scan.
create table helix.ready (
  batch      bigint not null,
  turn       bigint not null,
  lane       integer not null,
  version    integer not null,
  state      helix.state not null default 'PENDING' check (state = 'PENDING'),
  reason     helix.reason not null,
  attempt    smallint not null,
  late       boolean not null default false,
  moved      boolean not null default false, -- it stood in waiting before: no step
  epoch      integer,
  number     bigint,
  expires_at timestamptz,
  tenant     helix.tenant_name not null,
  actor      text not null,
  limit_key  text,
  detail     text,
  -- The claim order, and nothing else leads to a claim.
  primary key (lane, turn, batch)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
-- Prevents a batch from being claimable twice; cancel and pause find their rows by it.
create unique index ready_batch on helix.ready (batch);
-- Finds the last turn a tenant has taken in a lane, to place its next batch behind it.
create index ready_turn_of_tenant on helix.ready (lane, tenant, turn);
-- Finds what expired before anybody began.
create index ready_expiry on helix.ready (expires_at) where expires_at is not null;

-- PENDING but not claimable; rows leave when their cause is gone. Blocked work never sits in ready:
-- there every claim would have to step over it.
create table helix.waiting (
  batch      bigint primary key,
  lane       integer not null,
  version    integer not null,
  state      helix.state not null default 'PENDING' check (state = 'PENDING'),
  reason     helix.reason not null,
  -- What waits for a limit key has one, or it would wait for ever.
  cause      helix.cause not null check (cause <> 'limit' or limit_key is not null),
  attempt    smallint not null,
  late       boolean not null default false,
  moved      boolean not null default false, -- it stood in ready before: no step
  epoch      integer,
  number     bigint,
  due        timestamptz check ((cause = 'delay') = (due is not null)),
  expires_at timestamptz,
  tenant     helix.tenant_name not null,
  queue      text not null,
  actor      text not null,
  limit_key  text,
  detail     text
);
-- Counts the delayed work of a queue; that of the other causes is counted in their indexes.
create index waiting_delay on helix.waiting (tenant, queue) where cause = 'delay';
create index waiting_due on helix.waiting (due) where cause = 'delay';
create index waiting_limit on helix.waiting (tenant, queue, limit_key, batch) where cause = 'limit';
create index waiting_paused on helix.waiting (tenant, queue, batch) where cause = 'paused';
create index waiting_expiry on helix.waiting (expires_at) where expires_at is not null;

-- ASSIGNED and RUNNING. The primary key is G2: one row a batch, so one owner a batch.
-- fillfactor leaves room for the start and the renewals to stay on their page.
create table helix.active (
  batch         bigint primary key,
  number        bigint not null,
  nonce         bigint not null,      -- the secret part of the token; never in an event or a log
  turn          bigint not null,      -- where it stood in its lane: the hint for the next claim
  deadline      timestamptz not null,
  claimed_at    timestamptz not null default clock_timestamp(),
  lane          integer not null,
  version       integer not null,
  state         helix.state not null check (state in ('ASSIGNED', 'RUNNING')),
  reason        helix.reason not null,
  epoch         integer not null,
  lease_seconds real not null,
  attempt       smallint not null,
  late          boolean not null default false,
  request       uuid not null,        -- the claim call that made this lease
  tenant        helix.tenant_name not null,
  queue         text not null,
  actor         text not null,
  worker        text not null,
  limit_key     text,
  detail        text
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
-- Finds leases past their deadline.
create index active_deadline on helix.active (deadline);

-- How a batch ended, as a number. Comparing enums is not leakproof: under row-level security, states
-- cannot be looked up in an index, and whoever wanted the failed ones would read all that is finished.
create function helix.ending(p_state helix.state) returns smallint
language sql immutable parallel safe as $$
  select case p_state when 'COMPLETED' then 1 when 'FAILED' then 2 when 'CANCELLED' then 3 end::smallint
$$;

-- COMPLETED, FAILED, CANCELLED.
create table helix.outcome (
  batch       bigint primary key,
  finished_at timestamptz not null default clock_timestamp(),
  number      bigint,
  lane        integer not null,
  version     integer not null,
  state       helix.state not null,
  reason      helix.reason not null,
  epoch       integer,
  attempt     smallint not null,
  -- As helix.ending says. Neither generated nor checked by that function: PostgreSQL would read the
  -- function anew for every statement.
  ending      smallint not null check (case state when 'COMPLETED' then ending = 1
                                                  when 'FAILED' then ending = 2
                                                  when 'CANCELLED' then ending = 3 else false end),
  late        boolean not null default false,
  tenant      helix.tenant_name not null,
  queue       text not null,
  actor       text not null,
  failure     helix.short_text,   -- class of a failure, null otherwise
  detail      helix.long_text,
  result      helix.document
);
-- Retention walks finished batches from the oldest, people read them from the newest. In the whole order
-- of a list: PostgreSQL sorts what is but nearly sorted if it believes that there is little of it.
create index outcome_age on helix.outcome (tenant, queue, ending, finished_at, batch);

-- How many leases each limit key has now; kept by trigger, locked by claim.
create table helix.key_limit (
  tenant helix.tenant_name not null,
  queue  text not null,
  key    text not null,
  held   integer not null default 0 check (held >= 0),
  primary key (tenant, queue, key)
) with (fillfactor = 50);

-- The first part of every token. A failover that lost the tail of the log sets sequences back, so
-- numbers alone could repeat; the epoch rises whenever the server's timeline is not the one noted
-- here, and with `helixq recover`.
create table helix.epoch (
  number     integer primary key,
  timeline   text not null,
  reason     text not null,
  started_at timestamptz not null default clock_timestamp()
);
create sequence helix.lease_number;

-- Claim calls by their request id: the repeat of a call whose answer was lost meets its row here,
-- and waits for it while the first is still under way.
create table helix.request (
  id     uuid primary key,
  worker text not null,
  at     timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Duties that any claim does by the way, and when each is due next, so that many callers do not all
-- do it.
create table helix.pulse (
  duty    text primary key,
  every   interval not null,
  next_at timestamptz not null default '-infinity'
) with (fillfactor = 50);
insert into helix.pulse (duty, every) values
  ('reap',    '250 ms'),  -- leases past their deadline; a quarter of the shortest sensible lease
  ('promote', '250 ms'),  -- waiting batches whose time has come
  ('expire',  '2 s'),     -- batches nobody began in time
  ('sweep',   '60 s');    -- old request ids, the next partition of the ledger

-- Workers as they last introduced themselves. Bookkeeping for people; no rule rests on it.
create table helix.worker (
  role       name not null,
  -- In the order of bytes, so that the names of one tenant (lab/gpu-1) stand together in the key.
  name       text collate "C" not null check (octet_length(name) between 1 and 255),
  free       jsonb not null,
  first_seen timestamptz not null default clock_timestamp(),
  last_seen  timestamptz not null default clock_timestamp(),
  primary key (role, name)
) with (fillfactor = 50);

-- Workers with nothing to do, by the queue they wait for: a submission tells them (16_wake.sql), and
-- tells nobody while the queue is busy. Only the engine reads it.
create table helix.waiter (
  queue  text not null,
  login  name not null,          -- nobody ends the waiting of another role's worker
  worker text not null check (octet_length(worker) between 1 and 255),
  until  timestamptz not null,   -- who died waiting is not told for long
  primary key (queue, login, worker)
) with (fillfactor = 50);

-- Where each batch stands, in one place for reading.
create view helix.standing with (security_invoker = true) as
  select batch, tenant, state, version, attempt, 'ready' as place from helix.ready
  union all
  select batch, tenant, state, version, attempt, 'waiting' from helix.waiting
  union all
  select batch, tenant, state, version, attempt, 'active' from helix.active
  union all
  select batch, tenant, state, version, attempt, 'outcome' from helix.outcome;
