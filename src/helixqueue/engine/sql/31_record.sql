-- No state change without its ledger entry. Triggers on helix.work see every change in the statement that
-- makes it: a row trigger compares the new row with the old one, and a statement trigger checks the new
-- rows and writes the entry. A renewal or a move inside PENDING is no step and must set `step = false`.

-- Refuses the statement.
create function helix.refuse(
  p_batch bigint, p_from helix.state, p_from_version integer, p_to helix.state, p_to_version integer
) returns boolean
language plpgsql as $$
begin
  raise exception using errcode = 'QH001',
    message = format('batch %s: no arrow %s (version %s) -> %s (version %s)', p_batch,
                     coalesce(p_from::text, '(new)'), coalesce(p_from_version, 0), p_to, p_to_version),
    hint = 'The table helix.arrow lists the legal arrows; each step raises the version by one and '
           'names the ledger entry before it.';
end
$$;

-- Called for updates that are not the next step of their batch (see the trigger below). Accepts an update
-- that is no step: it keeps the state and changes only deadline, lane, turn, pending, due and cause.
-- Refuses every other one.
create function helix.check_move() returns trigger
language plpgsql as $$
begin
  if not new.step
     and (new.batch, new.version, new.state, new.entry, new.attempt, new.reason, new.late, new.actor,
          new.changed_at, new.queue, new.bytes)
         = (old.batch, old.version, old.state, old.entry, old.attempt, old.reason, old.late, old.actor,
            old.changed_at, old.queue, old.bytes)
     and (new.before, new.version_before, new.came_from, new.number, new.nonce, new.epoch,
          new.lease_seconds, new.content, new.expires_at, new.allocated)
         is not distinct from
         (old.before, old.version_before, old.came_from, old.number, old.nonce, old.epoch,
          old.lease_seconds, old.content, old.expires_at, old.allocated)
     and new.run is not distinct from old.run
     -- Erasing empties the limit key of a finished batch.
     and (new.limit_key is not distinct from old.limit_key
          or new.limit_key is null and new.state in ('COMPLETED', 'FAILED', 'CANCELLED'))
     and (new.state = 'PENDING') = (new.pending or new.cause is not null)
     and not (new.pending and new.cause is not null)
     and (new.due is not null) = coalesce(new.cause = 'delay', false)
     and (new.cause is distinct from 'limit' or new.limit_key is not null)
  then
    return null;
  end if;
  perform helix.refuse(new.batch, old.state, old.version, new.state, new.version);
  return null;
end
$$;

-- The condition describes the next step: it follows the row as it was. `check_move` runs only where the
-- condition does not hold; `is not true` includes null. PostgreSQL parses a trigger's condition again for
-- every statement, so there is one trigger for both kinds of update, its condition is short, and
-- `record_step` checks everything that the new row alone shows. Calling a function for each row instead of
-- a condition took a third of the time of a drain.
create trigger next_step after update on helix.work
  for each row when ((
    new.step and new.before = old.entry and new.came_from = old.state and new.version_before = old.version
  ) is not true) execute function helix.check_move();

-- No update changes which batch a row belongs to. A trigger of its own, because PostgreSQL looks at the list of
-- columns without parsing anything.
create function helix.refuse_renumbering() returns trigger
language plpgsql as $$
begin
  raise exception using errcode = 'QH001', message = 'update of helix.work.batch',
    hint = 'A row belongs to its batch for life.';
end
$$;
create trigger same_batch before update of batch on helix.work
  for each statement execute function helix.refuse_renumbering();

-- A row leaves only with retention, which has written the tombstone before; so the same batch can
-- never begin again at version 1.
create function helix.demand_tombstone() returns trigger
language plpgsql as $$
begin
  -- A look-up by id for each row: as an anti-join it read all tombstones for each row.
  if exists (select from gone g
             where (select b.retired_at is not null and b.entry = g.entry and b.version = g.version
                    from helix.batch b where b.id = g.batch) is not true)
  then
    raise exception using errcode = 'QH001', message = 'delete on helix.work without a tombstone',
      hint = 'Only retention removes finished batches.';
  end if;
  return null;
end
$$;
create trigger leaves after delete on helix.work
  referencing old table as gone for each statement execute function helix.demand_tombstone();

-- Whether the columns of a row are consistent with its first step. PostgreSQL inlines this function.
create function helix.is_first_step(
  p_version integer, p_state helix.state, p_reason helix.reason, p_step boolean, p_attempt smallint,
  p_late boolean, p_before bigint, p_number bigint, p_nonce bigint, p_version_before integer,
  p_from helix.state, p_pending boolean, p_cause helix.cause, p_due timestamptz, p_limit_key text
) returns boolean language sql immutable parallel safe as $$
  select p_version = 1 and p_state = 'PENDING' and p_reason = 'submitted' and p_step and p_attempt = 0
     and not p_late and coalesce(p_before, p_number, p_nonce, p_version_before) is null and p_from is null
     and p_pending = (p_cause is null) and (p_due is not null) = coalesce(p_cause = 'delay', false)
     and (p_cause is distinct from 'limit' or p_limit_key is not null)
$$;

-- Writes the entry of first steps, which have no entry before them. A retired batch does not begin again.
create function helix.record_first() returns trigger
language plpgsql
set enable_seqscan = off set jit = off as $$
begin
  if not exists (select from arrived offset 1) then
    -- The same as below, without grouping, which one batch does not need.
    insert into helix.entry (id, part, at, position, to_state, reason, late, actor, batch, queue, version,
                             attempt, hash)
    select n.entry, 1, n.changed_at, c.position, 'PENDING', 'submitted', false, n.actor, array[n.batch],
           array[n.queue], array[n.version], array[n.attempt],
           helix.entry_hash(null, n.entry, 1::smallint, n.changed_at, c.position, null, null, 'PENDING',
                            'submitted', false, n.actor, array[n.batch], array[n.queue],
                            array[n.version], array[n.attempt], null, null)
    from arrived n cross join helix.step_position() as c (position)
    where (helix.is_first_step(n.version, n.state, n.reason, n.step, n.attempt, n.late, n.before, n.number, n.nonce,
                               n.version_before, n.came_from, n.pending, n.cause, n.due, n.limit_key)
           and not exists (select from helix.batch b
                           where b.id = n.batch and b.retired_at is not null)) is true
       or helix.refuse(n.batch, null, null, n.state, n.version);
    return null;
  end if;
  insert into helix.entry (id, part, at, position, to_state, reason, late, actor, batch, queue, version,
                           attempt, hash)
  select g.id, g.part, g.at, c.position, 'PENDING', 'submitted', false, g.actor, g.batch, g.queue, g.version,
         g.attempt,
         helix.entry_hash(null, g.id, g.part, g.at, c.position, null, null, 'PENDING', 'submitted', false,
                          g.actor, g.batch, g.queue, g.version, g.attempt, null, null)
  -- One part: a statement that submits has one entry, time and actor. A second header would violate the
  -- primary key.
  from (select n.entry as id, 1::smallint as part, n.changed_at as at, n.actor,
               array_agg(n.batch) as batch, array_agg(n.queue) as queue, array_agg(n.version) as version,
               array_agg(n.attempt) as attempt
        from arrived n
        where (helix.is_first_step(n.version, n.state, n.reason, n.step, n.attempt, n.late, n.before, n.number, n.nonce,
                                   n.version_before, n.came_from, n.pending, n.cause, n.due, n.limit_key)
               and not exists (select from helix.batch b
                               where b.id = n.batch and b.retired_at is not null)) is true
           or helix.refuse(n.batch, null, null, n.state, n.version)
        group by n.entry, n.changed_at, n.actor offset 0) g
  cross join helix.step_position() as c (position);
  return null;
end
$$;
create trigger record after insert on helix.work
  referencing new table as arrived for each statement execute function helix.record_first();

-- Whether the columns of a row are consistent with its last step.
create function helix.is_step(
  p_from helix.state, p_to helix.state, p_version_before integer, p_version integer, p_before bigint,
  p_entry bigint, p_pending boolean, p_cause helix.cause, p_due timestamptz, p_limit_key text,
  p_number bigint, p_nonce bigint, p_epoch integer, p_deadline timestamptz
) returns boolean language plpgsql immutable parallel safe as $$
begin
  return (case p_from
            when 'PENDING'  then p_to in ('ASSIGNED', 'RUNNING', 'CANCELLED')
            when 'ASSIGNED' then p_to in ('RUNNING', 'PENDING', 'FAILED', 'CANCELLED')
            when 'RUNNING'  then p_to in ('COMPLETED', 'PENDING', 'FAILED', 'CANCELLED')
            when 'FAILED'   then p_to = 'PENDING'
            else false end
          -- PENDING > RUNNING is two steps.
          and p_version = p_version_before
                          + case when p_from = 'PENDING' and p_to = 'RUNNING' then 2 else 1 end
          and p_entry > p_before
          -- PENDING is claimable or has a cause why not; nothing else has either.
          and (p_to = 'PENDING') = (p_pending or p_cause is not null)
          and not (p_pending and p_cause is not null)
          and (p_due is not null) = coalesce(p_cause = 'delay', false)
          and (p_cause is distinct from 'limit' or p_limit_key is not null)
          -- Leased states have a token. A claim makes a new one, whose number is its entry.
          and (p_to not in ('ASSIGNED', 'RUNNING')
               or (p_from = 'PENDING') = (p_number = p_entry)
                  and p_nonce is not null and p_epoch is not null and p_deadline is not null)
         ) is true;
end
$$;

-- The same for the two steps that nearly all batches take, claimed with started and completed; not true for
-- any other. PostgreSQL inlines it, and prepares every operator in it for each statement: it has half of those of
-- `is_step`, which is called only where this is not true.
create function helix.is_usual_step(
  p_from helix.state, p_to helix.state, p_version_before integer, p_version integer, p_before bigint,
  p_entry bigint, p_pending boolean, p_cause helix.cause, p_due timestamptz, p_number bigint,
  p_nonce bigint, p_epoch integer, p_deadline timestamptz
) returns boolean language sql immutable parallel safe as $$
  select p_entry > p_before and not p_pending and p_cause is null and p_due is null
     and (p_from = 'RUNNING' and p_to = 'COMPLETED' and p_version = p_version_before + 1
          or p_from = 'PENDING' and p_to = 'RUNNING' and p_version = p_version_before + 2
             and p_number = p_entry
             and p_nonce is not null and p_epoch is not null and p_deadline is not null)
$$;

-- Writes the entry of all other steps. It reads the new rows only, because joining them with the old rows
-- took quadratic time.
create function helix.record_step() returns trigger
language plpgsql
-- A plan made while the ledger was empty would read all of it for every call.
set enable_seqscan = off set jit = off as $$
declare
  v_steps   bigint;
  v_ended   boolean;
  v_counted integer;  -- a sum: 1 a batch has a limit key, 2 it held something of a host, 4 it is of a run
begin
  select count(*), bool_or(n.state in ('COMPLETED', 'FAILED', 'CANCELLED')),
         -- One aggregate: each costs about a hundredth of a settlement.
         bit_or(case when n.limit_key is null then 0 else 1 end | case when n.allocated is null then 0 else 2 end
                | case when n.run is null then 0 else 4 end)
  into v_steps, v_ended, v_counted from arrived n where n.step;
  if v_steps = 0 then
    return null;
  end if;
  if v_steps = 1 then
    -- The same as below, without grouping: 3 % fewer instructions in a round of one batch.
    insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late, actor, batch,
                             queue, version, attempt, before, content, hash)
    select n.entry, 1, n.changed_at, c.position, n.epoch, n.came_from, n.state, n.reason, n.late, n.actor,
           array[n.batch], array[n.queue], array[n.version], array[n.attempt], array[n.before],
           case when n.content is not null then array[n.content] end,
           helix.entry_hash(p.hashes, n.entry, 1::smallint, n.changed_at, c.position, n.epoch, n.came_from,
                            n.state, n.reason, n.late, n.actor, array[n.batch], array[n.queue],
                            array[n.version], array[n.attempt], array[n.before],
                            case when n.content is not null then array[n.content] end)
    from arrived n
    cross join helix.step_position() as c (position)
    cross join lateral (select array_agg(e.hash order by e.part) as hashes
                        from helix.entry e where e.id = n.before) p
    where n.step
      and (p.hashes is not null or helix.refuse_missing_entry(n.entry) is null)
      and (helix.is_usual_step(n.came_from, n.state, n.version_before, n.version, n.before, n.entry, n.pending,
                               n.cause, n.due, n.number, n.nonce, n.epoch, n.deadline)
           or helix.is_step(n.came_from, n.state, n.version_before, n.version, n.before, n.entry, n.pending,
                            n.cause, n.due, n.limit_key, n.number, n.nonce, n.epoch, n.deadline)
           or helix.refuse(n.batch, n.came_from, n.version_before, n.state, n.version));
  else
    insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late, actor, batch,
                             queue, version, attempt, before, content, hash)
    select g.id, g.part, g.at, c.position, g.epoch, g.came_from, g.state, g.reason, g.late, g.actor, g.batch,
           g.queue, g.version, g.attempt, g.before, g.content,
           helix.entry_hash(p.hashes, g.id, g.part, g.at, c.position, g.epoch, g.came_from, g.state, g.reason,
                            g.late, g.actor, g.batch, g.queue, g.version, g.attempt, g.before, g.content)
    from (select n.entry as id, row_number() over ()::smallint as part, n.changed_at as at, n.epoch,
                 n.came_from, n.state, n.reason, n.late, n.actor, array_agg(n.batch) as batch,
                 array_agg(n.queue) as queue, array_agg(n.version) as version,
                 array_agg(n.attempt) as attempt, array_agg(n.before) as before,
                 case when count(n.content) > 0 then array_agg(n.content) end as content
          from arrived n
          where n.step
            and (helix.is_usual_step(n.came_from, n.state, n.version_before, n.version, n.before, n.entry, n.pending,
                                     n.cause, n.due, n.number, n.nonce, n.epoch, n.deadline)
                 or helix.is_step(n.came_from, n.state, n.version_before, n.version, n.before, n.entry, n.pending,
                                  n.cause, n.due, n.limit_key, n.number, n.nonce, n.epoch, n.deadline)
                 or helix.refuse(n.batch, n.came_from, n.version_before, n.state, n.version))
          group by n.entry, n.changed_at, n.epoch, n.came_from, n.state, n.reason, n.late, n.actor
          offset 0) g
    cross join helix.step_position() as c (position)
    -- Not with the grouping above: that would sort all rows by all of its columns.
    cross join lateral (select array_agg(distinct u.id) as ids from unnest(g.before) as u (id)) d
    cross join lateral (
      select array_agg(e.hash order by e.id, e.part) as hashes, count(distinct e.id) as found
      from helix.entry e where e.id = any (d.ids)) p
    where p.found = cardinality(d.ids) or helix.refuse_missing_entry(g.id) is null;
  end if;
  if v_ended then
    insert into helix.ended (queue, ending, at, batch)
    select n.queue, helix.ending(n.state), n.changed_at, n.batch from arrived n
    where n.step and n.state in ('COMPLETED', 'FAILED', 'CANCELLED');
  end if;
  if v_counted & 1 = 1 then
    perform helix.count_leases(
      array_agg(c.queue), array_agg(c.limit_key), array_agg(c.change))
    from (select n.queue, n.limit_key,
                 sum((n.state in ('ASSIGNED', 'RUNNING'))::int
                     - (n.came_from in ('ASSIGNED', 'RUNNING'))::int)::int as change
          from arrived n where n.step and n.limit_key is not null
          group by n.queue, n.limit_key) c
    where c.change <> 0;
  end if;
  if v_counted & 2 = 2 then
    perform helix.end_allocations(array_agg(n.batch)) from arrived n
    where n.step and n.allocated = n.number and n.state not in ('ASSIGNED', 'RUNNING')
    having count(*) > 0;
  end if;
  if v_counted & 4 = 4 then
    insert into helix.run_change (run, queue, what, value)
    select c.run, c.queue, c.what, sum(c.value)
    from (select n.run, n.queue, n.state::text as what, 1 as value from arrived n
          where n.step and n.run is not null
          union all
          select n.run, n.queue, n.came_from::text, -1 from arrived n where n.step and n.run is not null) c
    group by c.run, c.queue, c.what;
  end if;
  return null;
end
$$;
create trigger record_step after update on helix.work
  referencing new table as arrived for each statement execute function helix.record_step();

-- Refuses a step whose entry before is not in the ledger.
create function helix.refuse_missing_entry(p_entry bigint) returns bytea[]
language plpgsql as $$
begin
  raise exception using errcode = 'QH001',
    message = format('entry %s: an entry that it continues is missing from the ledger', p_entry),
    hint = 'Run helixq check: the ledger was cut.';
end
$$;

-- Counts leases under their limit keys where they begin and end, so that the count cannot drift, and makes
-- waiting batches claimable where a lease ended. The rows are locked in key order: two statements must
-- not wait for each other crosswise.
create function helix.count_leases(p_queue integer[], p_key text[], p_change integer[]) returns void
language plpgsql as $$
begin
  perform from helix.key_limit k
  where (k.queue, k.key) in (select u.queue, u.key from unnest(p_queue, p_key) as u (queue, key))
  order by k.queue, k.key for update;
  update helix.key_limit k set held = k.held + u.change
  from unnest(p_queue, p_key, p_change) as u (queue, key, change)
  where k.queue = u.queue and k.key = u.key;
  perform helix.unblock(u.queue, u.key)
  from unnest(p_queue, p_key, p_change) as u (queue, key, change) where u.change < 0;
end
$$;

-- Locks the limit keys of these batches in key order, for calls that end leases in several statements.
create function helix.lock_keys(p_batch bigint[]) returns void
language plpgsql as $$
begin
  perform from helix.key_limit k
  where (k.queue, k.key) in (select w.queue, w.limit_key from helix.work w
                             where w.batch = any (p_batch) and w.limit_key is not null)
  order by k.queue, k.key for update;
end
$$;

-- A submitted batch never changes and is never deleted: the row is the tombstone. Erasing and retention
-- empty columns; nothing else may change.
create function helix.check_asked() returns trigger
language plpgsql as $$
begin
  if tg_op = 'UPDATE' and (
    (new.id, new.created_at, new.queue, new.class, new.secret, new.priority, new.key, new.fingerprint,
     new.actor)
    = (old.id, old.created_at, old.queue, old.class, old.secret, old.priority, old.key, old.fingerprint,
       old.actor)
    and new.revision in ('', old.revision)
    and new.limit_print is not distinct from old.limit_print
    and new.run is not distinct from old.run and new.run_at is not distinct from old.run_at
    and new.expires_at is not distinct from old.expires_at
    and (new.identity is null or new.identity = old.identity)
    and (new.raw is null or new.raw = old.raw)
    and (new.limit_key is null or new.limit_key = old.limit_key)
    and (new.payload is null or new.payload::text = old.payload::text)
    and (old.retired_at is null
         or (new.retired_at, new.ended_at, new.entry, new.version, new.state, new.attempt, new.tombstone)
            = (old.retired_at, old.ended_at, old.entry, old.version, old.state, old.attempt,
               old.tombstone)))
  then
    return null;
  end if;
  raise exception using errcode = 'QH001',
    message = format('batch %s: what was asked cannot be changed or deleted', old.id),
    hint = 'New work is a new revision; erase_v1 and retention empty a batch and leave its tombstone.';
end
$$;
create trigger asked_once after update or delete on helix.batch
  for each row execute function helix.check_asked();
