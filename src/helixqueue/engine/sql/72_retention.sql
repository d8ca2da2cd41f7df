-- Retention: deletes batches that finished long ago. The batch stays as a tombstone with its key, fingerprint and
-- last step, so a repeat is a duplicate with an equal receipt at any later time (G1).

-- Retires finished batches whose rows the caller has locked.
create function helix.retire(p_batch bigint[]) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  if p_batch = '{}' then
    return 0;
  end if;
  perform helix.retire_outputs(p_batch);
  update helix.batch b
  set retired_at = v_now, ended_at = w.changed_at, entry = w.entry, version = w.version, state = w.state,
      attempt = w.attempt, identity = null, raw = null, revision = '', limit_key = null, payload = null,
      tombstone = helix.tombstone_hash(b.key, b.fingerprint, b.queue, w.entry, w.version, w.state,
                                       w.attempt, w.changed_at, v_now, '')
  from helix.work w where b.id = any (p_batch) and w.batch = b.id;
  update helix.queue q
  set lost_position = l.position, lost_batch = l.batch, lost_version = l.version
  from (select distinct on (b.queue) b.queue, e.position, b.id as batch, b.version
        from helix.batch b
        cross join lateral (select n.position from helix.entry n where n.id = b.entry order by n.part limit 1) e
        where b.id = any (p_batch)
        order by b.queue, e.position desc, b.id desc) l
  where q.id = l.queue and (l.position, l.batch, l.version) > (q.lost_position, q.lost_batch, q.lost_version);
  -- The record by which `check` finds tombstones that were removed, edited or made by hand.
  insert into helix.decision (tenant, queue, kind, actor, detail)
  select q.tenant, q.name, 'retired', session_user,
         jsonb_build_object('batches', jsonb_agg(r.id order by r.id),
                            'digest', encode(sha256(string_agg(r.tombstone, ''::bytea order by r.id)), 'hex'))::text
  from (select b.id, b.queue, b.tombstone, row_number() over (partition by b.queue order by b.id) / 1000 as page
        from helix.batch b where b.id = any (p_batch)) r
  join helix.queue q on q.id = r.queue
  group by q.tenant, q.name, r.page;
  delete from helix.ended e using helix.work w
  where w.batch = any (p_batch) and e.queue = w.queue and e.ending = helix.ending(w.state)
    and e.at = w.changed_at and e.batch = w.batch;
  insert into helix.metric_change (tenant, name, queue, label, value)
  select q.tenant, 'helix_batches', q.name, w.state::text, -count(*)
  from helix.work w join helix.queue q on q.id = w.queue
  where w.batch = any (p_batch) group by q.tenant, q.name, w.state;
  perform helix.forget_keys(array_agg(w.queue), array_agg(w.limit_key)) from helix.work w
  where w.batch = any (p_batch) and w.limit_key is not null having count(*) > 0;
  delete from helix.work w where w.batch = any (p_batch);
  delete from helix.result r where r.batch = any (p_batch);
  delete from helix.refusal r where r.batch = any (p_batch);
  delete from helix.difference d where d.batch = any (p_batch);
  perform helix.empty_fences(p_batch, true);
  -- The hash stays, so that the source is recognised.
  update helix.source s set kind = null, name = null, id = null, actor = null
  where s.batch = any (p_batch);
  perform helix.empty_letters(p_batch);
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
  v_queue  integer;
  v_ending smallint := helix.ending(p_state);
begin
  perform helix.enter_for(p_tenant);
  select q.id into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  return helix.retire(helix.lock_ended(array(
    select e.batch from helix.ended e
    where e.queue = v_queue and e.ending = v_ending and e.at < p_before
    order by e.at, e.batch limit least(p_limit, 10000))));
end
$$;

-- Applies the settings of all queues: the oldest expired batches of each, p_limit in all.
create function helix.retire_due(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return helix.retire(helix.lock_ended(array(
    select o.batch
    from helix.queue q
    cross join lateral (values
      (1::smallint, q.keep_completed_seconds),
      (2::smallint, q.keep_failed_seconds),
      (3::smallint, q.keep_cancelled_seconds)) as keep (ending, seconds)
    cross join lateral (
      select e.batch from helix.ended e
      where e.queue = q.id and e.ending = keep.ending
        and e.at < v_now - make_interval(secs => keep.seconds)
      order by e.at, e.batch limit p_limit) o
    where keep.seconds > 0
    limit p_limit)));
end
$$;

-- Locks the rows of finished batches and returns those that still are. A row that another call has
-- locked (the retry of a failed batch, for instance) is left for the next time.
create function helix.lock_ended(p_batch bigint[]) returns bigint[]
language sql volatile as $$
  select coalesce(array_agg(l.batch), '{}')
  from (select w.batch, w.state from helix.work w where w.batch = any (p_batch)
        order by w.batch for update skip locked) l
  where l.state in ('COMPLETED', 'FAILED', 'CANCELLED')
$$;

-- Empties the arrays of ledger entries whose batches are all retired; header and hash stay, so the chain
-- stays verifiable. It scans the ledger in order, ten times p_limit entries per call, and starts over at its
-- end.
-- guard_ledger allows this function by its name, which a session may have quoted.
create function helix.archive(p_limit integer) returns integer
language plpgsql set quote_all_identifiers = off as $$
declare
  v_from  bigint := (select d.mark from helix.duty d where d.duty = 'archive');
  v_read  bigint := helix.follow_ledger();   -- the counters have read the transactions below
  v_to    bigint;
  v_count integer;
begin
  select max(e.id) into v_to
  from (select e.id from helix.entry e where e.id > v_from order by e.id limit p_limit * 10) e;
  update helix.entry e
  set batch = null, queue = null, version = null, attempt = null, before = null, content = null
  where e.id > v_from and e.id <= v_to and e.batch is not null and e.position < v_read
    and not exists (select from unnest(e.batch) as u (batch)
                    join helix.work w on w.batch = u.batch)
    and not exists (select from unnest(e.batch) as u (batch)
                    join helix.batch b on b.id = u.batch where b.retired_at is null);
  get diagnostics v_count = row_count;
  update helix.duty d set mark = coalesce(v_to, 0) where d.duty = 'archive';
  return v_count;
end
$$;

-- Deletes decisions about submissions that created no batch, by the settings of their queue, after 90 days where there
-- is none: the oldest of each queue, p_limit in all. Those of fences go with their fence, those of several here.
create function helix.delete_old_decisions(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_gone integer;
begin
  delete from helix.decision d
  where d.id = any (array(
    -- Tenant and queue of all such decisions, each found behind the one before in the index.
    with recursive place (tenant, queue) as (
      (select d.tenant::text, d.queue from helix.decision d where d.kind in ('duplicate', 'conflict', 'refused')
       order by d.tenant, d.queue limit 1)
      union all
      select n.tenant, n.queue from place p cross join lateral (
        select d.tenant::text, d.queue from helix.decision d
        where d.kind in ('duplicate', 'conflict', 'refused') and (d.tenant, d.queue) > (p.tenant, p.queue)
        order by d.tenant, d.queue limit 1) n
    )
    select o.id
    from (select p.tenant, p.queue, coalesce(q.keep_decisions_seconds, 7776000) as seconds
          from place p left join helix.queue q on q.tenant = p.tenant and q.name = p.queue) k
    cross join lateral (
      select d.id from helix.decision d
      where d.tenant = k.tenant and d.queue = k.queue
        and d.kind in ('duplicate', 'conflict', 'refused')
        and d.at < v_now - make_interval(secs => k.seconds)
      order by d.at limit p_limit) o
    where k.seconds > 0
    limit p_limit));
  get diagnostics v_gone = row_count;
  delete from helix.fence_decision d
  where d.life = 0 and d.id = any (array(
    select o.id from helix.fence_decision o where o.life = 0 order by o.id limit p_limit))
    and d.at < v_now - interval '90 days';
  return v_gone;
end
$$;
