-- Reads of the figures of a tenant, and of what its people and late workers did, in the form of 92_reads.sql. They
-- read the rollup and gauges that the duty `metrics` keeps, so that no page counts batches.

-- The rollup of one queue (empty: of all), from p_since until before p_until; and, also without a row, when the duty
-- last ran and the number of PENDING batches at that time.
create function helix.read_rollup_v1(
  p_tenant text, p_queue text, p_seconds integer, p_since timestamptz, p_until timestamptz
)
returns table (
  kept_at timestamptz, backlog bigint, at timestamptz, submitted bigint, repeated bigint, completed bigint,
  failed bigint, cancelled bigint, lost bigint, refused bigint, pending bigint, waits integer[], runs integer[]
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select (select d.last_at from helix.duty d where d.duty = 'metrics'),
           (select sum(m.value)::bigint from helix.metric m
            where m.name = 'helix_batches' and m.tenant = p_tenant and m.label = 'PENDING'
              and (p_queue = '' or m.queue = p_queue)),
           r.at, r.submitted, r.repeated, r.completed, r.failed, r.cancelled, r.lost, r.refused, r.pending,
           r.waits, r.runs
    from (values (1)) as always (one)
    left join lateral (
      select * from helix.rollup r
      where r.tenant = p_tenant and r.queue = p_queue and r.seconds = p_seconds
        and r.at >= p_since and r.at < p_until
      order by r.tenant, r.queue, r.seconds, r.at limit 3000) r on true;
end
$$;

-- What some workers ended today (UTC).
create function helix.read_worker_days_v1(p_tenant text, p_worker text[])
returns table (worker text, completed bigint, failed bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  perform helix.demand_parallel(cardinality(p_worker), helix.shape(p_worker));
  return query
    select d.worker, d.completed, d.failed from helix.worker_day d
    where d.tenant = p_tenant and d.day = (clock_timestamp() at time zone 'UTC')::date
      and d.worker = any (p_worker);
end
$$;

-- Runs of `check` on the rows of a tenant before a number, newest first.
create function helix.read_check_runs_v1(
  p_tenant text, p_before bigint default 9223372036854775807, p_limit integer default 50
)
returns table (id bigint, at timestamptz, seconds real, actor text, results text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select r.id, r.at, r.seconds, r.actor::text, r.results::text from helix.check_run r
    where r.tenant = p_tenant and r.id < p_before order by r.id desc limit least(p_limit, 101);
end
$$;

-- The state of a tenant: figures, its queues with problems first, at most p_limit of them, and what waits for a
-- person. Rows of the rollup are those of the last hour, except `today`, since midnight UTC.
create function helix.read_overview_v1(p_tenant text, p_limit integer default 50)
returns table (
  now timestamptz, kept_at timestamptz, queues json, hour json, today json, known_queues bigint, workers json,
  in_doubt bigint, oldest_doubt_seconds double precision, letters bigint, findings bigint, reconciled_at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_now   timestamptz := clock_timestamp();
  v_hour  timestamptz := date_trunc('minute', v_now) - interval '1 hour';
  v_today timestamptz := date_trunc('day', v_now, 'UTC');
begin
  return query
    with gauge as materialized (
      select m.name, m.queue, m.label, m.value from helix.metric m
      where m.tenant = p_tenant
        and m.name in ('helix_batches', 'helix_oldest_pending_seconds', 'helix_fences_in_doubt',
                       'helix_fence_oldest_doubt_seconds', 'helix_dead_letters')
    ),
    counted as (
      select g.queue,
             coalesce(sum(g.value) filter (where g.label = 'PENDING'), 0)::bigint as pending,
             coalesce(sum(g.value) filter (where g.label in ('ASSIGNED', 'RUNNING')), 0)::bigint as leased,
             coalesce(sum(g.value) filter (where g.label = 'FAILED'), 0)::bigint as failed,
             max(g.value) filter (where g.name = 'helix_oldest_pending_seconds') as oldest
      from gauge g where g.name in ('helix_batches', 'helix_oldest_pending_seconds') group by g.queue
    ),
    ranked as materialized (
      select q.name, q.paused, q.closed, q.stalled_after_seconds, s.problem,
             coalesce(c.pending, 0) as pending, coalesce(c.leased, 0) as leased, coalesce(c.failed, 0) as failed,
             nullif(c.oldest, 0) as oldest,
             row_number() over (order by array_position('{stalled,failures,paused,flowing,idle,closed}', s.problem),
                                         c.oldest desc nulls last, q.name) as place
      from helix.queue q
      left join counted c on c.queue = q.name
      left join lateral (
        select coalesce(sum(r.failed), 0) as failed from helix.rollup r
        where r.tenant = p_tenant and r.queue = q.name and r.seconds = 3600 and r.at > v_now - interval '2 hours') f
        on true
      cross join lateral (
        select case when c.oldest > q.stalled_after_seconds and not q.paused then 'stalled'
                    when f.failed > 0 and c.failed > 0 then 'failures' when q.paused then 'paused'
                    when q.closed then 'closed'
                    -- The counts are those of one moment: between two of them, short batches come and go.
                    when coalesce(c.leased, 0) > 0 or coalesce(c.pending, 0) > 0
                      or exists (select from helix.rollup r
                                 where r.tenant = p_tenant and r.queue = q.name and r.seconds = 60
                                   and r.at > v_now - interval '2 minutes' and r.completed > 0) then 'flowing'
                    else 'idle' end as problem) s
      where q.tenant = p_tenant
      order by place limit least(p_limit, 500)
    ),
    shown as (
      select r.*, h.rows, d.completed
      from ranked r
      cross join lateral (
        select json_agg(json_build_array(u.at, u.submitted, u.repeated, u.completed, u.failed, u.cancelled, u.lost,
                                         u.refused, u.pending, u.waits, u.runs)) as rows
        from helix.rollup u
        where u.tenant = p_tenant and u.queue = r.name and u.seconds = 60 and u.at >= v_hour) h
      cross join lateral (
        select coalesce(sum(u.completed), 0)::bigint as completed from helix.rollup u
        where u.tenant = p_tenant and u.queue = r.name and u.seconds = 3600 and u.at >= v_today) d
    )
    select v_now, (select d.last_at from helix.duty d where d.duty = 'metrics'),
           (select json_agg(json_build_array(s.name, s.problem, s.paused, s.pending, s.oldest, s.leased, s.failed,
                                             s.completed, s.rows) order by s.place) from shown s),
           (select json_agg(json_build_array(u.at, u.submitted, u.repeated, u.completed, u.failed, u.cancelled, u.lost,
                                             u.refused, u.pending, u.waits, u.runs))
            from helix.rollup u
            where u.tenant = p_tenant and u.queue = '' and u.seconds = 60 and u.at >= v_hour),
           (select json_agg(json_build_array(u.at, u.submitted, u.repeated, u.completed, u.failed, u.cancelled, u.lost,
                                             u.refused, u.pending, u.waits, u.runs))
            from helix.rollup u
            where u.tenant = p_tenant and u.queue = '' and u.seconds = 3600 and u.at >= v_today),
           (select count(*) from helix.queue q where q.tenant = p_tenant),
           (select json_build_array(count(*) filter (where w.status = 'alive'), count(*) filter (where w.status <> 'ended'),
                                    sum((w.free -> 'health' ->> 'slots')::numeric) filter (
                                      where w.status = 'alive'
                                        and jsonb_typeof(w.free -> 'health' -> 'slots') = 'number'))
            from (select helix.worker_status(w) as status, w.free from helix.worker w
                  where w.tenant in (p_tenant, '*') and w.last_seen > v_now - interval '1 day'
                  limit 5000) w),
           (select sum(g.value)::bigint from gauge g where g.name = 'helix_fences_in_doubt'),
           (select max(g.value) from gauge g where g.name = 'helix_fence_oldest_doubt_seconds'),
           (select sum(g.value)::bigint from gauge g where g.name = 'helix_dead_letters'),
           (select count(*) from (select from helix.finding f
                                  join helix.queue q on q.id = f.queue and q.tenant = p_tenant
                                  -- The others are about waiting: conditions of queues say so.
                                  where f.kind in ('duplicate_assignment', 'audit_missing') and f.cleared_at is null
                                  limit 1000) f),
           (select d.last_at from helix.duty d where d.duty = 'reconcile');
end
$$;

-- A page of refused writes, newest first, before a position, with their batches as they are now. A page of one
-- queue looks at p_look refusals; `edge` is where it stopped.
create function helix.read_refusals_v1(
  p_tenant text, p_queue text, p_at timestamptz default 'infinity', p_batch bigint default 9223372036854775807,
  p_number bigint default 9223372036854775807, p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge_at timestamptz, edge_batch bigint, edge_number bigint, first_at timestamptz, batch bigint, number bigint,
  last_at timestamptz, operation text, worker text, owner text, why text, times integer, public_id uuid,
  queue text, identity text, state text, finished_at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    with seen as materialized (
      select r.first_at, r.batch, r.number, r.last_at, r.operation, r.worker, r.owner, r.why, r.times,
             row_number() over (order by r.first_at desc, r.batch desc, r.number desc) = p_look as last
      from helix.refusal r
      where r.tenant = p_tenant and (r.first_at, r.batch, r.number) < (p_at, p_batch, p_number)
      order by r.first_at desc, r.batch desc, r.number desc limit least(p_look, 10000)
    ),
    page as (
      select s.*, q.name as queue, helix.public_id(b.key) as public_id, b.identity::text as identity,
             coalesce(w.state, b.state)::text as state,
             case when w.state in ('COMPLETED', 'FAILED', 'CANCELLED') then w.changed_at else b.ended_at end
               as finished_at
      from seen s
      cross join lateral (select * from helix.batch b where b.id = s.batch limit 1) b
      cross join lateral (select q.name from helix.queue q where q.id = b.queue limit 1) q
      left join lateral (select w.state, w.changed_at from helix.work w where w.batch = s.batch limit 1) w on true
      where p_queue is null or q.name = p_queue
      order by s.first_at desc, s.batch desc, s.number desc limit least(p_limit, 1001)
    )
    select e.first_at, e.batch, e.number, p.first_at, p.batch, p.number, p.last_at, p.operation, p.worker, p.owner,
           p.why, p.times, p.public_id, p.queue, p.identity, p.state, p.finished_at
    from (values (1)) as always (one)
    left join (select s.first_at, s.batch, s.number from seen s where s.last) e on true
    left join page p on true
    order by p.first_at desc, p.batch desc, p.number desc;
end
$$;

-- What people and applications did, newest first, before a position: settings and erasures, retries, cancellations,
-- releases and recoveries of batches, decisions about fences and letters, and tokens. Each part reads a bounded
-- number of rows; of the ledger, whose index covers all tenants, p_look entries. `key` is what the page of a fence
-- or a letter is called by.
create function helix.read_activity_v1(
  p_tenant text, p_at timestamptz default 'infinity', p_id bigint default 9223372036854775807,
  p_look integer default 1000, p_limit integer default 50
)
returns table (
  edge_at timestamptz, edge_id bigint, at timestamptz, id bigint, actor text, action text, subject text, queue text,
  batches bigint, public_id uuid, detail text, key text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_queues integer[] := array(select q.id from helix.queue q where q.tenant = p_tenant);
  v_sees   boolean := helix.sees_payloads();
begin
  return query
    with seen as materialized (
      select e.at, e.id, e.part, e.reason, e.actor, e.batch, e.queue, e.version, e.before,
             row_number() over (order by e.at desc, e.id desc) = p_look as last
      from helix.entry e
      where e.reason in ('retried', 'cancelled', 'released', 'recovered', 'lost') and (e.at, e.id) < (p_at, p_id)
      order by e.at desc, e.id desc, e.part desc limit least(p_look, 10000)
    ),
    stepped as (
      select s.at, s.id, s.actor, s.reason::text as action, 'batch' as subject, u.queue as queue_id,
             count(*) as batches, min(u.batch) as batch, min(u.version) as version
      from seen s cross join lateral unnest(s.batch, s.queue, s.version) as u (batch, queue, version)
      where s.reason <> 'lost' and s.queue && v_queues and u.queue = any (v_queues)
        -- A worker that returns its own batch is no person: its name is also on the step before.
        and (s.reason <> 'released'
             or s.actor <> (select p.actor from helix.entry p where p.id = s.before[1] order by p.part limit 1))
      group by s.at, s.id, s.actor, s.reason, u.queue
    ),
    happened as (
      select s.at, s.id, s.actor, s.action, s.subject, q.name as queue, s.batches, s.batch,
             case when v_sees then r.detail::text end as detail, null::text as key
      from stepped s
      cross join lateral (select q.name from helix.queue q where q.id = s.queue_id limit 1) q
      left join lateral (select r.detail from helix.result r
                         where r.batch = s.batch and r.version = s.version limit 1) r on true
      union all
      (select d.at, d.id, d.actor, case d.kind when 'erased' then 'erased' else 'set' end,
              case when d.batch is not null then 'batch' when strpos(d.queue, '/') > 0
                   then split_part(d.queue, '/', 1) else 'queue' end,
              d.queue, (d.batch is not null)::integer, d.batch, d.detail::text, null
       from helix.decision d
       where d.tenant = p_tenant and d.kind in ('setting', 'erased') and (d.at, d.id) < (p_at, p_id)
       order by d.tenant, d.at desc, d.id desc limit p_limit)
      union all
      (select v.at, v.life, v.actor, v.reason::text, 'fence', f.name::text, 0, null,
              case when v_sees then v.detail end, helix.key_text(f.key)
       from helix.fence_event v
       cross join lateral (select f.name, f.key from helix.fence f
                           where f.tenant = v.tenant and f.life = v.life limit 1) f
       where v.tenant = p_tenant and v.reason in ('resolved', 'corrected') and (v.at, v.life) < (p_at, p_id)
       order by v.tenant, v.at desc, v.life desc limit p_limit)
      union all
      (select l.closed_at, l.id, l.closed_by, l.status, 'letter', l.name::text, 0, l.batch,
              case when v_sees then l.closed_for::text end, l.id::text
       from helix.dead_letter l
       where l.tenant = p_tenant and l.status in ('redriven', 'discarded') and (l.closed_at, l.id) < (p_at, p_id)
       order by l.tenant, l.closed_at desc, l.id desc limit p_limit)
      union all
      select c.at, 0, c.actor, c.action, 'token', t.name, 0, null, c.detail, null
      from helix.api_token t
      cross join lateral (
        values (t.created_at, t.created_by, 'created', array_to_string(t.scopes, ', ')),
               (t.revoked_at, t.revoked_by, 'revoked', t.reason)) as c (at, actor, action, detail)
      where t.tenant = p_tenant and (c.at, 0) < (p_at, p_id)
    ),
    page as (
      select h.* from happened h
      -- What is older than the part of the ledger that was read belongs to a later page.
      where h.at >= coalesce((select s.at from seen s where s.last), '-infinity')
      order by h.at desc, h.id desc limit least(p_limit, 1001)
    )
    select e.at, e.id, p.at, p.id, p.actor, p.action, p.subject, p.queue, p.batches,
           (select helix.public_id(b.key) from helix.batch b where b.id = p.batch), p.detail, p.key
    from (values (1)) as always (one)
    left join (select s.at, s.id from seen s where s.last) e on true
    left join page p on true
    order by p.at desc, p.id desc;
end
$$;

-- The ledger entry of each step of a batch: its hash, and whether that follows from the entry and the hashes of the
-- entries before it. At most p_limit entries, the newest; each is read whole, however many batches it has.
create function helix.read_proof_v1(p_id uuid, p_limit integer default 200)
returns table (version integer, hash bytea, sound boolean)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    with step as materialized (
      select h.version, h.entry, h.part
      from helix.history_of(array(select l.batch from helix.locate(array[p_id]) l)) h
      order by h.version desc limit least(p_limit, 1000)
    ),
    checked as materialized (
      select e.id, e.part, e.hash,
             e.hash is not distinct from helix.entry_hash(
               (select array_agg(p.hash order by p.id, p.part) from helix.entry p
                where p.id = any (array(select distinct b from unnest(e.before) b))),
               e.id, e.part, e.at, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.late, e.actor,
               e.batch, e.queue, e.version, e.attempt, e.before, e.content) as sound
      from (select distinct s.entry, s.part from step s) s
      cross join lateral (select * from helix.entry e where e.id = s.entry and e.part = s.part limit 1) e
    )
    select s.version, c.hash, c.sound
    from step s join checked c on c.id = s.entry and c.part = s.part
    order by s.version;
end
$$;

-- The batches of a queue that wait longest, in about the order of claims, with what they require and how many of the
-- live workers have it. A batch that lost a lease has the record of that as its detail.
create function helix.read_waiting_v1(p_tenant text, p_queue text, p_limit integer default 50)
returns table (
  public_id uuid, identity text, since timestamptz, attempt smallint, cause text, due timestamptz, requires jsonb,
  detail text, alive bigint, fitting bigint, missing text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_now   timestamptz := clock_timestamp();
  v_limit integer := least(p_limit, 500);
  v_sees  boolean := helix.sees_payloads();
begin
  return query
    with alive as materialized (
      select w.free from helix.worker w
      where w.tenant in (p_tenant, '*') and helix.worker_status(w) = 'alive'
        -- A worker that reports its queues counts for those.
        and coalesce(w.free -> 'health' -> 'queues' ? p_queue, true)
      limit 1000
    ),
    queue as (select q.id, q.paused from helix.queue q where q.tenant = p_tenant and q.name = p_queue),
    page as materialized (
      -- A claim parks the batches of a paused queue, so until then they have no cause.
      select w.batch, w.changed_at, w.attempt, case when q.paused then 'paused' else w.cause end as cause, w.due,
             w.version
      from queue q
      cross join lateral (
        (select w.batch, w.changed_at, w.attempt, w.cause, w.due, w.version
         from helix.work w where w.pending and w.queue = q.id
         order by w.queue, w.lane, w.turn, w.batch limit v_limit)
        union all
        (select w.batch, w.changed_at, w.attempt, w.cause, w.due, w.version
         from helix.work w where w.cause is not null and w.queue = q.id
         order by w.queue, w.cause, w.batch limit v_limit)) w
      order by w.changed_at, w.batch limit v_limit
    ),
    required as (
      select p.*, b.key, b.identity, helix.requires_of(b.class) as requires
      from page p cross join lateral (select * from helix.batch b where b.id = p.batch limit 1) b
    ),
    needed as materialized (
      select u.requires, helix.missing(p_tenant, p_queue, u.requires) as missing
      from (select distinct r.requires from required r where r.requires is not null) u
    )
    select helix.public_id(r.key), r.identity::text, r.changed_at, r.attempt, r.cause::text, r.due, r.requires,
           case when v_sees then (select t.detail::text from helix.result t
                                  where t.batch = r.batch and t.version = r.version) end,
           (select count(*) from alive),
           (select count(*) from alive a where helix.meets(a.free, helix.requirement_of(r.requires))),
           (select n.missing from needed n where n.requires = r.requires)
    from required r order by r.changed_at, r.batch;
end
$$;
