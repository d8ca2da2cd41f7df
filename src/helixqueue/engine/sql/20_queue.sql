-- Queues, the requirement classes of their work, and the lanes in which it waits.

-- Keys of the payload fingerprint. The two columns are the RFC 2104 pads of one random key, so
-- that HMAC-SHA256 is two calls of sha256() and the key never leaves the database.
create table helix.secret (
  id         smallint primary key,
  inner_pad  bytea not null check (octet_length(inner_pad) = 64),
  outer_pad  bytea not null check (octet_length(outer_pad) = 64),
  created_at timestamptz not null default clock_timestamp()
);

-- A new key: 64 bytes of the server's strong random source, as its two pads.
create function helix.new_secret_pads(out inner_pad bytea, out outer_pad bytea)
language sql volatile as $$
  select string_agg(set_byte(E'\\x00'::bytea, 0, get_byte(k.key, n) # 54), ''::bytea order by n),
         string_agg(set_byte(E'\\x00'::bytea, 0, get_byte(k.key, n) # 92), ''::bytea order by n)
  from (select uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
               || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) as key
        offset 0) k
  cross join generate_series(0, 63) n
$$;
insert into helix.secret (id, inner_pad, outer_pad)
select 1, pads.inner_pad, pads.outer_pad from helix.new_secret_pads() pads;

-- A queue belongs to a tenant; workers claim by name across the tenants they are bound to.
create table helix.queue (
  id                integer generated always as identity primary key,  -- what hot tables carry
  tenant            text not null check (tenant ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
  name              text not null check (name ~ '^[a-z0-9][a-z0-9_.-]{0,62}$'),
  profile           text not null default 'text-v1' check (profile in ('text-v1', 'lab-id-v1')),
  lease_seconds     real not null default 120 check (lease_seconds between 0.05 and 86400),
  max_attempts      smallint not null default 5 check (max_attempts between 1 and 1000),
  -- A failed try waits backoff * 2^(attempt-1) seconds, at most backoff_max, with jitter.
  backoff_seconds     real not null default 2 check (backoff_seconds between 0 and 86400),
  backoff_max_seconds real not null default 600 check (backoff_max_seconds between 0 and 604800),
  -- How many live leases one limit_key may have.
  key_limit         integer not null default 1 check (key_limit between 1 and 100000),
  -- Work without identity cannot be recognised when it is repeated, so it is refused by default.
  unknown           text not null default 'refuse' check (unknown in ('refuse', 'accept')),
  -- Texts that labs and forms write where an identity is missing: they count as no identity.
  placeholders      text[] not null default '{unknown,none,"null",n/a}'
    check (cardinality(placeholders) <= 64 and array_position(placeholders, null) is null
           and octet_length(array_to_string(placeholders, '')) <= 4096),
  -- What a new source does to a batch that is FAILED: nothing, or one more retry (45_source.sql).
  resubmit_failed   text not null default 'answer' check (resubmit_failed in ('answer', 'retry')),
  paused            boolean not null default false,  -- workers get nothing
  closed            boolean not null default false,  -- new work is refused
  class             integer not null default 0,      -- default requirement_class
  -- JSON Schemas (2020-12) of payloads and results, so that a client in any language and the
  -- service check the same. The database does not: what it promises holds for any JSON. Bounded,
  -- because every client reads them; {} accepts anything.
  payload_schema    jsonb check (octet_length(payload_schema::text) <= 65536),
  result_schema     jsonb check (octet_length(result_schema::text) <= 65536),
  -- How long finished batches stay after their end, by state; 0: without limit. Their keys stay anyway.
  keep_completed_seconds double precision not null default 0
    check (keep_completed_seconds between 0 and 1e10),
  keep_failed_seconds    double precision not null default 0
    check (keep_failed_seconds between 0 and 1e10),
  keep_cancelled_seconds double precision not null default 0
    check (keep_cancelled_seconds between 0 and 1e10),
  -- How long decisions about submissions that created no batch are kept: duplicates, conflicts, refusals.
  keep_decisions_seconds double precision not null default 7776000  -- 90 days
    check (keep_decisions_seconds between 0 and 1e10),
  -- Claimable batches that wait for longer are reported (79_reconcile.sql).
  stalled_after_seconds  double precision not null default 900
    check (stalled_after_seconds between 1 and 1e10),
  -- Where output files go (62_output.sql), below a root that an operator set; empty: the queue has none.
  outputs           text not null default '' check (outputs = '' or helix.is_destination(outputs)),
  -- What retention of a batch does with its published files.
  outputs_after     text not null default 'keep' check (outputs_after in ('keep', 'remove')),
  -- What happens to new work that no worker of the last day could do (56_misfit.sql).
  misfit            text not null default 'wait' check (misfit in ('wait', 'refuse')),
  created_at        timestamptz not null default clock_timestamp(),
  updated_at        timestamptz not null default clock_timestamp(),
  -- The greatest place of a step that retention has removed: readers before it have missed something.
  lost_position     bigint not null default 0,
  lost_batch        bigint not null default 0,
  lost_version      integer not null default 0,
  unique (tenant, name)
);

-- Requirements are interned: a claim compares a handful of classes with what a worker has free,
-- never a million batches. Classes carry no tenant's data and are shared.
create table helix.requirement_class (
  id          integer generated by default as identity primary key,
  requires    jsonb not null check (octet_length(requires::text) <= 2048),
  gpus        integer not null default 0 check (gpus >= 0),
  gpu_vram_gb real    not null default 0,  -- least memory of each device, not divisible
  cpu_cores   real    not null default 0,
  ram_gb      real    not null default 0,
  disk_gb     real    not null default 0,
  labels      jsonb   not null default '{}',
  gpu_model   text[]  not null default '{}',  -- globs of which one must match the model of each device; none: any model
  gpu_cc_min  real    not null default 0,     -- least compute capability of each device
  -- 0, or another number in a second row, which a transaction made while another one was making the first: no
  -- submission waits for the end of another caller's transaction.
  twin        integer not null default 0,
  unique (requires, twin)
);
-- Class 0 requires nothing and fits every worker.
insert into helix.requirement_class (id, requires) values (0, '{}');

-- A lane is the order in which batches of one (queue name, class, priority) are claimed. Lanes cross
-- tenants; inside a lane, tenants take turns (22_work.sql).
create table helix.lane (
  id        integer generated always as identity primary key,
  queue     text not null,
  class     integer not null,
  priority  smallint not null,
  -- The requirements of its class, copied because a class never changes: a claim compares its lanes
  -- with the worker's free resources, and looking each class up took a seventh of a claim.
  gpus        integer not null,
  gpu_vram_gb real    not null,  -- infinite if a model or compute capability is required: then devices are compared (55_device.sql)
  cpu_cores   real    not null,
  ram_gb      real    not null,
  disk_gb     real    not null,
  labels      jsonb   not null,
  -- The turn that claims have reached, written at most once a second: a new arrival is placed here and
  -- not after the backlog of a tenant that submitted earlier.
  served    bigint not null default 0,
  served_at timestamptz not null default '-infinity',
  -- One tenant must not slow the claims of others with thousands of different requirements: a tenant may
  -- cause only so many active lanes per queue (`lane_of`), and claims skip idle lanes.
  made_for  text not null,               -- the tenant whose submission created it
  idle      boolean not null default false,
  -- The queues with work in it since it was idle, so that claims share out among tenants (54_tenant_share.sql).
  -- One more than can be shared out among says that there are too many.
  queues    integer[] not null default '{}' check (cardinality(queues) <= 33),
  used_at   timestamptz not null default clock_timestamp(),
  twin      integer not null default 0,  -- as of a class
  unique (queue, class, priority, twin)
);
create index lane_active on helix.lane (queue) where not idle;
