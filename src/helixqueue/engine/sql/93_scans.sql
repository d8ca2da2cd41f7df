-- Scans: which batches are on a page of a list, newest first. The functions that clients call are in
-- 94_lists.sql.
--
-- A page starts before the position (p_at, p_id): the end of the page before, or the upper bound of the time
-- that is asked for, whichever is earlier. (Of two upper bounds PostgreSQL starts its scan at one, and steps
-- over everything between it and the other.) No page looks at more than a bounded number of rows, however
-- few of them pass its filters: a scan that may find too few reads p_look rows and returns how far it
-- went, its *edge*, from where the next page continues. The edge is null if the scan reached its end.

-- A row of a scan: the edge, the same in every row, and the position of one batch. A scan that has an edge
-- returns at least one row, with a null position when it found nothing.
create type helix.list_place as (
  edge_at timestamptz,
  edge_id bigint,
  at      timestamptz,
  id      bigint
);

-- All batches by the time of submission: the newest of each queue, merged. Only queues whose newest batch
-- would be on the page contribute to it.
create function helix.read_newest(
  p_tenant text, p_queue text, p_since timestamptz, p_at timestamptz, p_id bigint, p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as (
      select q.id from helix.read_queue_ids(p_tenant, p_queue) q
      cross join lateral (
        select b.created_at, b.id from helix.batch b
        where b.queue = q.id and b.retired_at is null
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc limit 1) newest
      order by newest.created_at desc, newest.id desc limit p_limit
    )
    select null::timestamptz, null::bigint, p.created_at, p.id from line l
    cross join lateral (
      select b.created_at, b.id from helix.batch b
      where b.queue = l.id and b.retired_at is null
        and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
      order by b.created_at desc, b.id desc limit p_limit) p
    order by p.created_at desc, p.id desc limit p_limit;
end
$$;

-- COMPLETED, FAILED or CANCELLED batches by the time of their end, in the same way.
create function helix.read_finished(
  p_tenant text, p_queue text, p_ending smallint, p_since timestamptz, p_at timestamptz, p_id bigint,
  p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as (
      select q.id from helix.read_queue_ids(p_tenant, p_queue) q
      cross join lateral (
        select e.at, e.batch from helix.ended e
        where e.queue = q.id and e.ending = p_ending
          and e.at >= p_since and (e.at, e.batch) < (p_at, p_id)
        order by e.at desc, e.batch desc limit 1) newest
      order by newest.at desc, newest.batch desc limit p_limit
    )
    select null::timestamptz, null::bigint, p.at, p.batch from line l
    cross join lateral (
      select e.at, e.batch from helix.ended e
      where e.queue = l.id and e.ending = p_ending
        and e.at >= p_since and (e.at, e.batch) < (p_at, p_id)
      order by e.at desc, e.batch desc limit p_limit) p
    order by p.at desc, p.batch desc limit p_limit;
end
$$;

-- Finished batches of one worker or, of FAILED ones, of one failure class; null for any. No index has
-- either, so each queue that has any is scanned for its share of p_look rows. The edge is where the first
-- of them stopped: later rows belong to the next page, also where another queue was read further.
create function helix.read_finished_by(
  p_tenant text, p_queue text, p_ending smallint, p_worker text, p_failure text, p_since timestamptz,
  p_at timestamptz, p_id bigint, p_look integer, p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as (
      select q.id, greatest(p_look / count(*) over (), 1) as share
      from helix.read_queue_ids(p_tenant, p_queue) q
      cross join lateral (
        select from helix.ended e
        where e.queue = q.id and e.ending = p_ending
          and e.at >= p_since and (e.at, e.batch) < (p_at, p_id)
        order by e.at desc, e.batch desc limit 1) newest
    ),
    seen as materialized (
      select p.at, p.id, row_number() over (partition by l.id order by p.at desc, p.id desc) = l.share as last
      from line l
      cross join lateral (
        select e.at, e.batch as id from helix.ended e
        where e.queue = l.id and e.ending = p_ending
          and e.at >= p_since and (e.at, e.batch) < (p_at, p_id)
        order by e.at desc, e.batch desc limit l.share) p
    ),
    edge as (select s.at, s.id from seen s where s.last order by s.at desc, s.id desc limit 1),
    page as (
      select s.at, s.id from seen s
      left join edge e on true
      left join lateral (select w.actor, w.version from helix.work w
                         where w.batch = s.id and (p_worker is not null or p_failure is not null)
                         limit 1) w on true
      left join lateral (select r.failure::text as failure from helix.result r
                         where r.batch = s.id and r.version = w.version and p_failure is not null
                         limit 1) r on true
      where (p_worker is null or w.actor = p_worker) and (p_failure is null or r.failure = p_failure)
        and (e.id is null or (s.at, s.id) >= (e.at, e.id))
      order by s.at desc, s.id desc limit p_limit
    )
    select e.at, e.id, p.at, p.id
    from (values (1)) as always (one) left join edge e on true left join page p on true;
end
$$;

-- Batches whose lease a worker lost, by the newest p_look entries about lost leases. The entry before is of the
-- worker that held the lease.
create function helix.read_lost_by(p_queues integer[], p_worker text, p_look integer)
returns table (batch bigint, number bigint)
language sql stable as $$
  select u.batch, u.before
  from (select e.batch, e.queue, e.before, e.reason from helix.entry e
        where e.reason in ('retried', 'cancelled', 'recovered', 'lost')
        order by e.at desc, e.id desc, e.part desc limit p_look) e
  cross join lateral unnest(e.batch, e.queue, e.before) as u (batch, queue, before)
  where e.reason in ('recovered', 'lost') and (p_queues is null or u.queue = any (p_queues))
    and exists (select from helix.entry c where c.id = u.before and c.actor = p_worker)
$$;

-- ASSIGNED and RUNNING batches, of one worker or of all, from the highest batch id; of one worker and without a
-- state, also batches that it lost. The claims of the last seconds and those with live leases are read whole; p_look
-- bounds the batches that are looked up.
create function helix.read_leased(
  p_tenant text, p_queue text, p_state helix.state, p_worker text, p_since timestamptz,
  p_until timestamptz, p_id bigint, p_look integer, p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
declare
  v_queues integer[] := case when p_tenant is null and p_queue is null then helix.session_queues()
                             else array(select q.id from helix.read_queue_ids(p_tenant, p_queue) q) end;
begin
  return query
    with seen as materialized (
      select c.batch as id, c.number, c.lost,
             row_number() over (order by c.batch desc, c.number desc, c.lost) = p_look as last
      from (select c.batch, c.number, c.lost
            from (select c.batch, c.number, false as lost from helix.read_claimed(v_queues, null) c
                  union all
                  select l.batch, l.number, true from helix.read_lost_by(v_queues, p_worker, p_look) l
                  where p_worker is not null and p_state is null) c
            where c.batch < p_id
            -- A batch that was claimed twice is here twice; only its newest claim can be live.
            order by c.batch desc, c.number desc, c.lost limit p_look) c
    ),
    edge as (
      select b.at, s.id from seen s
      cross join lateral (select b.created_at as at from helix.batch b where b.id = s.id limit 1) b
      where s.last
    ),
    page as (
      select distinct b.at, s.id from seen s
      cross join lateral (select b.created_at as at from helix.batch b where b.id = s.id limit 1) b
      where (s.lost
             or exists (select from helix.work w
                        where w.batch = s.id and w.number = s.number
                          and w.state in ('ASSIGNED', 'RUNNING') and (p_state is null or w.state = p_state)
                          and (p_worker is null or w.actor = p_worker)))
        and b.at >= p_since and b.at < p_until
      order by s.id desc limit p_limit
    )
    select e.at, e.id, p.at, p.id
    from (values (1)) as always (one) left join edge e on true left join page p on true;
end
$$;

-- PENDING batches by the time of submission. Of a queue with few, all are read, however many batches were
-- finished since. A queue with many is scanned from its newest batch, where pending ones usually are: until
-- they fill a page, or for its share of p_look rows.
create function helix.read_pending(
  p_tenant text, p_queue text, p_since timestamptz, p_at timestamptz, p_id bigint, p_look integer,
  p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as (
      select q.id, greatest(p_look / count(*) over (), 1)::integer as share
      from helix.read_queue_ids(p_tenant, p_queue) q
      cross join lateral (
        (select 1 from helix.work w where w.pending and w.queue = q.id limit 1)
        union all
        (select 1 from helix.work w where w.cause is not null and w.queue = q.id limit 1)
        limit 1) has_any
    ),
    few as materialized (
      select l.id as queue, p.batch, count(*) over (partition by l.id) > l.share as many
      from line l
      cross join lateral (
        (select w.batch from helix.work w where w.pending and w.queue = l.id limit l.share + 1)
        union all
        (select w.batch from helix.work w where w.cause is not null and w.queue = l.id limit l.share + 1)
        limit l.share + 1) p
    ),
    deep as (select l.id, l.share from line l where l.id in (select f.queue from few f where f.many)),
    seen as materialized (
      select b.at, f.batch as id, f.queue from few f
      cross join lateral (select b.created_at as at from helix.batch b where b.id = f.batch limit 1) b
      where not f.many and b.at >= p_since and (b.at, f.batch) < (p_at, p_id)
      union all
      select p.at, p.id, d.id from deep d
      cross join lateral (
        select b.at, b.id
        from (select b.created_at as at, b.id from helix.batch b
              where b.queue = d.id and b.retired_at is null
                and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
              order by b.created_at desc, b.id desc limit d.share) b
        cross join lateral (select w.state from helix.work w where w.batch = b.id limit 1) w
        where w.state = 'PENDING'
        order by b.at desc, b.id desc limit p_limit) p
    ),
    -- A queue that filled the page by itself was read far enough.
    edge as (
      select p.at, p.id from deep d
      cross join lateral (
        select b.created_at as at, b.id from helix.batch b
        where b.queue = d.id and b.retired_at is null
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc offset d.share - 1 limit 1) p
      where (select count(*) from seen s where s.queue = d.id) < p_limit
      order by p.at desc, p.id desc limit 1
    ),
    page as (
      select s.at, s.id from seen s left join edge e on true
      where e.id is null or (s.at, s.id) >= (e.at, e.id)
      order by s.at desc, s.id desc limit p_limit
    )
    select e.at, e.id, p.at, p.id
    from (values (1)) as always (one) left join edge e on true left join page p on true;
end
$$;

-- Whether a batch passes the filters of the two scans below. A worker means the one that holds the batch
-- now or lost it or, with a finished state, the one that finished it. A failure class means that of a FAILED batch.
create function helix.read_matches(p_batch bigint, p_state helix.state, p_worker text, p_failure text)
returns boolean
language sql stable as $$
  select exists (
    select from helix.work w
    where w.batch = p_batch and (p_state is null or w.state = p_state)
      and (p_worker is null
           or w.actor = p_worker
              and (w.state in ('ASSIGNED', 'RUNNING')
                   or w.state in ('COMPLETED', 'FAILED', 'CANCELLED') and p_state is not null)
           or p_state is null
              and exists (select from helix.history_of(array[w.batch]) h join helix.entry c on c.id = h.number
                          where h.reason in ('lost', 'recovered') and c.actor = p_worker))
      and (p_failure is null
           or w.state = 'FAILED'
              and exists (select from helix.result r
                          where r.batch = w.batch and r.version = w.version and r.failure = p_failure)))
$$;

-- Every queue and revision of one identity, given by its canonical forms, one per profile. Without a
-- revision the key of each queue finds it; others have an index, and an identity may have many of them.
create function helix.read_of_identity(
  p_tenant text, p_queue text, p_identity text[], p_run bigint, p_state helix.state, p_worker text,
  p_failure text, p_since timestamptz, p_at timestamptz, p_id bigint, p_look integer, p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as materialized (
      select q.id, q.tenant, q.name, f.form
      from helix.read_queue_ids(p_tenant, p_queue) q cross join unnest(p_identity) as f (form)
    ),
    revisions as (
      select l.id, l.form, greatest(p_look / count(*) over (), 1) as share from line l
      cross join lateral (
        select from helix.batch b
        where b.queue = l.id and b.identity = l.form and b.revision <> ''
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc limit 1) newest
    ),
    revised as materialized (
      select r.at, r.id, r.run,
             row_number() over (partition by l.id, l.form order by r.at desc, r.id desc) = l.share as last
      from revisions l
      cross join lateral (
        select b.created_at as at, b.id, b.run from helix.batch b
        where b.queue = l.id and b.identity = l.form and b.revision <> ''
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc limit l.share) r
    ),
    edge as (select r.at, r.id from revised r where r.last order by r.at desc, r.id desc limit 1),
    found as (
      select b.created_at as at, b.id, b.run from helix.batch b
      where b.key = any (array(select helix.derive_key(l.tenant, l.name, l.form, '') from line l))
        and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
      union all
      select r.at, r.id, r.run from revised r
    ),
    page as (
      select f.at, f.id from found f left join edge e on true
      where (p_run is null or f.run = p_run) and (e.id is null or (f.at, f.id) >= (e.at, e.id))
        and helix.read_matches(f.id, p_state, p_worker, p_failure)
      order by f.at desc, f.id desc limit p_limit
    )
    select e.at, e.id, p.at, p.id
    from (values (1)) as always (one) left join edge e on true left join page p on true;
end
$$;

-- The batches of one run, in any state. The index has the run; each queue that has any is scanned for its
-- share of p_look rows, to which the other filters are applied.
create function helix.read_of_run(
  p_tenant text, p_queue text, p_run bigint, p_state helix.state, p_worker text, p_failure text,
  p_since timestamptz, p_at timestamptz, p_id bigint, p_look integer, p_limit integer
) returns setof helix.list_place
language plpgsql stable as $$
begin
  return query
    with line as (
      select q.id, greatest(p_look / count(*) over (), 1) as share
      from helix.read_queue_ids(p_tenant, p_queue) q
      cross join lateral (
        select from helix.batch b
        where b.queue = q.id and b.run = p_run and b.retired_at is null
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc limit 1) newest
    ),
    seen as materialized (
      select p.at, p.id, row_number() over (partition by l.id order by p.at desc, p.id desc) = l.share as last
      from line l
      cross join lateral (
        select b.created_at as at, b.id from helix.batch b
        where b.queue = l.id and b.run = p_run and b.retired_at is null
          and b.created_at >= p_since and (b.created_at, b.id) < (p_at, p_id)
        order by b.created_at desc, b.id desc limit l.share) p
    ),
    edge as (select s.at, s.id from seen s where s.last order by s.at desc, s.id desc limit 1),
    page as (
      select s.at, s.id from seen s left join edge e on true
      where (e.id is null or (s.at, s.id) >= (e.at, e.id))
        and helix.read_matches(s.id, p_state, p_worker, p_failure)
      order by s.at desc, s.id desc limit p_limit
    )
    select e.at, e.id, p.at, p.id
    from (values (1)) as always (one) left join edge e on true left join page p on true;
end
$$;
