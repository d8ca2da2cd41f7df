-- Metrics that must be right across processes: a duty keeps counters and gauges in helix.metric, for every tenant
-- and queue, and services export them. A reap or a refusal of any process is counted once; a restart loses nothing.

-- The current value of each series: `name` of the Prometheus metric, `label` its own label's value, or empty.
create table helix.metric (
  tenant text not null check (tenant <> ''),   -- *: of no tenant, for operators
  name   text not null,
  queue  text not null default '',             -- empty: of no queue
  label  text not null default '' check (octet_length(label) <= 700),  -- two values are parted by \x1f
  value  double precision not null,
  primary key (name, tenant, queue, label)
) with (fillfactor = 50);

-- Changes of counters, each added in the transaction that it counts and folded into helix.metric by the duty.
-- An update of the counter itself would make concurrent calls wait for each other.
create table helix.metric_change (
  tenant text not null,
  name   text not null,
  queue  text not null default '',
  label  text not null default '',
  value  double precision not null
);

-- Counts submissions whose identity was not in its canonical form, whatever became of them.
create function helix.count_respelled(p_tenant text, p_queue text, p_number bigint) returns void
language plpgsql as $$
begin
  insert into helix.metric_change (tenant, name, queue, value)
  values (p_tenant, 'helix_id_normalization_changed_total', p_queue, p_number);
end
$$;

-- Counts submissions that made no batch, by decision; a duplicate also shows that a second assignment was prevented. A refused identity is counted by itself as well: its
-- record has the raw bytes (note_refused_v1).
create function helix.count_decisions() returns trigger
language plpgsql as $$
begin
  insert into helix.metric_change (tenant, name, queue, label, value)
  select n.tenant, 'helix_submissions_total', n.queue, n.kind, sum(n.times) from arrived n
  where n.kind in ('duplicate', 'conflict', 'refused')
  group by n.tenant, n.queue, n.kind
  union all
  select n.tenant, 'helix_assign_conflict_total', n.queue, 'submit', sum(n.times) from arrived n
  where n.kind = 'duplicate' group by n.tenant, n.queue
  union all
  select n.tenant, 'helix_identity_refused_total', n.queue, '', sum(n.times) from arrived n
  where n.kind = 'refused' and n.detail like '{"why": %"raw_hex": "%'
  group by n.tenant, n.queue;
  return null;
end
$$;
create trigger count_decisions after insert on helix.decision
  referencing new table as arrived for each statement execute function helix.count_decisions();
alter table helix.decision enable always trigger count_decisions;

-- Counts refused writes of stale tokens. A repeat of one raises the number in its row: one more.
create function helix.count_refusals() returns trigger
language plpgsql as $$
begin
  insert into helix.metric_change (tenant, name, queue, label, value)
  select n.tenant, 'helix_stale_writes_total', coalesce(q.name, ''), n.operation, count(*)
  from arrived n
  left join helix.batch b on b.id = n.batch
  left join helix.queue q on q.id = b.queue
  group by n.tenant, q.name, n.operation;
  return null;
end
$$;
create trigger count_new_refusals after insert on helix.refusal
  referencing new table as arrived for each statement execute function helix.count_refusals();
create trigger count_repeated_refusals after update on helix.refusal
  referencing new table as arrived for each statement execute function helix.count_refusals();
alter table helix.refusal enable always trigger count_new_refusals,
  enable always trigger count_repeated_refusals;

do $$
begin
  perform helix.protect_table('helix.metric'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.metric_change'::regclass, 'helix.guard'::regproc);
end
$$;

-- The duty: folds changes and new ledger entries into the counters, then measures the gauges. Returns p_limit
-- if there is more to fold, else the number of changed series.
create function helix.keep_metrics(p_limit integer) returns integer
language plpgsql as $$
declare
  v_reached bigint := helix.reached_position();
  v_edge    bigint := helix.follow_ledger();
begin
  perform helix.forget_rollup(p_limit);
  perform helix.start_series();
  p_limit := case when v_edge < v_reached then p_limit else least(helix.fold_changes(), p_limit - 1) end;
  perform helix.measure_queues();
  perform helix.measure_fences();
  perform helix.measure_feeds();
  perform helix.measure_streams();
  perform helix.measure_outputs();
  perform helix.measure_misfits();
  perform helix.measure_server();
  return p_limit;
end
$$;

-- The position of the first record from p_from on; p_to if there is none before that. Other databases use
-- transaction numbers too, and most of an epoch's are never used: ranges without a record are skipped, ever larger
-- ones.
create function helix.first_record(p_from bigint, p_to bigint) returns bigint
language plpgsql stable
set enable_bitmapscan = on set jit = off as $$
declare
  v_span  bigint := 5000;
  v_edge  bigint;
  v_first bigint;
begin
  while p_from < p_to loop
    v_edge := least(p_to, p_from + v_span);
    select min(c.position) into v_first
    from (select e.position from helix.entry e where e.position >= p_from and e.position < v_edge
          union all
          select f.position from helix.fence_event f where f.position >= p_from and f.position < v_edge
          union all
          select d.position from helix.fence_decision d where d.position >= p_from and d.position < v_edge
          union all
          select r.position from helix.refusal r where r.position >= p_from and r.position < v_edge
          union all
          select d.position from helix.decision d where d.position >= p_from and d.position < v_edge) c;
    if v_first is not null then
      return v_first;
    end if;
    p_from := v_edge;
    v_span := least(v_span * 4, 1::bigint << 60);
  end loop;
  return p_to;
end
$$;

-- Folds new ledger entries, decisions, refusals and calls of fences, a range of transactions per call; returns the first one that is
-- not folded. Archiving calls it too, before it empties entries. The duty's row is locked; while another process folds, it does nothing.
create function helix.follow_ledger() returns bigint
language plpgsql
set enable_bitmapscan = on set jit = off as $$
declare
  c_span    constant bigint := 5000;
  v_reached bigint := helix.reached_position();
  v_mark    bigint;
  v_edge    bigint;
begin
  select d.mark into v_mark from helix.duty d where d.duty = 'metrics' for update skip locked;
  if not found then
    return (select d.mark from helix.duty d where d.duty = 'metrics');
  end if;
  v_mark := helix.first_record(v_mark, v_reached);
  v_edge := least(v_reached, v_mark + c_span);
  perform helix.fold_entries(v_mark, v_edge);
  perform helix.count_fences(v_mark, v_edge);
  perform helix.roll_up(v_mark, v_edge);
  update helix.duty d set mark = v_edge where d.duty = 'metrics';
  return v_edge;
end
$$;

-- Counters of every queue, from zero: Prometheus sees an increase only of a series that it has seen before.
create function helix.start_series() returns void
language sql volatile as $$
  insert into helix.metric (tenant, name, queue, label, value)
  select q.tenant, n.name, q.name, n.label, 0
  from helix.queue q
  cross join (values ('helix_lease_reaped_total', ''), ('helix_audit_missing_total', ''),
                     ('helix_id_normalization_changed_total', ''), ('helix_identity_refused_total', ''),
                     ('helix_assign_conflict_total', 'submit'), ('helix_assign_conflict_total', 'claim'),
                     ('helix_stale_writes_total', 'settle'), ('helix_stale_writes_total', 'renew'),
                     ('helix_stale_writes_total', 'outputs'),
                     ('helix_submissions_total', 'new'), ('helix_submissions_total', 'duplicate'),
                     ('helix_submissions_total', 'conflict'), ('helix_submissions_total', 'refused'),
                     ('helix_batches', 'PENDING'), ('helix_batches', 'ASSIGNED'),
                     ('helix_batches', 'RUNNING'), ('helix_batches', 'FAILED')) as n (name, label)
  -- One of them stands for all, which exist since the first run after the queue was made.
  where not exists (select from helix.metric m where m.name = 'helix_batches' and m.tenant = q.tenant
                    and m.queue = q.name and m.label = 'FAILED')
  on conflict do nothing
$$;

-- The bucket of a duration, by its upper bound (records/metric.py has the same bounds).
create function helix.latency_bucket(p_seconds double precision) returns text
language sql immutable parallel safe as $$
  select (array['0.01', '0.1', '0.5', '1', '5', '15', '60', '300', '900', '3600', '14400', '+Inf'])
           [1 + width_bucket(p_seconds, array[0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400]::float8[])]
$$;

-- Sums of ledger entries between two transactions: all of them have ended, so nothing is missed or counted
-- twice. Batches by state follow from the arrows, and durations from the entry of the start.
create function helix.fold_entries(p_from bigint, p_to bigint) returns void
language plpgsql
set enable_bitmapscan = on set enable_hashjoin = on set jit = off as $$
begin
  insert into helix.metric_change (tenant, name, queue, label, value)
  with seen as materialized (
    select e.at, e.from_state, e.to_state, e.reason, e.queue, e.before from helix.entry e
    where e.position >= p_from and e.position < p_to and e.batch is not null
  ),
  moved as materialized (
    select u.queue, s.from_state, s.to_state, count(*) as number
    from seen s cross join lateral unnest(s.queue) as u (queue)
    group by u.queue, s.from_state, s.to_state
  ),
  -- Attempts that their worker ended.
  ended as materialized (
    select u.queue, u.before, s.at, count(*) as number
    from seen s cross join lateral unnest(s.queue, s.before) as u (queue, before)
    where s.reason in ('completed', 'failed') group by u.queue, u.before, s.at
  ),
  timed as materialized (
    select d.queue, d.number, greatest(extract(epoch from d.at - b.at), 0)::double precision as seconds
    from ended d
    cross join lateral (select p.at from helix.entry p where p.id = d.before order by p.part limit 1) b
  ),
  change as (
    select m.queue, 'helix_batches' as name, m.to_state::text as label, m.number::double precision as value
    from moved m
    union all
    select m.queue, 'helix_batches', m.from_state::text, -m.number from moved m
    where m.from_state is not null
    union all
    select m.queue, 'helix_submissions_total', 'new', m.number from moved m where m.from_state is null
    union all
    select t.queue, 'helix_process_latency_seconds', helix.latency_bucket(t.seconds), t.number from timed t
    union all
    select t.queue, 'helix_process_latency_seconds', 'sum', t.seconds * t.number from timed t
  )
  select q.tenant, c.name, q.name, c.label, sum(c.value)
  from change c join helix.queue q on q.id = c.queue
  group by q.tenant, c.name, q.name, c.label;
end
$$;

-- Adds the changes to the series and deletes them. A queue has at most twenty failure classes: a program that
-- writes ids into them must not create a series for each.
create function helix.fold_changes() returns integer
language plpgsql
set enable_seqscan = on set enable_hashjoin = on set jit = off as $$
declare
  c_classes constant integer := 20;
  v_changed integer;
begin
  with folded as (
    delete from helix.metric_change returning tenant, name, queue, label, value
  ),
  summed as materialized (
    select f.tenant, f.name, f.queue, f.label, sum(f.value) as value from folded f
    group by f.tenant, f.name, f.queue, f.label
  ),
  named as (
    select s.*, m.name is null as is_new, s.name = 'helix_attempt_failures_total' as is_failure,
           row_number() over (partition by s.tenant, s.name, s.queue, m.name is null order by s.value desc)
           + (select count(*) from helix.metric k
              where k.name = s.name and k.tenant = s.tenant and k.queue = s.queue) as place
    from summed s
    left join helix.metric m
      on m.name = s.name and m.tenant = s.tenant and m.queue = s.queue and m.label = s.label
  )
  insert into helix.metric as m (tenant, name, queue, label, value)
  select n.tenant, n.name, n.queue, b.label, sum(n.value)
  from named n
  cross join lateral (
    select case when n.is_failure and n.is_new
                     and (n.place > c_classes or n.label !~ '^[A-Za-z_][A-Za-z_.-]{0,59}$')
                then 'other' else n.label end as label) b
  group by n.tenant, n.name, n.queue, b.label
  on conflict (name, tenant, queue, label) do update set value = m.value + excluded.value;
  get diagnostics v_changed = row_count;
  return v_changed;
end
$$;

-- Sets gauges: the series that are given get their value, the others of the same names disappear.
create function helix.set_gauges(p_names text[], p_new helix.metric[]) returns void
language sql volatile as $$
  delete from helix.metric m
  where m.name = any (p_names)
    and not exists (select from unnest(p_new) n
                    where (n.name, n.tenant, n.queue, n.label) = (m.name, m.tenant, m.queue, m.label));
  insert into helix.metric as m select * from unnest(p_new)
  on conflict (name, tenant, queue, label) do update set value = excluded.value
  where m.value <> excluded.value
$$;

-- The age of the oldest claimable batch of each queue: the one at the front of each of its lanes.
create function helix.measure_queues() returns void
language plpgsql
set enable_seqscan = on set enable_hashjoin = on set enable_sort = on set jit = off as $$
begin
  perform helix.set_gauges('{helix_oldest_pending_seconds}', array(
    select row(q.tenant, 'helix_oldest_pending_seconds', q.name, '',
               coalesce(extract(epoch from clock_timestamp() - min(w.changed_at)), 0))::helix.metric
    from helix.queue q
    left join helix.lane l on l.queue = q.name and not l.idle
    left join lateral (select p.changed_at from helix.work p
                       where p.pending and p.queue = q.id and p.lane = l.id
                       order by p.queue, p.lane, p.turn, p.batch limit 1) w on true
    group by q.tenant, q.name));
  -- Those that serve every tenant are the series of `*`.
  perform helix.set_gauges('{helix_workers_alive}', array(
    select row(w.tenant, 'helix_workers_alive', '', '', count(*))::helix.metric
    from helix.worker w where helix.worker_status(w) = 'alive' group by w.tenant));
end
$$;

-- The oldest snapshot, in transactions: it keeps dead rows from being removed, and claims become slow. A
-- server shows the snapshots of other roles only to members of pg_read_all_stats.
create function helix.measure_server() returns void
language sql volatile as $$
  select helix.set_gauges('{helix_backend_xmin_age}', array[
    row('*', 'helix_backend_xmin_age', '', '', coalesce(max(a.age), 0))::helix.metric])
  from (select age(s.backend_xmin) as age from pg_stat_activity s where s.backend_xmin is not null
        union all
        select age(p.transaction) from pg_prepared_xacts p
        union all
        select age(r.xmin) from pg_replication_slots r where r.xmin is not null) a
$$;

-- Series for /metrics. With p_every_tenant, a login that acts for all tenants (also one per transaction, as a
-- service does) reads those of all tenants, else those of the session's tenants. At most p_limit series.
create function helix.read_metrics_v1(p_every_tenant boolean default false, p_limit integer default 100000)
returns table (tenant text, name text, queue text, label text, value double precision)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set jit = off as $$
#variable_conflict use_column
begin
  if p_every_tenant and helix.session_tenants() is not null then
    return query select * from helix.all_metrics(p_limit);
    return;
  end if;
  return query
    select m.tenant, m.name, m.queue, m.label, m.value from helix.metric m
    order by m.name, m.tenant, m.queue, m.label limit least(p_limit, 100000);
end
$$;

-- The same for a service, whose token decides who may ask. It runs as helix_engine, for all tenants.
create function helix.all_metrics(p_limit integer)
returns table (tenant text, name text, queue text, label text, value double precision)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_scope text := current_setting('helix.scope', true);
begin
  if not exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*') then
    raise exception using errcode = 'insufficient_privilege',
      message = format('expected a role that acts for all tenants, got %s', session_user),
      hint = 'An operator binds it with helix.bind_v1(role, ''*'', true).';
  end if;
  perform set_config('helix.scope', '*', true);
  return query
    select m.tenant, m.name, m.queue, m.label, m.value from helix.metric m
    order by m.name, m.tenant, m.queue, m.label limit least(p_limit, 100000);
  perform set_config('helix.scope', coalesce(v_scope, ''), true);
end
$$;
