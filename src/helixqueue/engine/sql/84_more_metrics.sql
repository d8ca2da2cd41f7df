-- Metrics of fences, dead letters, feeds and streams. Calls of fences are counted from their events and decisions, by
-- transaction like the ledger (78_metrics.sql), so that a repeat pays nothing for being counted.

-- Adds the calls of fences between two transactions to the counters, of all fences or of some lives. `new` are
-- effects that were sealed, by their holder, a probe or an operator; the time runs from the first claim. A
-- tenant has at most a hundred names: a program that writes ids into them must not create a series for each.
create function helix.count_fences(p_from bigint, p_to bigint, p_lives bigint[] default null) returns void
language plpgsql
set plan_cache_mode = force_custom_plan set enable_bitmapscan = on set enable_hashjoin = on
set enable_sort = on set jit = off
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
declare
  c_names constant integer := 100;
  v_calls jsonb;
begin
  with sealed as materialized (
    select f.tenant, f.name, extract(epoch from f.sealed_at - f.first_at)::float8 as seconds
    from helix.fence_event e join helix.fence f on f.tenant = e.tenant and f.life = e.life
    where e.position >= p_from and e.position < p_to and e.to_state = 'SEALED' and e.reason <> 'corrected'
      and (p_lives is null or e.life = any (p_lives))
  ),
  called as (
    select s.tenant, s.name, 'helix_fence_calls_total' as metric, 'new' as label, 1::float8 as value
    from sealed s
    union all
    select s.tenant, s.name, 'helix_fence_seal_seconds',
           helix.latency_bucket(s.seconds), 1 from sealed s
    union all
    select s.tenant, s.name, 'helix_fence_seal_seconds', 'sum', s.seconds from sealed s
    union all
    select d.tenant, d.name, c.metric, c.label, c.value
    from helix.fence_decision d
    cross join lateral (
      values ('helix_fence_calls_total', case d.kind when 'repeated' then 'duplicate' when 'expired' then 'duplicate'
                                         when 'mismatch' then 'conflict' else d.kind::text end, d.times),
             ('helix_fence_conflict_differences_total', '',
              case when d.kind = 'mismatch' then d.times * coalesce(substring(d.detail from E'\\d+')::int, 1) end)
      ) as c (metric, label, value)
    where d.position >= p_from and d.position < p_to and c.value is not null
      and (p_lives is null or d.life = any (p_lives))
  )
  select jsonb_agg(to_jsonb(s)) into v_calls
  from (select c.tenant, c.name, c.metric, c.label, sum(c.value) as value from called c
        group by c.tenant, c.name, c.metric, c.label) s;
  if v_calls is null then
    return;
  end if;
  -- Series of names that are new, from zero: Prometheus sees an increase only of a series that it has seen.
  insert into helix.metric (tenant, name, queue, label, value)
  select n.tenant, s.metric, n.name, s.label, 0
  from (select c.tenant, c.name, row_number() over (partition by c.tenant order by c.name) as place
        from (select distinct c.tenant, c.name
              from jsonb_to_recordset(v_calls) as c (tenant text, name text)) c
        where not exists (select from helix.metric m where m.name = 'helix_fence_calls_total'
                          and m.tenant = c.tenant and m.queue = c.name)) n
  cross join (values ('helix_fence_calls_total', 'new'), ('helix_fence_calls_total', 'duplicate'),
                     ('helix_fence_calls_total', 'conflict'),
                     ('helix_fence_conflict_differences_total', '')) as s (metric, label)
  where n.place + (select count(distinct m.queue) from helix.metric m
                   where m.name = 'helix_fence_calls_total' and m.tenant = n.tenant) <= c_names
  on conflict do nothing;
  insert into helix.metric_change (tenant, name, queue, label, value)
  select c.tenant, c.metric, coalesce(m.queue, 'other'), c.label, c.value
  from jsonb_to_recordset(v_calls) as c (tenant text, name text, metric text, label text, value float8)
  left join helix.metric m on m.name = 'helix_fence_calls_total' and m.tenant = c.tenant
                          and m.queue = c.name and m.label = 'new';
end
$$;

-- Counts the calls of fences that are about to be deleted and that the duty has not counted. That takes a
-- tombstone shorter than the duty's interval, or no service for as long as the tombstone.
create function helix.count_deleted_fences(p_lives bigint[]) returns void
language plpgsql as $$
declare
  v_mark bigint := (select d.mark from helix.duty d where d.duty = 'metrics');
begin
  if exists (select from helix.fence_event e where e.life = any (p_lives) and e.position >= v_mark)
     or exists (select from helix.fence_decision d where d.life = any (p_lives) and d.position >= v_mark)
  then
    -- Waits for a run of the duty, which may be counting the same rows.
    select d.mark into v_mark from helix.duty d where d.duty = 'metrics' for share;
    perform helix.count_fences(v_mark, 9223372036854775807, p_lives);
  end if;
end
$$;

-- Fences in doubt: how many, and the age of the oldest; at most ten thousand are counted.
create function helix.measure_fences() returns void
language plpgsql
set enable_sort = on set jit = off as $$
begin
  perform helix.set_gauges('{helix_fences_in_doubt,helix_fence_oldest_doubt_seconds}', array(
    with doubt as materialized (
      select f.tenant, count(*) as number, min(f.changed_at) as oldest
      from (select f.tenant, f.changed_at from helix.fence f
            where f.state = 'IN_DOUBT' order by f.changed_at limit 10000) f
      group by f.tenant
    ),
    tenant as (select d.tenant from doubt d union select q.tenant from helix.queue q)
    select row(t.tenant, n.name, '', '', n.value)::helix.metric
    from tenant t
    left join doubt d on d.tenant = t.tenant
    cross join lateral (
      values ('helix_fences_in_doubt', coalesce(d.number, 0)::double precision),
             ('helix_fence_oldest_doubt_seconds',
              coalesce(extract(epoch from clock_timestamp() - d.oldest), 0))) as n (name, value)));
end
$$;

-- How long the oldest event that each feed has not delivered has waited. What was searched in vain is kept
-- as a series of its own, which is not exported: a feed of an idle queue keeps its position while the ledger
-- grows. The label has both: the feed's position, because a feed can be rewound, and the one before which nothing was
-- found.
create function helix.measure_feeds() returns void
language plpgsql as $$
declare
  v_reached bigint := helix.reached_position();
  v_feed    helix.feed;
  v_place   text;
  v_looked  bigint;
  v_event   record;
  v_new     helix.metric[] := '{}';
begin
  for v_feed in select * from helix.feed loop
    v_place := concat_ws('/', v_feed.position, v_feed.number, v_feed.version);
    v_looked := (select split_part(m.label, ' ', 2) from helix.metric m
                 where m.name = 'feed_looked' and m.tenant = v_feed.tenant and m.queue = v_feed.name
                   and split_part(m.label, ' ', 1) = v_place);
    if v_looked > v_feed.position then
      v_feed.position := v_looked;
      v_feed.number := 0;
      v_feed.version := 0;
    end if;
    select e.position, e.at into v_event from helix.feed_events(v_feed, 1) e;
    v_new := v_new || array[
      row(v_feed.tenant, 'feed_looked', v_feed.name,
          v_place || ' ' || coalesce(v_event.position, v_reached), 0),
      row(v_feed.tenant, 'helix_feed_lag_seconds', v_feed.name, '',
          coalesce(extract(epoch from clock_timestamp() - v_event.at), 0))]::helix.metric[];
  end loop;
  perform helix.set_gauges('{feed_looked,helix_feed_lag_seconds}', v_new);
end
$$;

-- Outputs: how long the oldest completed batch has waited for its files to be published, and the bytes that lost
-- attempts staged and no publisher has removed. Blocked manifests are counted by themselves.
create function helix.measure_outputs() returns void
language plpgsql
set enable_sort = on set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.set_gauges('{helix_output_lag_seconds,helix_output_orphaned_bytes}', array(
    with due as materialized (
      select m.tenant, m.queue, m.bytes, m.state,
             case when m.state = 'granted' then m.granted_at
                  when m.state in ('open', 'registered') and w.state = 'COMPLETED'
                       and (w.number, w.epoch) = (m.number, m.epoch) then w.changed_at end as granted_at,
             m.state = 'lost' or m.state in ('open', 'registered')
               and ((w.number, w.epoch) is distinct from (m.number, m.epoch)
                    or w.state in ('PENDING', 'FAILED', 'CANCELLED')) as is_lost
      from helix.manifest m left join helix.work w on w.batch = m.batch
      where m.due_at is not null
    )
    select row(q.tenant, n.name, q.name, '', n.value)::helix.metric
    from helix.queue q
    left join lateral (
      select min(d.granted_at) as oldest, sum(d.bytes) filter (where d.is_lost) as orphaned
      from due d where d.tenant = q.tenant and d.queue = q.name) s on true
    cross join lateral (
      values ('helix_output_lag_seconds', coalesce(extract(epoch from v_now - s.oldest), 0)::double precision),
             ('helix_output_orphaned_bytes', coalesce(s.orphaned, 0)::double precision)) as n (name, value)
    where q.outputs <> '' or s.oldest is not null or s.orphaned > 0));
end
$$;

-- Consumer groups as Redis described them at the last look, the time of that look, and the last report of each
-- intake that was not stopped. Figures of a look a minute ago are left out: they would look like current ones.
create function helix.measure_streams() returns void
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.set_gauges(
    '{helix_stream_pending,helix_stream_lag,helix_stream_oldest_seconds,helix_stream_readers,'
    'helix_stream_looked_seconds,helix_intake_reported_seconds}', array(
    with fresh as materialized (
      select * from helix.stream_group g where g.looked_at > v_now - interval '60 s'
    )
    select row(g.tenant, n.name, g.stream, g.group_name, n.value)::helix.metric
    from fresh g
    cross join lateral (
      values ('helix_stream_lag', (g.figures ->> 'lag')::double precision),
             ('helix_stream_oldest_seconds', coalesce((g.figures ->> 'oldest_seconds')::double precision, 0)),
             ('helix_stream_readers', (g.figures ->> 'readers')::double precision)) as n (name, value)
    where n.value is not null
    union all
    select row(g.tenant, 'helix_stream_pending', g.stream, g.group_name || E'\x1f' || left(c.key, 100),
               sum(c.value::double precision))::helix.metric
    from fresh g cross join lateral jsonb_each_text(g.figures -> 'pending_by_consumer') c
    group by g.tenant, g.stream, g.group_name, left(c.key, 100)
    union all
    select row(g.tenant, 'helix_stream_looked_seconds', g.stream, g.group_name,
               extract(epoch from g.looked_at))::helix.metric
    from helix.stream_group g
    union all
    select row(i.tenant, 'helix_intake_reported_seconds', i.stream, i.group_name || E'\x1f' || i.consumer,
               extract(epoch from i.seen_at))::helix.metric
    from helix.intake i where i.ended_at is null and i.seen_at > v_now - interval '1 day'));
end
$$;

-- Open dead letters, counted by the statements that write and close them: there may be millions.
create function helix.count_letters() returns trigger
language plpgsql as $$
begin
  if tg_op = 'INSERT' then
    insert into helix.metric_change (tenant, name, queue, label, value)
    select n.tenant, 'helix_dead_letters', n.name, n.reason, count(*) from arrived n
    where n.status = 'open' group by n.tenant, n.name, n.reason;
  elsif tg_op = 'UPDATE' then
    insert into helix.metric_change (tenant, name, queue, label, value)
    select c.tenant, 'helix_dead_letters', c.name, c.reason, sum(c.value)
    from (select n.tenant, n.name, n.reason, 1 as value from arrived n where n.status = 'open'
          union all
          select g.tenant, g.name, g.reason, -1 from gone g where g.status = 'open') c
    group by c.tenant, c.name, c.reason having sum(c.value) <> 0;
  else
    insert into helix.metric_change (tenant, name, queue, label, value)
    select g.tenant, 'helix_dead_letters', g.name, g.reason, -count(*) from gone g
    where g.status = 'open' group by g.tenant, g.name, g.reason;
  end if;
  return null;
end
$$;
create trigger count_new_letters after insert on helix.dead_letter
  referencing new table as arrived for each statement execute function helix.count_letters();
create trigger count_changed_letters after update on helix.dead_letter
  referencing old table as gone new table as arrived for each statement execute function helix.count_letters();
create trigger count_deleted_letters after delete on helix.dead_letter
  referencing old table as gone for each statement execute function helix.count_letters();
alter table helix.dead_letter enable always trigger count_new_letters,
  enable always trigger count_changed_letters, enable always trigger count_deleted_letters;

-- Manifests that are granted or blocked, counted as they change.
create function helix.count_manifests() returns trigger
language plpgsql as $$
begin
  insert into helix.metric_change (tenant, name, queue, label, value)
  select c.tenant, 'helix_manifests', c.queue, c.state, sum(c.value)
  from (select n.tenant, n.queue, n.state, 1 as value from arrived n
        union all
        select g.tenant, g.queue, g.state, -1 from gone g) c
  where c.state in ('granted', 'blocked')
  group by c.tenant, c.queue, c.state having sum(c.value) <> 0;
  return null;
end
$$;
create trigger count_changed_manifests after update on helix.manifest
  referencing old table as gone new table as arrived for each statement execute function helix.count_manifests();
alter table helix.manifest enable always trigger count_changed_manifests;
