-- Devices: what live leases hold of their hosts (decision 86). Written only by claims of workers that own devices
-- (55_device.sql), so that other workers pay nothing.

-- A host of workers that own devices. Claims of one host lock its row and run one after the other: its cores and memory
-- are a sum over its leases. It has no tenant: its workers may serve several.
create table helix.host (
  name           text primary key check (octet_length(name) between 1 and 255),
  withdrawn      jsonb not null default '{}',  -- devices that an operator withdrew, with the reason
  -- Wide work that waits for this host: its lane and queue, and since when.
  reserved_lane  integer,
  reserved_queue integer,
  reserved_at    timestamptz not null default '-infinity'  -- of the last reservation, also after it was used
);

-- One row per device that a lease holds, and one row without a device for its cores and memory. A row stays after a
-- lease that did not end by its worker's word, until the process that had the device is known to be gone.
create table helix.allocation (
  id        bigint generated always as identity primary key,
  host      text not null,
  device    text check (octet_length(device) between 1 and 255),  -- its UUID; null: cores and memory
  batch     bigint not null,
  number    bigint not null,      -- of the lease
  queue     integer not null,
  cpu_cores real not null default 0,
  ram_gb    real not null default 0,
  disk_gb   real not null default 0,
  worker    text not null,
  process   text not null,        -- of the worker: boot, PID namespace, PID and start time
  at        timestamptz not null default clock_timestamp(),
  ended_at  timestamptz           -- the end of the lease, if the process may still be running
);
-- A device has one holder, of whatever tenant and login.
create unique index allocation_device on helix.allocation (host, device) where device is not null;
create index allocation_host on helix.allocation (host) where device is null;
create index allocation_batch on helix.allocation (batch);
