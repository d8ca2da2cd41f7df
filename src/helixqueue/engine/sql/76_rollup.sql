-- The rollup: what happened per queue and minute, and per queue and hour, for plots and figures. The duty `metrics`
-- keeps it from the ledger, in the transaction that moves its position, so that a step is counted once.

-- One row per queue and minute with a step, kept for two days, and one per queue and hour, kept for 400 days; the
-- same for all queues of a tenant together.
create table helix.rollup (
  tenant    text not null,
  queue     text not null,              -- empty: all queues of the tenant
  seconds   integer not null check (seconds in (60, 3600)),
  at        timestamptz not null,       -- begin of the minute or hour
  submitted bigint not null,            -- new batches
  repeated  bigint not null,            -- submissions of a batch that existed
  completed bigint not null,
  failed    bigint not null,            -- batches that ended FAILED
  cancelled bigint not null,
  lost      bigint not null,            -- leases
  refused   bigint not null,            -- writes with a stale token; a repeated one counts once
  pending   bigint not null,            -- change of the number of PENDING batches
  -- Number of durations by bucket (time_bucket): from the step to PENDING until the claim, and from the start of
  -- an attempt until its worker ended it. A requested delay is part of the wait.
  waits     integer[] not null,
  runs      integer[] not null,
  primary key (tenant, queue, seconds, at)
) with (fillfactor = 50);
-- For retention.
create index rollup_age on helix.rollup (seconds, at);

-- Batches that each worker ended per day (UTC), kept for two days.
create table helix.worker_day (
  tenant    text not null,
  day       date not null,
  worker    text not null,
  completed bigint not null,
  failed    bigint not null,            -- attempts
  primary key (tenant, day, worker)
) with (fillfactor = 50);

do $$
begin
  perform helix.protect_table('helix.rollup'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.worker_day'::regclass, 'helix.guard'::regproc);
end
$$;

-- The bucket of a duration, 1 to 64: bucket n begins at 2^((n-1)/2) milliseconds (records/series.py has the same
-- bounds), the first one at 0; the last one has everything above 33 days.
create function helix.time_bucket(p_seconds double precision) returns integer
language sql immutable parallel safe as $$
  select case when p_seconds < 0.001 then 1
              else least(1 + floor(2 * ln(p_seconds * 1000) / ln(2))::integer, 64) end
$$;

-- An array of numbers by bucket, from some buckets with their numbers.
create function helix.histogram(p_buckets integer[], p_numbers bigint[]) returns integer[]
language sql immutable parallel safe as $$
  select array(
    select coalesce(sum(u.number), 0)::integer
    from generate_series(1, (select max(b) from unnest(p_buckets) b)) as place (bucket)
    left join unnest(p_buckets, p_numbers) as u (bucket, number) on u.bucket = place.bucket
    group by place.bucket order by place.bucket)
$$;

-- The sum of two such arrays, which may differ in length.
create function helix.add_histograms(p_left integer[], p_right integer[]) returns integer[]
language sql immutable parallel safe as $$
  select case when p_right = '{}' then p_left when p_left = '{}' then p_right else array(
    select coalesce(u.a, 0) + coalesce(u.b, 0)
    from unnest(p_left, p_right) with ordinality as u (a, b, place) order by u.place) end
$$;

-- Adds the steps, decisions and refusals of the transactions from p_from until before p_to, all of which have
-- ended. `follow_ledger` (78_metrics.sql) calls it once for each transaction.
create function helix.roll_up(p_from bigint, p_to bigint) returns void
language plpgsql
set plan_cache_mode = force_custom_plan set enable_bitmapscan = on set enable_hashjoin = on
set enable_sort = on set jit = off as $$
begin
  with seen as materialized (
    select e.at, e.from_state, e.to_state, e.reason, e.queue, e.before, e.actor from helix.entry e
    where e.position >= p_from and e.position < p_to and e.batch is not null
  ),
  ended as (
    insert into helix.worker_day as d (tenant, day, worker, completed, failed)
    select q.tenant, (s.at at time zone 'UTC')::date, s.actor, count(*) filter (where s.reason = 'completed'),
           count(*) filter (where s.reason = 'failed')
    from seen s cross join lateral unnest(s.queue) as u (queue) join helix.queue q on q.id = u.queue
    where s.reason in ('completed', 'failed') group by 1, 2, 3
    on conflict (tenant, day, worker) do update
    set completed = d.completed + excluded.completed, failed = d.failed + excluded.failed
  ),
  happened as (
    select u.queue, s.at,
           case when s.from_state is null then 'submitted' when s.to_state = 'COMPLETED' then 'completed'
                when s.to_state = 'FAILED' then 'failed' when s.to_state = 'CANCELLED' then 'cancelled' end as name,
           count(*) as number
    from seen s cross join lateral unnest(s.queue) as u (queue) group by u.queue, s.at, 3
    union all
    select u.queue, s.at, 'lost', count(*)
    from seen s cross join lateral unnest(s.queue) as u (queue) where s.reason = 'lost' group by u.queue, s.at
    union all
    select u.queue, s.at, 'pending',
           count(*) * ((s.to_state = 'PENDING')::integer - coalesce(s.from_state = 'PENDING', false)::integer)
    from seen s cross join lateral unnest(s.queue) as u (queue)
    where s.to_state = 'PENDING' or s.from_state = 'PENDING' group by u.queue, s.at, s.to_state, s.from_state
    union all
    select q.id, d.at, 'repeated', sum(d.times)
    from helix.decision d join helix.queue q on q.tenant = d.tenant and q.name = d.queue
    where d.position >= p_from and d.position < p_to and d.kind = 'duplicate' group by q.id, d.at
    union all
    select b.queue, f.first_at, 'refused', count(*)
    from helix.refusal f join helix.batch b on b.id = f.batch
    where f.position >= p_from and f.position < p_to group by b.queue, f.first_at
  ),
  -- Batches of one entry that had one entry before waited and ran equally long.
  timed as (
    select u.queue, s.at, u.before, s.from_state = 'PENDING' as is_wait, count(*) as number
    from seen s cross join lateral unnest(s.queue, s.before) as u (queue, before)
    where s.from_state = 'PENDING' and s.to_state in ('ASSIGNED', 'RUNNING')
       or s.reason = 'completed' or s.reason = 'failed' and s.from_state in ('ASSIGNED', 'RUNNING')
    group by u.queue, s.at, u.before, 4
  ),
  bucketed as (
    select t.queue, t.at, t.is_wait, t.number,
           helix.time_bucket(extract(epoch from t.at - b.at)::double precision) as bucket
    from timed t
    cross join lateral (select p.at from helix.entry p where p.id = t.before order by p.part limit 1) b
  ),
  -- Each span of each queue, and of all queues of its tenant.
  spans as (
    select q.tenant, n.queue, s.seconds,
           date_bin(make_interval(secs => s.seconds), c.at, 'epoch'::timestamptz) as at, c.name, c.is_wait, c.bucket,
           sum(c.number) as number
    from (select h.queue, h.at, h.name, null::boolean as is_wait, null::integer as bucket, h.number from happened h
          where h.name is not null
          union all
          select b.queue, b.at, null, b.is_wait, b.bucket, b.number from bucketed b) c
    join helix.queue q on q.id = c.queue
    cross join lateral (values (q.name), ('')) as n (queue)
    cross join (values (60), (3600)) as s (seconds)
    group by q.tenant, n.queue, s.seconds, 4, c.name, c.is_wait, c.bucket
  )
  insert into helix.rollup as r (tenant, queue, seconds, at, submitted, repeated, completed, failed, cancelled,
                                 lost, refused, pending, waits, runs)
  select s.tenant, s.queue, s.seconds, s.at,
         coalesce(sum(s.number) filter (where s.name = 'submitted'), 0),
         coalesce(sum(s.number) filter (where s.name = 'repeated'), 0),
         coalesce(sum(s.number) filter (where s.name = 'completed'), 0),
         coalesce(sum(s.number) filter (where s.name = 'failed'), 0),
         coalesce(sum(s.number) filter (where s.name = 'cancelled'), 0),
         coalesce(sum(s.number) filter (where s.name = 'lost'), 0),
         coalesce(sum(s.number) filter (where s.name = 'refused'), 0),
         coalesce(sum(s.number) filter (where s.name = 'pending'), 0),
         helix.histogram(array_agg(s.bucket) filter (where s.is_wait),
                         array_agg(s.number::bigint) filter (where s.is_wait)),
         helix.histogram(array_agg(s.bucket) filter (where not s.is_wait),
                         array_agg(s.number::bigint) filter (where not s.is_wait))
  from spans s
  group by s.tenant, s.queue, s.seconds, s.at
  on conflict (tenant, queue, seconds, at) do update
  set submitted = r.submitted + excluded.submitted, repeated = r.repeated + excluded.repeated,
      completed = r.completed + excluded.completed, failed = r.failed + excluded.failed,
      cancelled = r.cancelled + excluded.cancelled, lost = r.lost + excluded.lost,
      refused = r.refused + excluded.refused, pending = r.pending + excluded.pending,
      waits = helix.add_histograms(r.waits, excluded.waits), runs = helix.add_histograms(r.runs, excluded.runs);
end
$$;

-- Deletes what is older than its span is kept, a bounded number of rows.
create function helix.forget_rollup(p_limit integer) returns void
language plpgsql
set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  delete from helix.rollup r using (
    (select o.tenant, o.queue, o.seconds, o.at from helix.rollup o
     where o.seconds = 60 and o.at < v_now - interval '2 days' order by o.seconds, o.at limit p_limit)
    union all
    (select o.tenant, o.queue, o.seconds, o.at from helix.rollup o
     where o.seconds = 3600 and o.at < v_now - interval '400 days' order by o.seconds, o.at limit p_limit)) old
  where (r.tenant, r.queue, r.seconds, r.at) = (old.tenant, old.queue, old.seconds, old.at);
  delete from helix.worker_day d
  where (d.tenant, d.day, d.worker) in (
    select o.tenant, o.day, o.worker from helix.worker_day o
    where o.day < (v_now at time zone 'UTC')::date - 1 limit p_limit);
end
$$;
