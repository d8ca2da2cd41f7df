-- Epochs and positions. An epoch is one history of the database: it ends when a failover or a restore may have
-- lost what came after it. A position is an epoch and a transaction in it, and gives everything that reads the
-- ledger one order: feeds, the change stream, seals, metrics and reconciliation.
--
-- Transaction numbers alone do not survive a restore into a server that has counted fewer transactions, nor a
-- failover that lost some: there the same numbers belong to other transactions. With the epoch in front, whatever
-- this server writes is after everything that was restored.

-- The epochs so far. An epoch is the first part of every token and the upper bits of every position.
create table helix.epoch (
  number     integer primary key check (number between 1 and 4194303),
  cluster    bigint not null,   -- the identifier that initdb gave the server's files
  timeline   text not null,
  reason     text not null,
  started_at timestamptz not null default clock_timestamp()
);

-- The identifier of the server's files. Immutable, so that a session asks once: files keep theirs while the server
-- runs.
create function helix.cluster_id() returns bigint
language plpgsql immutable as $$
begin
  return (select c.system_identifier from pg_control_system() c);
end
$$;

-- The timeline: the first eight digits of the WAL file's name. Asked each time, because sessions survive the
-- promotion of their server. Null on a standby, which has no insert position.
create function helix.timeline() returns text
language plpgsql stable as $$
begin
  if pg_is_in_recovery() then
    return null;
  end if;
  return substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
end
$$;

-- The next epoch: above the last one known, and above all that earlier timelines can have had. A
-- failover may lose epochs with the tail of the log, and counting on would repeat them.
create function helix.next_epoch(p_timeline text) returns integer
language sql stable as $$
  select greatest(coalesce(max(e.number), 0) + 1, (('x' || p_timeline)::bit(32)::int - 1) << 10)
  from helix.epoch e
$$;

-- The first epoch is here from the start. Inserted by the first call, inside a caller's long transaction, it
-- would make every other call wait.
insert into helix.epoch (number, cluster, timeline, reason)
values (helix.next_epoch(helix.timeline()), helix.cluster_id(), helix.timeline(), 'created');

-- The epoch of what this transaction writes. On another server or timeline than the recorded ones, a new epoch
-- begins before any id, token or position is handed out.
create function helix.current_epoch() returns integer
language plpgsql as $$
declare
  v_epoch    helix.epoch;
  v_timeline text := helix.timeline();   -- On a standby null: the insert below fails as read-only.
begin
  select * into v_epoch from helix.epoch e order by e.number desc limit 1;
  if v_epoch.timeline = v_timeline and v_epoch.cluster = helix.cluster_id() then
    return v_epoch.number;
  end if;
  -- Two callers may notice at once; the primary key lets one row in and both read it.
  insert into helix.epoch (number, cluster, timeline, reason)
  values (helix.next_epoch(v_timeline), helix.cluster_id(), v_timeline, 'server')
  on conflict do nothing;
  -- What the lost tail of the log had numbered must not be numbered again: clients may know those ids.
  if found and v_epoch.number is not null then
    perform setval(s.name, nextval(s.name) + 16777216)
    from unnest('{helix.batch_id,helix.entry_id,helix.fence_number,helix.ledger_event_id}'::regclass[]) as s (name);
  end if;
  select * into v_epoch from helix.epoch e order by e.number desc limit 1;
  return v_epoch.number;
end
$$;

-- The position of what this transaction writes.
create function helix.current_position() returns bigint
language plpgsql as $$
begin
  return helix.current_epoch()::bigint << 40 | pg_current_xact_id()::text::bigint;
end
$$;

-- The position of the steps that this transaction writes: every call compares server and timeline with `current_epoch`
-- before it draws the id of an entry, and neither changes during a transaction that writes. PostgreSQL inlines it
-- into the statement that writes the entry; to compare again took 8 % of the instructions of a submission.
create function helix.step_position() returns setof bigint
language sql stable as $$
  select e.number::bigint << 40 | pg_current_xact_id()::text::bigint from helix.epoch e order by e.number desc limit 1
$$;

-- Where readers stop: every transaction with a lower position has ended, and none will be added. If the server has
-- changed since the last write, that is the end of the last epoch.
create function helix.reached_position() returns bigint
language plpgsql stable as $$
declare
  v_epoch    helix.epoch;
  v_timeline text := helix.timeline();
begin
  select * into v_epoch from helix.epoch e order by e.number desc limit 1;
  if v_epoch.timeline <> v_timeline or v_epoch.cluster <> helix.cluster_id() then
    return (v_epoch.number + 1)::bigint << 40;
  end if;
  return v_epoch.number::bigint << 40 | pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
end
$$;
