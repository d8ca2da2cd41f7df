-- Reconciliation: two duties compare ledger, claim requests and work rows with each other while everything runs.
-- `reconcile` reads what is new since its last run and what is live; `audit` reads every row once a day, a part
-- per run. Triggers and keys make each of these violations impossible; the loop finds what happened
-- while they were off, and work that no worker claims.

-- What was found. A finding stays until it no longer holds; then it is cleared, and kept.
create table helix.finding (
  kind       text not null check (kind in (
    'duplicate_assignment',  -- the batch has more than one live assignment
    'audit_missing',         -- an assignment or a step of the batch has no ledger entry
    'lease_overdue',         -- the lease expired more than its own length ago, and nothing reaped it
    'stalled_pending')),     -- claimable for longer than the queue's stalled_after; batch is the oldest
  batch      bigint not null,              -- 0: unknown
  number     bigint not null,              -- of the lease or entry: each of them is found once
  queue      integer not null,             -- 0: unknown
  found_at   timestamptz not null default clock_timestamp(),
  seen_at    timestamptz not null default clock_timestamp(),
  cleared_at timestamptz,
  detail     helix.long_text not null,
  primary key (kind, batch, number)
);
create index finding_open on helix.finding (kind, batch, number) where cleared_at is null;

do $$
begin
  perform helix.protect_table('helix.finding'::regclass, 'helix.guard'::regproc);
end
$$;

-- Records findings. A new one of kind audit_missing is counted, each once.
create function helix.record_findings(p_new helix.finding[]) returns integer
language plpgsql as $$
declare
  v_count integer;
begin
  with kept as (
    insert into helix.finding as f (kind, batch, number, queue, detail)
    select distinct on (n.kind, n.batch, n.number) n.kind, n.batch, n.number, n.queue, n.detail
    from unnest(p_new) n order by n.kind, n.batch, n.number
    on conflict (kind, batch, number) do update
      set seen_at = clock_timestamp(), cleared_at = null, detail = excluded.detail
    returning f.kind, f.queue, f.xmax = 0 as is_new
  ),
  counted as (
    insert into helix.metric_change (tenant, name, queue, value)
    select coalesce(q.tenant, '*'), 'helix_audit_missing_total', coalesce(q.name, ''), count(*)
    from kept k left join helix.queue q on q.id = k.queue
    where k.kind = 'audit_missing' and k.is_new
    group by q.tenant, q.name
  )
  select count(*) into v_count from kept k where k.is_new;
  return v_count;
end
$$;

-- A finding as the functions below return it; the table adds the times.
create function helix.new_finding(
  p_kind text, p_batch bigint, p_number bigint, p_queue integer, p_detail text
) returns helix.finding
language sql stable as $$
  select row(p_kind, p_batch, p_number, coalesce(p_queue, 0), null, null, null, p_detail)::helix.finding
$$;

-- Whether a claim of this batch by this ledger entry is a live assignment besides another one. The ledger
-- decides: a lease is over when a later step of the batch's history ends it.
create function helix.is_doubled(p_batch bigint, p_number bigint) returns boolean
language plpgsql stable
set enable_seqscan = off set jit = off as $$
declare
  v_work  helix.work;
  v_claim helix.entry;
begin
  select * into v_work from helix.work w
  where w.batch = p_batch and w.state in ('PENDING', 'ASSIGNED', 'RUNNING');
  select * into v_claim from helix.entry e
  where e.id = p_number and p_batch = any (e.batch) and e.from_state = 'PENDING'
    and e.to_state in ('ASSIGNED', 'RUNNING') limit 1;
  if v_work.batch is null or v_claim.id is null
     -- A later `helixq recover` ended every lease.
     or exists (select from helix.epoch e where e.started_at > v_claim.at and e.reason <> 'server')
  then
    return false;
  end if;
  if v_work.number is distinct from p_number then
    return not exists (select from helix.history_of(array[p_batch]) h
                       where h.number = p_number and h.to_state not in ('ASSIGNED', 'RUNNING'));
  end if;
  return v_work.state <> 'PENDING' and (
    -- It was claimed while another claim held it.
    not exists (select from helix.entry p
                where p.id = v_claim.before[array_position(v_claim.batch, p_batch)]
                  and p.to_state = 'PENDING')
    -- Two claim calls name the same lease.
    or (select count(*) from helix.request r where r.number = p_number) > 1);
end
$$;

-- Clears findings that no longer hold.
create function helix.clear_findings() returns void
language plpgsql
set enable_seqscan = off set jit = off as $$
begin
  update helix.finding f set cleared_at = clock_timestamp()
  where f.cleared_at is null and not case f.kind
    when 'duplicate_assignment' then helix.is_doubled(f.batch, f.number)
    when 'lease_overdue' then exists (
      select from helix.work w
      where w.batch = f.batch and w.number = f.number and w.state in ('ASSIGNED', 'RUNNING')
        and w.deadline < clock_timestamp() - helix.overdue_after(w.lease_seconds))
    when 'audit_missing' then not exists (select from helix.entry e where e.id = f.number)
      or exists (select from unnest(helix.find_in_rows(f.batch - 1, f.batch)) n
                 where n.kind = 'audit_missing')
    -- Recorded again in every run: in this transaction, if it still holds.
    else f.seen_at >= transaction_timestamp() end;
end
$$;

-- How long past its deadline a lease is overdue: its own length, and at least five seconds, in which the
-- reaper comes by several times.
create function helix.overdue_after(p_seconds real) returns interval
language sql immutable parallel safe as $$
  select make_interval(secs => greatest(p_seconds, 5))
$$;

-- The duty `reconcile`: new claims, live claim calls, overdue leases, stalled batches.
create function helix.reconcile(p_limit integer) returns integer
language plpgsql
set enable_bitmapscan = on set enable_sort = on set jit = off as $$
declare
  c_span    constant bigint := 20000;   -- transactions of one run
  v_mark    bigint := (select d.mark from helix.duty d where d.duty = 'reconcile');
  v_reached bigint := helix.reached_position();
  v_edge    bigint;
  v_found   integer;
begin
  v_mark := helix.first_record(v_mark, v_reached);
  v_edge := least(v_reached, v_mark + c_span);
  v_found := helix.record_findings(
    helix.find_in_claims(v_mark, v_edge) || helix.find_in_requests() || helix.find_stalled());
  update helix.duty d set mark = v_edge where d.duty = 'reconcile';
  perform helix.clear_findings();
  perform helix.measure_findings();
  return case when v_edge < v_reached then p_limit else least(v_found, p_limit - 1) end;
end
$$;

-- Claims in the ledger between two transactions, compared with the rows of their batches. In a healthy
-- database the row has the number of this claim or of a later one, and the step before led to PENDING.
create function helix.find_in_claims(p_from bigint, p_to bigint) returns helix.finding[]
language plpgsql stable
set enable_bitmapscan = on set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off as $$
begin
  return array(
    with claimed as materialized (
      select e.id, u.batch, u.queue, u.before
      from helix.entry e cross join lateral unnest(e.batch, e.queue, e.before) as u (batch, queue, before)
      where e.position >= p_from and e.position < p_to and e.from_state = 'PENDING'
        and e.to_state in ('ASSIGNED', 'RUNNING')
    ),
    -- Entries are shared by many batches: each is looked up once.
    before as materialized (
      select d.before, p.known, p.waits
      from (select distinct c.before from claimed c) d
      cross join lateral (select count(*) > 0 as known, coalesce(bool_or(e.to_state = 'PENDING'), false) as waits
                          from helix.entry e where e.id = d.before) p
      where not (p.known and p.waits)
    ),
    -- Materialized: else the planner asks is_doubled about every claim first.
    suspect as materialized (
      select c.id, c.batch, c.queue from claimed c
      left join lateral (select w.number from helix.work w where w.batch = c.batch limit 1) w on true
      where w.number < c.id
         or c.before in (select b.before from before b where b.known)
      union
      select c.id, c.batch, c.queue from claimed c
      where (c.batch, c.before) in (select d.batch, d.before from claimed d
                                    group by d.batch, d.before having count(*) > 1)
    )
    select helix.new_finding('duplicate_assignment', s.batch, s.id, s.queue,
                             format('ledger entry %s claims a batch that has another live assignment', s.id))
    from suspect s where helix.is_doubled(s.batch, s.id)
    union all
    select helix.new_finding('audit_missing', c.batch, c.before, c.queue,
                             format('ledger entry %s continues entry %s, which does not exist', c.id, c.before))
    from claimed c where c.before in (select b.before from before b where not b.known));
end
$$;

-- Claim calls whose leases may be live. Each has its ledger entry; each of its leases is the one that the row
-- of its batch has, or has ended.
create function helix.find_in_requests() returns helix.finding[]
language plpgsql stable
set enable_bitmapscan = on set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return array(
    with live as materialized (
      select r.number, count(*) as calls from helix.request r
      where r.due is not null group by r.number order by r.number desc limit 20000
    ),
    leased as materialized (
      select l.number, l.calls, u.batch, u.queue, w.number as row_number, w.state, w.deadline,
             w.lease_seconds, w.actor
      from live l
      join helix.entry e on e.id = l.number
      cross join lateral unnest(e.batch, e.queue) as u (batch, queue)
      left join lateral (select k.number, k.state, k.deadline, k.lease_seconds, k.actor from helix.work k
                         where k.batch = u.batch limit 1) w on true
    )
    select helix.new_finding('audit_missing', 0, l.number, 0,
                             format('claim call %s has no ledger entry', l.number))
    from live l where not exists (select from helix.entry e where e.id = l.number)
    union all
    select helix.new_finding('duplicate_assignment', l.batch, l.number, l.queue,
                             format('claim call %s assigned a batch that is assigned by %s', l.number,
                                    coalesce(l.row_number::text, 'no call')))
    from leased l
    where (l.row_number is distinct from l.number or l.calls > 1) and helix.is_doubled(l.batch, l.number)
    union all
    select helix.new_finding('lease_overdue', l.batch, l.number, l.queue,
                             format('the lease of %s ended at %s and was not reaped', l.actor, l.deadline))
    from leased l
    where l.row_number = l.number and l.state in ('ASSIGNED', 'RUNNING')
      and l.deadline < v_now - helix.overdue_after(l.lease_seconds));
end
$$;

-- Queues with claimable batches that wait for longer than the queue allows. The first thousand of each lane
-- are read: what is behind them waits for them. A batch is claimable since its last step, later if it was
-- delayed or its queue was paused. How long a limit key blocked it is not known: then it may be reported
-- from the moment it is free until it is claimed.
create function helix.find_stalled() returns helix.finding[]
language plpgsql stable
set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return array(
    select helix.new_finding('stalled_pending', q.id, 0, q.id, json_build_object(
             'number', s.number, 'oldest', s.oldest, 'batch', s.batch)::text)
    from helix.queue q
    cross join lateral (
      select count(*) as number, min(w.changed_at) as oldest,
             (array_agg(w.batch order by w.changed_at))[1] as batch
      from helix.lane l
      cross join lateral (select p.batch, p.changed_at from helix.work p
                          where p.pending and p.queue = q.id and p.lane = l.id
                          order by p.queue, p.lane, p.turn, p.batch limit 1000) w
      where l.queue = q.name
        and w.changed_at < v_now - make_interval(secs => q.stalled_after_seconds)
        and helix.claimable_since(w.batch, q) < v_now - make_interval(secs => q.stalled_after_seconds)) s
    where not q.paused and s.number > 0);
end
$$;

-- The earliest time from which the batch can have been claimable.
create function helix.claimable_since(p_batch bigint, p_queue helix.queue) returns timestamptz
language sql stable as $$
  select greatest(
    w.changed_at + case when w.reason = 'failed' then make_interval(secs => least(
                     p_queue.backoff_max_seconds, p_queue.backoff_seconds * 2 ^ least(w.attempt - 1, 20)))
                   else interval '0' end,
    b.run_at, case when p_queue.updated_at > p_queue.created_at then p_queue.updated_at end)
  from helix.work w join helix.batch b on b.id = w.batch where w.batch = p_batch
$$;

-- The gauges of findings, for every queue.
create function helix.measure_findings() returns void
language plpgsql
set enable_seqscan = on set enable_hashjoin = on set jit = off as $$
begin
  perform helix.set_gauges(
    '{helix_missing_audit_entries,helix_duplicate_active_assignments,helix_leases_overdue,helix_stalled_pending}',
    array(
      select row(coalesce(q.tenant, '*'), n.name, coalesce(q.name, ''), '',
                 coalesce(sum(case n.kind when 'stalled_pending' then (f.detail::json ->> 'number')::int
                              else 1 end) filter (where f.kind is not null), 0))::helix.metric
      from (values ('audit_missing', 'helix_missing_audit_entries'),
                   ('duplicate_assignment', 'helix_duplicate_active_assignments'),
                   ('lease_overdue', 'helix_leases_overdue'),
                   ('stalled_pending', 'helix_stalled_pending')) as n (kind, name)
      cross join (select q.id, q.tenant, q.name from helix.queue q
                  union all select 0, null, null) q
      left join helix.finding f on f.kind = n.kind and f.queue = q.id and f.cleared_at is null
      group by q.tenant, q.name, n.name
      having q.name is not null or count(f.kind) > 0));
end
$$;

-- The duty `audit`: every row of helix.work, a range of batches per run, from the first again after the last.
-- At least twenty thousand rows per run, and so many that a day covers all.
create function helix.audit_rows(p_limit integer) returns integer
language plpgsql
set enable_bitmapscan = on set enable_hashjoin = on set enable_seqscan = on set enable_sort = on
set jit = off as $$
declare
  v_mark  bigint := (select d.mark from helix.duty d where d.duty = 'audit');
  v_rows  integer := greatest(20000, (select c.reltuples / 1000 from pg_class c
                                      where c.oid = 'helix.work'::regclass)::integer);
  v_last  bigint;
  v_found integer;
begin
  select max(r.batch) into v_last
  from (select w.batch from helix.work w where w.batch > v_mark order by w.batch limit v_rows) r;
  v_found := helix.record_findings(helix.find_in_rows(v_mark, v_last));
  update helix.duty d
  set mark = case when exists (select from helix.work w where w.batch > v_last) then v_last else 0 end
  where d.duty = 'audit';
  perform helix.measure_findings();
  return least(v_found, p_limit - 1);
end
$$;

-- Rows of a range of batches whose last step, or whose last claim, is not in the ledger as it should;
-- and leases that are overdue, also those that no claim call leads to.
create function helix.find_in_rows(p_after bigint, p_last bigint) returns helix.finding[]
language plpgsql stable
set enable_hashjoin = on set enable_bitmapscan = on set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return array(
    with item as materialized (
      select w.batch, w.queue, w.entry, w.number, w.state, w.version, w.deadline, w.lease_seconds, w.actor,
             w.state in ('ASSIGNED', 'RUNNING') as leased
      from helix.work w where w.batch > p_after and w.batch <= p_last
    ),
    ids as materialized (
      select i.entry as id from item i union select i.number from item i where i.number is not null
    ),
    step as materialized (
      select e.id, e.from_state, e.to_state, u.batch, u.version
      from ids join helix.entry e on e.id = ids.id
      cross join lateral unnest(e.batch, e.version) as u (batch, version)
    )
    select helix.new_finding('audit_missing', i.batch, i.entry, i.queue,
                             format('version %s, %s, has no ledger entry', i.version, i.state))
    from item i
    left join step s on s.id = i.entry and s.batch = i.batch and s.to_state = i.state
                    and s.version = i.version
    where s.id is null
    union all
    select helix.new_finding('audit_missing', i.batch, i.number, i.queue,
                             format('claim %s, the last one of the batch, has no ledger entry', i.number))
    from item i
    left join step s on s.id = i.number and s.batch = i.batch and s.from_state = 'PENDING'
    where i.number <> i.entry and s.id is null
    union all
    select helix.new_finding('duplicate_assignment', i.batch, i.number, i.queue,
                             format('%s was assigned a batch that was assigned already', i.actor))
    from item i where i.leased and helix.is_doubled(i.batch, i.number)
    union all
    select helix.new_finding('lease_overdue', i.batch, i.number, i.queue,
                             format('the lease of %s ended at %s and was not reaped', i.actor, i.deadline))
    from item i
    where i.leased and i.deadline < v_now - helix.overdue_after(i.lease_seconds));
end
$$;
