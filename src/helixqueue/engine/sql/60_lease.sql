-- What start, renew, settle, release, reap and recover share: epochs, tokens, the end of a lease, and
-- the answer to a stale token.
--
-- A token is (epoch, nonce, number). The leases of one claim share its number and nonce inside the worker
-- process that claimed them. What leaves that process (to a handler's child process, over HTTP) carries
-- a nonce derived for its one batch (`lease_nonce`), so that the holder of one cannot settle another.

-- The id of a new ledger entry. Every call that draws an id compares the timeline first.
create function helix.next_entry() returns bigint
language plpgsql as $$
begin
  if helix.current_epoch() is null then
    return null;
  end if;
  return nextval('helix.entry_id');
end
$$;

-- The same for the leases of fences.
create function helix.next_fence_number() returns bigint
language plpgsql as $$
begin
  if helix.current_epoch() is null then
    return null;
  end if;
  return nextval('helix.fence_number');
end
$$;

-- The nonce of one lease outside of the worker process. It reveals nothing about the call's nonce or
-- about other leases.
create function helix.lease_nonce(p_nonce bigint, p_batch bigint) returns bigint
language sql immutable parallel safe as $$
  select ('x' || encode(substr(sha256(int8send(p_nonce) || int8send(p_batch)), 1, 8), 'hex'))::bit(64)::bigint
$$;

-- The queues whose leases this session may write to; null: all.
create function helix.scope_queues() returns integer[]
language plpgsql stable as $$
begin
  if current_setting('helix.scope', true) = '*' then
    return null;
  end if;
  return array(select q.id from helix.queue q);   -- Row-level security leaves those of the tenants.
end
$$;

-- Locks the rows of these batches and returns those whose token owns the lease, under the name of the worker that
-- has it: the batch and its position in the arrays, each batch once. Other transactions cannot change that until
-- this one ends. Every call that locks several rows takes them in the order of batches, and waits.
create function helix.lock_leases(
  p_worker text, p_batch bigint[], p_epoch int[], p_nonce bigint[], p_number bigint[],
  out place integer[], out batch bigint[]
) language plpgsql as $$
declare
  v_queues integer[] := helix.scope_queues();
begin
  perform from helix.work w where w.batch = any (p_batch) order by w.batch for update;
  select coalesce(array_agg(m.place), '{}'), coalesce(array_agg(m.batch), '{}') into place, batch
  from (select distinct on (u.batch) u.place::integer, u.batch
        from unnest(p_batch, p_epoch, p_nonce, p_number) with ordinality
          as u (batch, epoch, nonce, number, place)
        join helix.work w on w.batch = u.batch
        where w.number = u.number and w.epoch = u.epoch and w.state in ('ASSIGNED', 'RUNNING')
          and helix.is_worker(w.actor, p_worker)
          and (w.nonce = u.nonce or helix.lease_nonce(w.nonce, w.batch) = u.nonce)
          and (v_queues is null or w.queue = any (v_queues))
        order by u.batch, u.place) m;
end
$$;

-- Ends leases whose rows the caller has locked and whose tokens it has checked: the batch goes back to
-- PENDING, or to FAILED when its attempts are used up or the failure is permanent. One function, so that
-- a failure, a release, a lost lease and a recovery cannot differ in what they do.
create function helix.end_leases(
  p_batch bigint[], p_reason helix.reason, p_actor text, p_failure text[] default null,
  p_detail text[] default null, p_permanent boolean[] default null, p_after real[] default null
) returns setof helix.answer
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_entry bigint := helix.next_entry();
begin
  perform helix.activate_lanes(p_batch);
  return query
  with ending as materialized (
    select w.batch, e.goes_to, w.deadline < v_now and p_reason in ('failed', 'released') as overdue,
           case when e.goes_to = 'FAILED' then coalesce(u.failure, p_reason::text)
                else u.failure end as failure,
           u.detail, l.served,
           case when e.goes_to = 'FAILED' then null when d.delay > 0 then 'delay'
                when q.paused then 'paused' end::helix.cause as cause,
           case when e.goes_to = 'PENDING' and d.delay > 0
                then v_now + make_interval(secs => d.delay) end as due, w.run
    from unnest(p_batch) with ordinality as asked (batch, place)
    join helix.work w on w.batch = asked.batch
    join helix.queue q on q.id = w.queue
    join helix.lane l on l.id = w.lane
    left join helix.run r on r.id = w.run
    cross join lateral (
      -- Cut to what a row may hold: the report of a failure must not itself fail.
      select left(p_failure[asked.place], 60) as failure,
             case when octet_length(p_detail[asked.place]) <= 65536 then p_detail[asked.place]
                  else left(p_detail[asked.place], 16000) end as detail,
             p_after[asked.place] as after, p_permanent[asked.place] as permanent) u
    cross join lateral (
      select case when u.permanent or (p_reason <> 'released' and w.attempt >= coalesce(r.tries, q.max_attempts))
                  then 'FAILED' else 'PENDING' end::helix.state as goes_to) e
    cross join lateral (
      -- Only a failure waits: a released or lost lease is no fault of the batch.
      select case when p_reason = 'failed' then coalesce(
               case when u.after > 604800 then 604800 else u.after end,
               least(q.backoff_max_seconds, q.backoff_seconds * 2 ^ least(w.attempt - 1, 20))
               * (0.5 + random() / 2)) else 0 end as delay) d
  ),
  ended as (
    update helix.work w
    set state = e.goes_to, version = w.version + 1, version_before = w.version, reason = p_reason,
        late = e.overdue,
        actor = coalesce(p_actor, w.actor), attempt = w.attempt - (p_reason = 'released')::int,
        entry = v_entry, before = w.entry, came_from = w.state, changed_at = v_now, step = true,
        content = helix.content_hash(e.failure, e.detail, null),
        pending = e.goes_to = 'PENDING' and e.cause is null, cause = e.cause, due = e.due,
        -- Work that was started once does not queue up again: the turn after the one being served.
        turn = case when e.goes_to = 'PENDING' then e.served + 1 else w.turn end
    from ending e where w.batch = e.batch
    returning w.batch, w.version, w.queue, w.state, w.late, e.failure, e.detail, e.run
  ),
  said as (
    insert into helix.result (batch, version, queue, failure, detail)
    select d.batch, d.version, d.queue, d.failure, d.detail from ended d
    where d.failure is not null or d.detail is not null
  ),
  counted as (
    insert into helix.metric_change (tenant, name, queue, label, value)
    select q.tenant, n.name, q.name, n.label, count(*)
    from ended d
    join helix.queue q on q.id = d.queue
    cross join lateral (
      select 'helix_lease_reaped_total' as name, '' as label where p_reason = 'lost'
      union all
      select 'helix_attempt_failures_total', coalesce(d.failure, p_reason::text)
      where p_reason in ('failed', 'lost')) n
    group by q.tenant, n.name, q.name, n.label
  ),
  counted_of_run as (
    insert into helix.run_change (run, queue, what, label, value)
    select d.run, d.queue, 'failure', coalesce(d.failure, p_reason::text), count(*)
    from ended d where d.run is not null and p_reason in ('failed', 'lost')
    group by d.run, d.queue, 4
  )
  select d.batch, 'ok', null::text, d.state, d.late, false from ended d;
end
$$;

-- The answer where the token is not that of a live lease. A repeat of what this token did before gets
-- its answer from the row or the ledger; everything else is refused, and the refusal is kept with both
-- names (G2), also after retention.
create function helix.answer_stale(
  p_operation text, p_worker text, p_batch bigint[], p_epoch int[], p_nonce bigint[],
  p_number bigint[], p_reason helix.reason[], p_content bytea[] default null
) returns setof helix.answer
language plpgsql as $$
declare
  v_queues integer[] := helix.scope_queues();
begin
  return query
  with asked as materialized (
    select u.*, q.tenant, t.is_last, coalesce(w.state, b.state) as state_now,
           case when w.state in ('ASSIGNED', 'RUNNING') then w.actor
                when (w.epoch, w.number) <> (u.epoch, u.number) then heir.actor end as owner,
           case when w.state in ('ASSIGNED', 'RUNNING') or (w.epoch, w.number) <> (u.epoch, u.number)
                then w.number end as owner_number,
           coalesce(w.state in ('ASSIGNED', 'RUNNING') and t.is_last and helix.is_worker(w.actor, p_worker),
                    false) as is_owner,
           case when w.batch is null then false   -- retired
                -- The number of the last lease, but not its nonce: the token of another lease of that claim.
                when (w.epoch, w.number) = (u.epoch, u.number) and not t.is_last then false
                when t.is_last and w.reason = u.reason and helix.is_worker(w.actor, p_worker) then true
                else exists (select from helix.history_of(array[u.batch]) h
                             where h.epoch = u.epoch and h.number = u.number and h.reason = u.reason
                               and helix.is_worker(h.actor, p_worker)) end as was_done,
           t.is_last and w.reason = 'completed' and w.content is distinct from u.content as mismatch
    from unnest(p_batch, p_epoch, p_nonce, p_number, p_reason, p_content)
      as u (batch, epoch, nonce, number, reason, content)
    left join helix.batch b on b.id = u.batch and (v_queues is null or b.queue = any (v_queues))
    left join helix.queue q on q.id = b.queue
    left join helix.work w on w.batch = b.id
    left join lateral (select e.actor from helix.entry e where e.id = w.number order by e.part limit 1) heir
      on true
    cross join lateral (
      select coalesce((w.epoch, w.number) = (u.epoch, u.number)
                      and (w.nonce = u.nonce or helix.lease_nonce(w.nonce, w.batch) = u.nonce),
                      false) as is_last) t
  ),
  judged as materialized (
    select k.*, case
        when k.was_done and k.tenant is not null and (p_operation <> 'start' or k.is_owner) then 'repeat'
        when k.is_owner then 'illegal'
        else 'refused' end as verdict
    from asked k
  ),
  kept as (
    insert into helix.refusal as r (batch, epoch, number, operation, tenant, worker, owner,
                                    owner_number, state, why)
    -- Each token once, though a call may name it twice.
    select distinct on (j.batch, j.number, j.epoch)
           j.batch, j.epoch, j.number, p_operation, j.tenant, p_worker, j.owner, j.owner_number,
           j.state_now,
           case when j.is_last and j.owner is not null then format('the token is that of %s', j.owner)
                else format('the token is stale: the batch is %s%s', j.state_now,
                            case when j.owner is null then '' else format('; %s had it next', j.owner) end) end
    from judged j where j.verdict = 'refused' and j.tenant is not null
    order by j.batch, j.number, j.epoch
    on conflict (batch, number, epoch, operation, worker) do update
      -- The rest stays as it was first refused: seals cover it.
      set times = r.times + 1, last_at = clock_timestamp()
  )
  select j.batch, j.verdict, case j.verdict when 'refused' then j.owner end, j.state_now, false,
         j.verdict = 'repeat' and coalesce(j.mismatch, false)
  from judged j;
end
$$;

-- `answer_stale` for every element whose position is not in p_done. A call may contain two tokens of one batch, or
-- one token twice: one of them did the write, and the other one is answered here.
create function helix.answer_rest(
  p_operation text, p_worker text, p_done integer[], p_batch bigint[], p_epoch int[],
  p_nonce bigint[], p_number bigint[], p_reason helix.reason[], p_content bytea[] default null
) returns setof helix.answer
language sql volatile as $$
  select j.* from (
    select array_agg(u.batch) as batch, array_agg(u.epoch) as epoch, array_agg(u.nonce) as nonce,
           array_agg(u.number) as number, array_agg(u.reason) as reason, array_agg(u.content) as content
    from unnest(p_batch, p_epoch, p_nonce, p_number, p_reason, p_content) with ordinality
      as u (batch, epoch, nonce, number, reason, content, place)
    where u.place <> all (p_done)) rest
  cross join lateral helix.answer_stale(p_operation, p_worker, rest.batch, rest.epoch, rest.nonce,
                                        rest.number, rest.reason, rest.content) j
$$;
