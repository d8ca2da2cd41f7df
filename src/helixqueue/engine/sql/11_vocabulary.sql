-- The vocabulary of the ledger: states, the arrows between them, and the reasons for taking one.

create schema helix;
comment on schema helix is 'HelixQueue: every piece of work takes effect once, and you can prove it.';

create type helix.state as enum (
  'PENDING',    -- (new), ASSIGNED, RUNNING, FAILED -> PENDING: waits for a worker
  'ASSIGNED',   -- PENDING -> ASSIGNED: leased to a worker that has not started
  'RUNNING',    -- ASSIGNED -> RUNNING: leased to a worker that has started
  'COMPLETED',  -- RUNNING -> COMPLETED: took effect; final
  'FAILED',     -- ASSIGNED, RUNNING -> FAILED: out of attempts or permanent; an operator may retry
  'CANCELLED'   -- PENDING, ASSIGNED, RUNNING -> CANCELLED: withdrawn; final
);

create type helix.reason as enum (
  'submitted',  -- (new) -> PENDING
  'claimed',    -- PENDING -> ASSIGNED
  'started',    -- ASSIGNED -> RUNNING
  'completed',  -- RUNNING -> COMPLETED
  'failed',     -- ASSIGNED, RUNNING -> FAILED, or -> PENDING while attempts are left
  'released',   -- ASSIGNED, RUNNING -> PENDING: returned by its worker, costs no attempt
  'lost',       -- ASSIGNED, RUNNING -> PENDING or FAILED: the lease expired and was reaped
  'recovered',  -- ASSIGNED, RUNNING -> PENDING or FAILED: `helixq recover` ended every lease
  'retried',    -- FAILED -> PENDING: an operator's decision
  'cancelled',  -- PENDING, ASSIGNED, RUNNING -> CANCELLED: by an operator or application
  'expired'     -- PENDING -> CANCELLED: not started before `expires_at`
);

-- Why a PENDING batch is not claimable.
create type helix.cause as enum (
  'delay',   -- run_at is in the future, or the back-off after a failed attempt has not passed
  'limit',   -- its limit key has as many live leases as the queue allows
  'paused',  -- its queue is paused
  'held'     -- its run was stopped before it began; a retry of the run continues
);

-- Rules of single values that will never change. They are domains and not CHECK constraints because
-- PostgreSQL prepares the CHECKs of a table again for every statement that writes to it (a tenth of
-- the work for one batch), but caches those of a domain.
create domain helix.tenant_name as text check (value <> '');
create domain helix.key as bytea check (octet_length(value) = 33);  -- version byte + SHA-256
create domain helix.sha256 as bytea check (octet_length(value) = 32);
-- Canonical parts joined by U+001F, which no profile allows inside a part. Every profile trims blanks
-- and refuses zero-width characters, so the database refuses them as well.
create domain helix.identity_text as text
  check (value is nfc normalized and octet_length(value) between 1 and 4096
         -- The regular expression costs more than the rest; one part in ASCII without a blank does not
         -- need it. It names every blank: what [[:space:]] matches depends on the database's locale.
         and (octet_length(value) = length(value) and strpos(value, ' ') = 0 and strpos(value, E'\x1f') = 0
              and btrim(value, E'\t\n\x0b\f\r') = value
              or value !~ ('(^|\x1f)[\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]'
                           '|[\t-\r \u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000](\x1f|$)'
                           '|[\u200b-\u200f\u2060\ufeff]')));
create domain helix.revision_text as text check (value is nfc normalized and octet_length(value) <= 255);
create domain helix.limit_key as text check (octet_length(value) between 1 and 255);
create domain helix.short_text as text check (octet_length(value) <= 255);
create domain helix.long_text as text check (octet_length(value) <= 65536);
-- json and not jsonb: it keeps the bytes from which the fingerprint was made.
create domain helix.document as json check (octet_length(value::text) <= 1048576);
create domain helix.priority as smallint check (value between 0 and 9);  -- 0 is the most urgent
-- Times that every driver can represent: year 9999 at -12:00 is year 10000 in UTC, which Python
-- cannot read, so one such row would make every list that contains it fail.
create domain helix.moment as timestamptz check (value between '1970-01-01 UTC' and '9000-01-01 UTC');

create domain helix.lease_seconds as real check (value between 0.05 and 86400);

-- A place for output files. No part of it is empty, `.` or `..`, and it does not end with a slash.
create function helix.is_destination(p_uri text) returns boolean
language sql immutable parallel safe as $$
  select octet_length(p_uri) <= 500
     and p_uri ~ E'^(file:///|s3://|memory://)[^%?#\\x01-\\x20\\x7f]*[^/%?#\\x01-\\x20\\x7f]$'
     and substr(p_uri, strpos(p_uri, '://') + 3) !~ '//|(^|/)[.][.]?(/|$)|(^|/)[.]helix(/|$)'
$$;

-- The path of an output file, relative to its attempt's directory.
create function helix.is_output_path(p_path text) returns boolean
language sql immutable parallel safe as $$
  select p_path is nfc normalized and octet_length(p_path) between 1 and 900
     and p_path !~ E'[\\x01-\\x1f\\x7f]|^/|/$|//|(^|/)[.][.]?(/|$)'
$$;

-- The legal arrows, for readers and for `helixq check`. The row trigger of helix.work repeats them as
-- an expression (31_record.sql), because a trigger condition cannot read a table.
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

-- The answer to a call with a token, one per batch.
create type helix.answer as (
  batch    bigint,
  answer   text,          -- ok | repeat | refused | busy | illegal
  owner    text,          -- refused: the worker that holds the batch now, if any
  state    helix.state,   -- of the batch after this call
  late     boolean,       -- ok, although the lease had expired (no other worker had claimed the batch)
  mismatch boolean        -- repeat, but with another result than the one that was stored
);

-- The dimensions of an array; null for an array that is null, unlike array_dims not for an empty one.
create function helix.shape(p_array anyarray) returns text
language sql immutable parallel safe as $$
  select case when p_array is not null then coalesce(array_dims(p_array), '[]') end
$$;

-- Arguments of one call are parallel arrays: one dimension, first index 1, equal lengths; an array that
-- is null means all nulls. Callers pass the `shape` of each. Anything else is refused, because
-- PostgreSQL would pad or shift the shorter array without an error.
create function helix.demand_parallel(p_count integer, variadic p_shapes text[]) returns void
language plpgsql immutable as $$
begin
  if p_count is null
     or (case when p_count > 0 then format('[1:%s]', p_count) else '[]' end) <> any (p_shapes)
  then
    raise exception using errcode = 'array_subscript_error',
      message = format('expected arrays of one dimension with indexes 1 to %s, got %s', p_count, p_shapes),
      hint = 'Pass one element per row in every array, or null for the whole array.';
  end if;
end
$$;
