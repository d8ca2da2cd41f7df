-- No state change without its event: every arrival in ready, waiting, active or outcome passes
-- through `record`, in the statement that made it. The ledger itself says which state a batch comes
-- from and which version follows; a row that claims otherwise has its whole statement refused.

create function helix.record() returns trigger
language plpgsql
-- A connection that made its plan when the ledger was known to be empty would go on reading all of it
-- for every row, until somebody analyzes the table: a thousand rows took two seconds.
set enable_seqscan = off set jit = off as $$
declare
  v_at  timestamptz := clock_timestamp();
  v_xid bigint := pg_current_xact_id()::text::bigint;
begin
  if tg_nargs > 0 then   -- Two conditions, because only ready and waiting have the column `moved`.
    if not exists (select from arrived n where n.moved or n.version > 1) then
      -- First steps come from nothing, and the ledger's primary key holds them to that: looking for
      -- what is not there was a tenth of a submission.
      insert into helix.event (batch, version, tenant, to_state, at, xid, attempt, actor, reason, late,
                               hash)
      select n.batch, 1, n.tenant, n.state, v_at, v_xid, n.attempt, n.actor, n.reason, n.late,
             helix.event_hash(null, n.batch, 1, n.tenant, null, n.state, v_at, n.attempt, null, null,
                              n.actor, n.reason, null, n.late, v_xid)
      from arrived n;
      return null;
    end if;
  end if;
  -- Rows without an event are right only where nothing changed: a renewal, an erasure, or a PENDING
  -- batch that moves between waiting and ready. Everything else is a step, and a legal one.
  insert into helix.event (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch,
                           number, actor, reason, detail, late, hash)
  select n.batch, n.version, n.tenant, head.to_state, n.state, v_at, v_xid, n.attempt, n.epoch,
         n.number, n.actor, n.reason, n.detail, n.late,
         helix.event_hash(head.hash, n.batch, n.version, n.tenant, head.to_state, n.state, v_at,
                          n.attempt, n.epoch, n.number, n.actor, n.reason, n.detail, n.late, v_xid)
  from arrived n
  left join lateral (select e.version, e.to_state, e.hash from helix.event e
                     where e.batch = n.batch order by e.version desc limit 1) head on true
  left join helix.arrow a on a.from_state = head.to_state and a.to_state = n.state
  where case
    -- The one arrow out of nothing; `is not distinct from` would find it in the table too, but not
    -- through the index.
    when head.version is null and n.version = 1 and n.state = 'PENDING' then true
    when head.version = n.version and head.to_state = n.state then false
    when n.version = head.version + 1 and a.to_state is not null then true
    else helix.no_arrow(n.batch, head.to_state, head.version, n.state, n.version) end;
  return null;
end
$$;

-- `record` for new leases. A claim that starts its batches at once takes two steps: two events, one
-- statement (an update for the second step cost a quarter of the claim).
create function helix.record_leases() returns trigger
language plpgsql as $$
declare
  v_at  timestamptz := clock_timestamp();
  v_xid bigint := pg_current_xact_id()::text::bigint;
begin
  insert into helix.event (batch, version, tenant, from_state, to_state, at, xid, attempt, epoch,
                           number, actor, reason, detail, late, hash)
  select n.batch, case when step.claims then first.version else n.version end, n.tenant,
         case when step.claims then head.to_state else 'ASSIGNED' end,
         case when step.claims then 'ASSIGNED' else n.state end, v_at, v_xid, n.attempt, n.epoch,
         n.number, n.actor, case when step.claims then 'claimed' else n.reason end, n.detail, n.late,
         case when step.claims then first.hash
              else helix.event_hash(first.hash, n.batch, n.version, n.tenant, 'ASSIGNED', n.state, v_at,
                                    n.attempt, n.epoch, n.number, n.actor, n.reason, n.detail, n.late,
                                    v_xid) end
  from arrived n
  left join lateral (select e.version, e.to_state, e.hash from helix.event e
                     where e.batch = n.batch order by e.version desc limit 1) head on true
  left join helix.arrow a on a.from_state = head.to_state and a.to_state = 'ASSIGNED'
  cross join lateral (
    select head.version + 1 as version,
           helix.event_hash(head.hash, n.batch, head.version + 1, n.tenant, head.to_state, 'ASSIGNED',
                            v_at, n.attempt, n.epoch, n.number, n.actor, 'claimed', n.detail, n.late,
                            v_xid) as hash
    offset 0) first
  cross join (values (true), (false)) as step (claims)
  where (step.claims or n.state = 'RUNNING')
    and (a.to_state is not null
         and n.version = head.version + case n.state when 'RUNNING' then 2 else 1 end
         or helix.no_arrow(n.batch, head.to_state, head.version, n.state, n.version));
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

-- Leases under a limit key are counted where they come and go, so the count cannot drift. Row by row,
-- because most rows have no key and a row trigger's WHEN costs them nothing. The rows of key_limit
-- are locked in order before (set_aside, lock_keys): two statements must not meet crosswise here.
create function helix.count_lease() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    update helix.key_limit k set held = k.held + 1
    where k.tenant = new.tenant and k.queue = new.queue and k.key = new.limit_key;
  else
    update helix.key_limit k set held = k.held - 1
    where k.tenant = old.tenant and k.queue = old.queue and k.key = old.limit_key;
    perform helix.unblock(old.tenant, old.queue, old.limit_key);
  end if;
  return null;
end
$$;

-- Locks the limit keys of these leases in key order, for a statement that will end several.
create function helix.lock_keys(p_batch bigint[]) returns void
language plpgsql as $$
begin
  perform from helix.key_limit k
  where (k.tenant, k.queue, k.key) in (select a.tenant, a.queue, a.limit_key from helix.active a
                                       where a.batch = any (p_batch) and a.limit_key is not null)
  order by k.tenant, k.queue, k.key for update;
end
$$;

-- Every table in which a batch can stand, for every way to arrive there; only two are where it begins.
create trigger record after insert on helix.ready
  referencing new table as arrived for each statement execute function helix.record('first');
create trigger record after insert on helix.waiting
  referencing new table as arrived for each statement execute function helix.record('first');
create trigger record after insert on helix.active
  referencing new table as arrived for each statement execute function helix.record_leases();
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
create trigger count_lease after insert on helix.active
  for each row when (new.limit_key is not null) execute function helix.count_lease();
create trigger count_lease_ended after delete on helix.active
  for each row when (old.limit_key is not null) execute function helix.count_lease();
