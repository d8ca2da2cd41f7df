-- Runs: many batches from one spec. Their calls are in 64_run.sql, their end in 64_run_end.sql.

-- One row per run. Its batches carry its id (21_batch.sql, 22_work.sql).
create table helix.run (
  id              bigint primary key,      -- 52 bits of the hash of tenant and key: it tells nothing of other tenants
  created_at      timestamptz not null default clock_timestamp(),
  queue           integer not null,
  datums          bigint not null check (datums >= 0),   -- how many the run has
  appended        bigint not null default 0 check (appended between 0 and datums),
  tries           smallint not null check (tries between 1 and 1000),  -- of each datum, in place of the queue's
  priority        helix.priority not null,
  state           text not null default 'expanding' check (state in (
    'expanding',   -- datums are appended; workers have begun
    'running',
    'stopping',    -- past its deadline: leases end, and what never ran is held back
    'cancelling',  -- its batches are being cancelled
    'reopening',   -- a retry: failed batches and those that never ran become claimable
    'done',        -- every batch completed, and every output file has its final name
    'failed',      -- the same, but batches failed or never ran
    'cancelled')),
  tenant          helix.tenant_name not null,
  name            text not null check (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
  key             helix.short_text not null,
  digest          helix.sha256 not null,   -- of the spool: all datums with their inputs
  requires        text,                    -- JSON of the resources; null: those of the queue
  -- Final names are destination + path; empty: the run has no outputs.
  egress          text not null,           -- as in the spec
  destination     text not null check (destination = '' or helix.is_destination(destination)),  -- where it is stored
  received        text not null check (octet_length(received) <= 1048576),  -- the spec as received
  spec            text not null check (octet_length(spec) <= 1048576),      -- and as run
  actor           text not null,
  timeout_seconds double precision check (timeout_seconds > 0),
  deadline        timestamptz,             -- since all datums are appended
  ended_at        timestamptz,
  problem         helix.long_text,         -- why it was stopped or cancelled
  -- The last batch that stopping, cancelling or reopening has reached; infinity: all of them.
  swept_at        timestamptz not null default '-infinity',
  swept_batch     bigint not null default 0,
  unique (tenant, key)
) with (fillfactor = 50);
create unique index run_name on helix.run (name, tenant);
create index run_list on helix.run (tenant, created_at, id);
-- What the duty `runs` looks at.
create index run_active on helix.run (id) where state in ('running', 'stopping', 'cancelling', 'reopening');

-- Rollup: the number of batches of a run by state, and of its failed attempts by class (label). A list of runs
-- would otherwise count millions of rows.
create table helix.run_count (
  run   bigint not null,
  queue integer not null,
  what  text not null,     -- a state, or `failure`
  label text not null default '',
  value bigint not null,
  primary key (run, what, label)
) with (fillfactor = 50);

-- Changes of these counts, written by the call that makes the step and folded by the duty `runs`: an update of the
-- count itself would make the settlements of a run wait for each other. A reader adds both tables.
create table helix.run_change (
  run   bigint not null,
  queue integer not null,
  what  text not null,
  label text not null default '',
  value bigint not null
);
create index run_change_run on helix.run_change (run);

-- Counts of a run that are current in the snapshot of the statement.
create function helix.run_counts(p_run bigint) returns table (what text, label text, value bigint)
language sql stable as $$
  select c.what, c.label, sum(c.value)::bigint
  from (select c.what, c.label, c.value from helix.run_count c where c.run = p_run
        union all
        select g.what, g.label, g.value from helix.run_change g where g.run = p_run) c
  group by c.what, c.label having sum(c.value) <> 0
$$;
