-- The pieces that claim, reap, settle, release and recover share: tokens, judging a stale one, and
-- moving a batch out of its lease.

create type helix.answer as (
  batch  bigint,
  answer text,          -- ok | repeat | refused | busy | illegal
  owner  text,          -- refused: who was given the batch next, if anybody
  state  helix.state,   -- where the batch stands after this
  late   boolean        -- ok, though the lease had run out (nobody else had taken the batch)
);

-- The next epoch: above the last one known, and above all that earlier timelines can have had. A
-- failover may lose epochs with the tail of the log, and counting on would give them out again.
create function helix.next_epoch(p_timeline text) returns integer
language sql stable as $$
  select greatest(coalesce(max(e.number), 0) + 1, (('x' || p_timeline)::bit(32)::int - 1) << 12)
  from helix.epoch e
$$;

-- The epoch of tokens. The first eight digits of the WAL file's name are the timeline: after a
-- failover or a point-in-time restore it differs from the one noted, and a new epoch begins before
-- the first token is handed out.
create function helix.current_epoch() returns integer
language plpgsql as $$
declare
  v_epoch    helix.epoch;
  v_timeline text := substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8);
begin
  select * into v_epoch from helix.epoch e order by e.number desc limit 1;
  if v_epoch.timeline = v_timeline then
    return v_epoch.number;
  end if;
  -- Two callers may notice at once; the primary key lets one row in and both read it.
  insert into helix.epoch (number, timeline, reason)
  values (helix.next_epoch(v_timeline), v_timeline, 'timeline')
  on conflict do nothing;
  select * into v_epoch from helix.epoch e order by e.number desc limit 1;
  return v_epoch.number;
end
$$;

-- Many callers share the duties; whoever finds some due does them, and nobody waits. Returns the
-- duties that fell to this caller.
create function helix.duties_due() returns text[]
language plpgsql as $$
declare
  v_due text[];
begin
  -- Mostly none is, and then a look without a lock is all there is to do.
  if not exists (select from helix.pulse p where p.next_at < clock_timestamp()) then
    return null;
  end if;
  select array_agg(d.duty) into v_due from (
    select p.duty from helix.pulse p where p.next_at < clock_timestamp()
    order by p.duty for update skip locked) d;
  if v_due is not null then
    update helix.pulse p set next_at = clock_timestamp() + p.every where p.duty = any (v_due);
  end if;
  return v_due;
end
$$;

-- Ends leases whose rows the caller has locked and whose tokens it has checked: the batch goes back
-- to PENDING, or to FAILED when its tries are used up or the failure is permanent. One place, so
-- that a failure, a release, a lost lease and a recovery cannot differ in what they do.
create function helix.vacate(
  p_batch bigint[], p_reason helix.reason, p_actor text, p_failure text[] default null,
  p_detail text[] default null, p_permanent boolean[] default null, p_after real[] default null
) returns setof helix.answer
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.lock_keys(p_batch);
  return query
  with ended as materialized (
    select a.*, u.failure as failure_class, u.detail as failure_detail,
           -- Late is what a worker does after its deadline; that a lease was reaped says it already.
           a.deadline < v_now and p_reason in ('failed', 'released') as overdue,
           q.paused, b.expires_at, e.goes_to,
           -- Only a failure waits: what was released or lost is good work that met a bad worker.
           case when p_reason = 'failed' then coalesce(u.after,
             least(q.backoff_max_seconds, q.backoff_seconds * 2 ^ least(a.attempt - 1, 20))
             * (0.5 + random() / 2)) else 0 end as delay
    from helix.active a
    join helix.batch b on b.id = a.batch
    join helix.queue q on q.tenant = a.tenant and q.name = a.queue
    cross join lateral (select array_position(p_batch, a.batch) as place) at
    cross join lateral (
      -- Cut to what a row may hold: the report of a failure must not itself fail.
      select left(p_failure[at.place], 60) as failure, left(p_detail[at.place], 16000) as detail,
             p_after[at.place] as after, p_permanent[at.place] as permanent) u
    cross join lateral (
      select case when u.permanent or (p_reason <> 'released' and a.attempt >= q.max_attempts)
                  then 'FAILED' else 'PENDING' end::helix.state as goes_to) e
    where a.batch = any (p_batch)
  ),
  gone as (delete from helix.active a using ended e where a.batch = e.batch),
  failed as (
    insert into helix.outcome (batch, tenant, state, ending, version, attempt, epoch, number, actor,
                               reason, detail, late, lane, queue, failure)
    select e.batch, e.tenant, 'FAILED', 2, e.version + 1, e.attempt, e.epoch, e.number,
           coalesce(p_actor, e.worker), p_reason, e.failure_detail,
           e.overdue, e.lane, e.queue, coalesce(e.failure_class, p_reason::text)
    from ended e where e.goes_to = 'FAILED'
  ),
  waits as (
    insert into helix.waiting (batch, tenant, version, attempt, epoch, number, actor, reason, detail,
                               late, lane, queue, cause, due, limit_key, expires_at)
    select e.batch, e.tenant, e.version + 1, e.attempt - (p_reason = 'released')::int, e.epoch,
           e.number, coalesce(p_actor, e.worker), p_reason, e.failure_detail,
           e.overdue, e.lane, e.queue,
           case when e.delay > 0 then 'delay' else 'paused' end::helix.cause,
           case when e.delay > 0 then v_now + make_interval(secs => e.delay) end,
           e.limit_key, e.expires_at
    from ended e where e.goes_to = 'PENDING' and (e.delay > 0 or e.paused)
  ),
  again as (
    insert into helix.ready (batch, tenant, version, attempt, epoch, number, actor, reason, detail,
                             late, lane, turn, limit_key, expires_at)
    select e.batch, e.tenant, e.version + 1, e.attempt - (p_reason = 'released')::int, e.epoch,
           e.number, coalesce(p_actor, e.worker), p_reason, e.failure_detail,
           e.overdue, e.lane,
           -- What was begun once does not queue up again: the turn after the one being served.
           (select l.served + 1 from helix.lane l where l.id = e.lane), e.limit_key, e.expires_at
    from ended e where e.goes_to = 'PENDING' and e.delay <= 0 and not e.paused
  )
  select e.batch, 'ok', null::text, e.goes_to, e.overdue from ended e;
end
$$;

-- What to answer where the token in hand is not that of the lease. A repeat of what this very token
-- did before gets its answer from the ledger; everything else is refused, and the refusal is kept
-- with both names (G2).
create function helix.judge(
  p_operation text, p_worker text, p_batch bigint[], p_epoch int[], p_nonce bigint[],
  p_number bigint[], p_reason helix.reason[]
) returns setof helix.answer
language plpgsql as $$
begin
  return query
  with asked as materialized (
    select u.*, b.tenant, helix.state_of(u.batch) as state_now,
           coalesce(a.worker, heir.actor) as owner, coalesce(a.number, heir.number) as owner_number,
           coalesce((a.epoch, a.nonce, a.number) = (u.epoch, u.nonce, u.number), false) as is_owner,
           done.version is not null as was_done
    from unnest(p_batch, p_epoch, p_nonce, p_number, p_reason)
      as u (batch, epoch, nonce, number, reason)
    left join helix.batch b on b.id = u.batch
    left join helix.active a on a.batch = u.batch
    -- Where nobody holds the batch now: who was given it after this token and has finished.
    left join lateral (
      select e.actor, e.epoch, e.number from helix.event e
      where e.batch = u.batch and e.to_state = 'ASSIGNED'
      order by e.version desc limit 1) heir on (heir.epoch, heir.number) <> (u.epoch, u.number)
    left join lateral (
      select e.version from helix.event e
      where e.batch = u.batch and e.epoch = u.epoch and e.number = u.number
        and e.reason = u.reason and e.actor = p_worker limit 1) done on true
  ),
  judged as materialized (
    select k.*, case
        when k.was_done and (p_operation <> 'start' or k.is_owner) then 'repeat'
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
           format('token %s is stale: the batch is %s%s', j.number,
                  coalesce(j.state_now::text, 'retired'),
                  case when j.owner is null then ''
                       else format('; %s had it next, under %s', j.owner, j.owner_number) end)
    from judged j where j.verdict = 'refused' and j.tenant is not null
    order by j.batch, j.number, j.epoch
    on conflict (batch, number, epoch, operation) do update
      set times = r.times + 1, last_at = clock_timestamp(), owner = excluded.owner,
          owner_number = excluded.owner_number, state = excluded.state, why = excluded.why
  )
  select j.batch, j.verdict, case j.verdict when 'refused' then j.owner end, j.state_now, false
  from judged j;
end
$$;

-- The rows of these batches, locked in the common order (by batch, waiting: whoever holds several has
-- taken them in this order), and which of the tokens own theirs: their places in the arrays, each
-- batch once, the batches, and where their rows stand; and whether any has a limit key. From here to
-- the end of the transaction nobody can change that.
create function helix.hold(
  p_batch bigint[], p_epoch int[], p_nonce bigint[], p_number bigint[],
  out place integer[], out batch bigint[], out tuple tid[], out limited boolean
) language plpgsql as $$
begin
  -- IN in the select list is a hash look-up; a join would be planned for ten rows, and compare a
  -- hundred with a hundred.
  with locked as materialized (
    select a.batch, a.ctid, a.epoch, a.nonce, a.number, a.limit_key from helix.active a
    where a.batch = any (p_batch) order by a.batch for update
  )
  select coalesce(array_agg(m.place), '{}'), coalesce(array_agg(m.batch), '{}'),
         array_agg((select l.ctid from locked l where l.batch = m.batch)),
         exists (select from locked l where l.limit_key is not null)
  into place, batch, tuple, limited
  from (select distinct on (u.batch) u.place::integer, u.batch
        from (select g.batch, g.place,
                     (g.batch, g.epoch, g.nonce, g.number) in (
                       select l.batch, l.epoch, l.nonce, l.number from locked l) as mine
              from unnest(p_batch, p_epoch, p_nonce, p_number) with ordinality
                as g (batch, epoch, nonce, number, place)
              offset 0) u
        where u.mine order by u.batch, u.place) m;
end
$$;
