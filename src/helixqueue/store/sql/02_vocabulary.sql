-- The words of the ledger: states, the arrows between them, and the reasons for taking one.

create schema helix;
comment on schema helix is 'HelixQueue: every piece of work takes effect once, and you can prove it.';

create type helix.state as enum (
  'PENDING',    -- (new), ASSIGNED, RUNNING, FAILED -> PENDING: waits for a worker
  'ASSIGNED',   -- PENDING -> ASSIGNED: leased to a worker that has not begun
  'RUNNING',    -- ASSIGNED -> RUNNING: leased to a worker that has begun
  'COMPLETED',  -- RUNNING -> COMPLETED: took effect; final
  'FAILED',     -- ASSIGNED, RUNNING -> FAILED: out of tries or permanent; an operator may retry
  'CANCELLED'   -- PENDING, ASSIGNED, RUNNING -> CANCELLED: given up; final
);

create type helix.reason as enum (
  'submitted',  -- (new) -> PENDING
  'claimed',    -- PENDING -> ASSIGNED
  'started',    -- ASSIGNED -> RUNNING
  'completed',  -- RUNNING -> COMPLETED
  'failed',     -- ASSIGNED, RUNNING -> FAILED, or -> PENDING while tries are left
  'released',   -- ASSIGNED, RUNNING -> PENDING: given back by its worker, costs no attempt
  'lost',       -- ASSIGNED, RUNNING -> PENDING or FAILED: the lease ran out and was reaped
  'recovered',  -- ASSIGNED, RUNNING -> PENDING or FAILED: `helixq recover` ended every lease
  'retried',    -- FAILED -> PENDING: an operator's decision
  'cancelled',  -- PENDING, ASSIGNED, RUNNING -> CANCELLED: a person's decision
  'expired'     -- PENDING -> CANCELLED: nobody began before `expires_at`
);

-- Why a PENDING batch is not claimable.
create type helix.cause as enum (
  'delay',   -- its time has not come: run_at, or the back-off after a failed try
  'limit',   -- its limit key has as many live leases as the queue allows
  'paused'   -- its queue is paused
);

-- What a value must be like, where that will never change. As domains and not as CHECKs of the tables:
-- PostgreSQL reads a table's CHECKs anew for every statement that writes to it, and for one batch
-- that was a tenth of all work; a domain's it keeps.
create domain helix.tenant_name as text check (value <> '');
create domain helix.key as bytea check (octet_length(value) = 33);  -- version byte + SHA-256
-- Canonical parts joined by U+001F, which no profile lets into an identity.
create domain helix.identity_text as text
  check (value is nfc normalized and octet_length(value) between 1 and 4096);
create domain helix.limit_key as text check (octet_length(value) between 1 and 255);
create domain helix.short_text as text check (octet_length(value) <= 255);
create domain helix.long_text as text check (octet_length(value) <= 65536);
-- json and not jsonb: it keeps the very bytes that a fingerprint was made of.
create domain helix.document as json check (octet_length(value::text) <= 1048576);
create domain helix.priority as smallint check (value between 0 and 9);  -- 0 goes first

-- The legal arrows. The trigger `record` joins every arrival against this table, set by set;
-- a row-level check cost a third of the throughput.
create table helix.arrow (
  from_state helix.state,          -- null: the batch did not exist
  to_state   helix.state not null,
  unique nulls not distinct (from_state, to_state)
);

insert into helix.arrow (from_state, to_state) values
  (null,       'PENDING'),
  ('PENDING',  'ASSIGNED'),
  ('ASSIGNED', 'RUNNING'),
  ('RUNNING',  'COMPLETED'),
  ('ASSIGNED', 'PENDING'),
  ('RUNNING',  'PENDING'),
  ('ASSIGNED', 'FAILED'),
  ('RUNNING',  'FAILED'),
  ('FAILED',   'PENDING'),
  ('PENDING',  'CANCELLED'),
  ('ASSIGNED', 'CANCELLED'),
  ('RUNNING',  'CANCELLED');
