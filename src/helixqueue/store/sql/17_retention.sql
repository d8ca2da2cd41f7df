-- Retention: finished batches go away whole, with their events and refusals, what was asked and what
-- came of it.
-- The identity stays, so the key still answers (G1): a repeat is a duplicate with an equal receipt,
-- however long ago the batch went. `retired` keeps the last state and the head of the chain, so that
-- replay and check know it from a batch that was lost.

-- Takes away batches whose outcomes the caller has locked. The only function that may delete events:
-- guard_ledger knows it by its name.
create function helix.retire(p_batch bigint[]) returns integer
language plpgsql as $$
begin
  insert into helix.retired (batch, tenant, state, version, attempt, hash, xid, finished_at)
  select o.batch, o.tenant, o.state, o.version, o.attempt, e.hash, e.xid, o.finished_at
  from helix.outcome o
  join helix.event e on e.batch = o.batch and e.version = o.version
  where o.batch = any (p_batch);
  delete from helix.outcome o where o.batch = any (p_batch);
  delete from helix.event e where e.batch = any (p_batch);
  delete from helix.refusal r where r.batch = any (p_batch);
  delete from helix.batch b where b.id = any (p_batch);
  return cardinality(p_batch);
end
$$;

-- By hand: one queue, one state, what finished before p_before, oldest first.
create function helix.retire_v1(
  p_tenant text, p_queue text, p_state helix.state, p_before timestamptz, p_limit integer default 1000
) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_ending smallint := helix.ending(p_state);
begin
  perform helix.enter_for(p_tenant);
  return helix.retire(array(
    select o.batch from helix.outcome o
    where o.tenant = p_tenant and o.queue = p_queue and o.ending = v_ending
      and o.finished_at < p_before
    order by o.finished_at limit least(p_limit, 10000) for update skip locked));
end
$$;

-- As the queues say, whosever they are: from each the oldest that are past their time, p_limit in all.
-- Who has a row locked (a retry of what failed, say) keeps it: it is looked at again next time.
create function helix.retire_due(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return helix.retire(array(
    select o.batch
    from helix.queue q
    cross join lateral (values
      (1::smallint, q.keep_completed_seconds),
      (2::smallint, q.keep_failed_seconds),
      (3::smallint, q.keep_cancelled_seconds)) as keep (ending, seconds)
    cross join lateral (
      select o.batch from helix.outcome o
      where o.tenant = q.tenant and o.queue = q.name and o.ending = keep.ending
        and o.finished_at < v_now - make_interval(secs => keep.seconds)
      order by o.finished_at limit p_limit for update skip locked) o
    where keep.seconds > 0
    limit p_limit));
end
$$;

-- What submissions were answered that made no batch, as the queues say: of a sender that repeats itself
-- for ever there would be rows for ever. From each queue the oldest, p_limit in all.
create function helix.forget_decisions(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_gone integer;
begin
  delete from helix.decision d
  where d.id = any (array(
    select o.id
    from helix.queue q
    cross join lateral (
      select d.id from helix.decision d
      where d.tenant = q.tenant and d.queue = q.name
        and d.kind in ('duplicate', 'conflict', 'refused')
        and d.at < v_now - make_interval(secs => q.keep_decisions_seconds)
      order by d.at limit p_limit) o
    where q.keep_decisions_seconds > 0
    limit p_limit));
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;
