-- No state change without its event: every arrival in ready, waiting, active or outcome passes
-- through `record`, in the statement that made it.

create function helix.record() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  v_arrived int;
  v_written int;
  v_wrong   record;
begin
  -- The ledger itself says which state a batch comes from and which version follows, so a row that
  -- claims otherwise finds no partner here and is not written.
  with written as (
    insert into helix.event (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch,
                             number, actor, reason, detail, late, hash)
    select step.batch, step.version, step.tenant, step.from_state, step.state, step.at, step.xid,
           step.attempt, step.epoch, step.number, step.actor, step.reason, step.detail, step.late,
           helix.event_hash(step.before, step.batch, step.version, step.tenant, step.from_state,
                            step.state, step.at, step.attempt, step.epoch, step.number, step.actor,
                            step.reason, step.detail, step.late, step.xid)
    from (
      select n.*, head.to_state as from_state, head.hash as before,
             clock.at, pg_current_xact_id() as xid
      from arrived n
      cross join (select clock_timestamp() as at) clock
      left join lateral (select e.version, e.to_state, e.hash from helix.event e
                         where e.batch = n.batch order by e.version desc limit 1) head on true
      join helix.arrow a on a.from_state is not distinct from head.to_state
                        and a.to_state = n.state
      where n.version = coalesce(head.version, 0) + 1
    ) step
    returning 1
  )
  select (select count(*) from arrived), (select count(*) from written)
  into v_arrived, v_written;
  if v_written = v_arrived then
    return null;
  end if;

  -- Rows without an event are right only where nothing changed: a renewal, or a PENDING batch that
  -- moves between waiting and ready.
  select n.batch, n.version, n.state, head.version as head_version, head.to_state into v_wrong
  from arrived n
  left join lateral (select e.version, e.to_state from helix.event e
                     where e.batch = n.batch order by e.version desc limit 1) head on true
  where head.version is distinct from n.version or head.to_state is distinct from n.state
  order by n.batch limit 1;
  if found then
    raise exception using errcode = 'QH001',
      message = format('batch %s: no arrow %s (version %s) -> %s (version %s)', v_wrong.batch,
                       coalesce(v_wrong.to_state::text, '(new)'), coalesce(v_wrong.head_version, 0),
                       v_wrong.state, v_wrong.version),
      hint = 'The table helix.arrow lists the legal arrows; each step raises the version by one.';
  end if;
  return null;
end
$$;

-- Leases under a limit key are counted where they come and go, so the count cannot drift.
create function helix.count_limits() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if tg_op = 'INSERT' then
    if exists (select from changed where limit_key is not null) then
      update helix.key_limit k set held = k.held + more.n
      from (select c.tenant, c.queue, c.limit_key, count(*) as n from changed c
            where c.limit_key is not null group by 1, 2, 3) more
      where (k.tenant, k.queue, k.key) = (more.tenant, more.queue, more.limit_key);
    end if;
  elsif exists (select from changed where limit_key is not null) then
    -- Locked in key order: two settlements that free overlapping keys must not meet crosswise.
    perform from helix.key_limit k
    where (k.tenant, k.queue, k.key) in (select c.tenant, c.queue, c.limit_key from changed c
                                         where c.limit_key is not null)
    order by k.tenant, k.queue, k.key for update;
    update helix.key_limit k set held = k.held - fewer.n
    from (select c.tenant, c.queue, c.limit_key, count(*) as n from changed c
          where c.limit_key is not null group by 1, 2, 3) fewer
    where (k.tenant, k.queue, k.key) = (fewer.tenant, fewer.queue, fewer.limit_key);
    perform helix.unblock(freed.tenant, freed.queue, freed.limit_key)
    from (select distinct c.tenant, c.queue, c.limit_key from changed c
          where c.limit_key is not null) freed;
  end if;
  return null;
end
$$;

create trigger record after insert on helix.ready
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.waiting
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.active
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.active
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.outcome
  referencing new table as arrived for each statement execute function helix.record();
-- Rows of these tables come and go but are not rewritten; an update could only be an edit.
create trigger record_update after update on helix.ready
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.waiting
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.outcome
  referencing new table as arrived for each statement execute function helix.record();

create trigger count_limits after insert on helix.active
  referencing new table as changed for each statement execute function helix.count_limits();
create trigger count_limits_freed after delete on helix.active
  referencing old table as changed for each statement execute function helix.count_limits();
