-- No state change without its event: every arrival in ready, waiting, active or outcome passes
-- through `record`, in the statement that made it. The ledger itself says which state a batch comes
-- from and which version follows; a row that claims otherwise has its whole statement refused.

create function helix.record() returns trigger
language plpgsql as $$
begin
  -- A claim that starts its batches at once: two steps, two events, one statement. An update for
  -- the second step cost a quarter of the claim.
  if tg_table_name = 'active' and tg_op = 'INSERT'
     and exists (select from arrived n where n.state = 'RUNNING')
  then
    with claimed as materialized (
      select n.*, head.to_state as from_state, clock.at, clock.xid,
             helix.event_hash(head.hash, n.batch, n.version - 1, n.tenant, head.to_state, 'ASSIGNED',
                              clock.at, n.attempt, n.epoch, n.number, n.actor, 'claimed', n.detail,
                              n.late, clock.xid) as hash
      from arrived n
      cross join (select clock_timestamp() as at, pg_current_xact_id() as xid) clock
      left join lateral (select e.version, e.to_state, e.hash from helix.event e
                         where e.batch = n.batch order by e.version desc limit 1) head on true
      left join helix.arrow a on a.from_state = head.to_state and a.to_state = 'ASSIGNED'
      where n.version = head.version + 2 and a.to_state is not null
         or helix.no_arrow(n.batch, head.to_state, head.version, n.state, n.version)
    )
    insert into helix.event (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch,
                             number, actor, reason, detail, late, hash)
    select c.batch, c.version - 1, c.tenant, c.from_state, 'ASSIGNED', c.at, c.xid, c.attempt,
           c.epoch, c.number, c.actor, 'claimed', c.detail, c.late, c.hash
    from claimed c
    union all
    select c.batch, c.version, c.tenant, 'ASSIGNED', c.state, c.at, c.xid, c.attempt, c.epoch,
           c.number, c.actor, c.reason, c.detail, c.late,
           helix.event_hash(c.hash, c.batch, c.version, c.tenant, 'ASSIGNED', c.state, c.at,
                            c.attempt, c.epoch, c.number, c.actor, c.reason, c.detail, c.late, c.xid)
    from claimed c;
    return null;
  end if;

  -- Rows without an event are right only where nothing changed: a renewal, an erasure, or a PENDING
  -- batch that moves between waiting and ready. Everything else is a step, and a legal one.
  insert into helix.event (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch,
                           number, actor, reason, detail, late, hash)
  select n.batch, n.version, n.tenant, head.to_state, n.state, clock.at, clock.xid, n.attempt,
         n.epoch, n.number, n.actor, n.reason, n.detail, n.late,
         helix.event_hash(head.hash, n.batch, n.version, n.tenant, head.to_state, n.state, clock.at,
                          n.attempt, n.epoch, n.number, n.actor, n.reason, n.detail, n.late,
                          clock.xid)
  from arrived n
  cross join (select clock_timestamp() as at, pg_current_xact_id() as xid) clock
  left join lateral (select e.version, e.to_state, e.hash from helix.event e
                     where e.batch = n.batch order by e.version desc limit 1) head on true
  left join helix.arrow a on a.from_state is not distinct from head.to_state
                         and a.to_state = n.state
  where case
    when head.version = n.version and head.to_state = n.state then false
    when n.version = coalesce(head.version, 0) + 1 and a.to_state is not null then true
    else helix.no_arrow(n.batch, head.to_state, head.version, n.state, n.version) end;
  return null;
end
$$;

-- Refuses the statement that would take a step the arrows do not have.
create function helix.no_arrow(
  p_batch bigint, p_from helix.state, p_from_version integer, p_to helix.state, p_to_version integer
) returns boolean
language plpgsql as $$
begin
  raise exception using errcode = 'QH001',
    message = format('batch %s: no arrow %s (version %s) -> %s (version %s)', p_batch,
                     coalesce(p_from::text, '(new)'), coalesce(p_from_version, 0), p_to,
                     p_to_version),
    hint = 'The table helix.arrow lists the legal arrows; each step raises the version by one.';
end
$$;

-- Leases under a limit key are counted where they come and go, so the count cannot drift.
create function helix.count_limits() returns trigger
language plpgsql as $$
begin
  if not exists (select from changed where limit_key is not null) then
    return null;
  end if;
  if tg_op = 'INSERT' then
    update helix.key_limit k set held = k.held + more.n
    from (select c.tenant, c.queue, c.limit_key, count(*) as n from changed c
          where c.limit_key is not null group by 1, 2, 3) more
    where (k.tenant, k.queue, k.key) = (more.tenant, more.queue, more.limit_key);
    return null;
  end if;
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
  return null;
end
$$;

-- Every table in which a batch can stand, for every way to arrive there.
create trigger record after insert on helix.ready
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.waiting
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.active
  referencing new table as arrived for each statement execute function helix.record();
create trigger record after insert on helix.outcome
  referencing new table as arrived for each statement execute function helix.record();
-- An update may raise the version (a start) or not touch it (a renewal, an erasure); what it may not
-- do is change a state without its event.
create trigger record_update after update on helix.ready
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.waiting
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.active
  referencing new table as arrived for each statement execute function helix.record();
create trigger record_update after update on helix.outcome
  referencing new table as arrived for each statement execute function helix.record();

-- A lease takes a place under its limit key while its row is in active, and no longer.
create trigger count_limits after insert on helix.active
  referencing new table as changed for each statement execute function helix.count_limits();
create trigger count_limits_freed after delete on helix.active
  referencing old table as changed for each statement execute function helix.count_limits();
