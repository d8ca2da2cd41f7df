-- What people and programs decide about a batch from outside: cancel, retry, erase, recover.
-- Batches are named by their public ids; answers use the words ok | repeat | refused | busy | illegal.

create type helix.verdict as (
  public_id uuid,
  answer    text,
  state     helix.state,   -- where the batch stands after this
  note      text
);

-- PENDING, ASSIGNED and RUNNING batches can be cancelled; a running worker's token dies with the
-- lease, and it learns so at its next renewal.
create function helix.cancel_v1(p_ids uuid[], p_actor text, p_detail text)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := coalesce(p_actor, session_user);
  v_left  bigint[];
  v_held  bigint[];
  v_done  bigint[] := '{}';
begin
  perform helix.enter();
  -- Cancels of overlapping sets meet here, where batches do not move and one order is possible: in
  -- the tables of where they stand, one cancel would find active what another finds ready.
  v_left := array(select b.id from helix.batch b
                  where b.id in (select l.batch from helix.locate(p_ids) l)
                  order by b.id for update);
  -- First all the locks, then one statement that deletes.
  v_held := array(select a.batch from helix.active a where a.batch = any (v_left)
                  order by a.batch for update)
         || array(select r.batch from helix.ready r where r.batch = any (v_left)
                  order by r.batch for update)
         || array(select w.batch from helix.waiting w where w.batch = any (v_left)
                  order by w.batch for update);
  -- A batch may have moved on between two of these. It is looked for again, but no longer waited
  -- for: whoever has it may be waiting for something that is held here.
  for round in 1..5 loop
    v_left := array(select b from unnest(v_left) b
                    where b <> all (v_held)
                      and not exists (select from helix.outcome o where o.batch = b)
                      and not exists (select from helix.retired d where d.batch = b));
    exit when v_left = '{}';
    v_held := v_held
      || array(select a.batch from helix.active a where a.batch = any (v_left) for update skip locked)
      || array(select r.batch from helix.ready r where r.batch = any (v_left) for update skip locked)
      || array(select w.batch from helix.waiting w where w.batch = any (v_left)
               for update skip locked);
  end loop;
  v_left := array(select b from unnest(v_left) b where b <> all (v_held));

  if v_held <> '{}' then
    perform helix.lock_keys(v_held);
    with leased as (
      delete from helix.active a where a.batch = any (v_held)
      returning a.batch, a.tenant, a.version, a.attempt, a.epoch, a.number, a.lane
    ),
    readied as (
      delete from helix.ready r where r.batch = any (v_held)
      returning r.batch, r.tenant, r.version, r.attempt, r.epoch, r.number, r.lane
    ),
    parked as (
      delete from helix.waiting w where w.batch = any (v_held)
      returning w.batch, w.tenant, w.version, w.attempt, w.epoch, w.number, w.lane
    ),
    kept as (
      insert into helix.outcome (batch, tenant, state, ending, version, attempt, epoch, number, actor,
                                 reason, detail, lane, queue)
      select g.batch, g.tenant, 'CANCELLED', 3, g.version + 1, g.attempt, g.epoch, g.number, v_actor,
             'cancelled', p_detail, g.lane, l.queue
      from (select * from leased union all select * from readied union all select * from parked) g
      join helix.lane l on l.id = g.lane
      returning batch
    )
    select coalesce(array_agg(k.batch), '{}') into v_done from kept k;
  end if;

  return query
    select asked.id,
           case when l.batch is null then 'refused'
                when l.batch = any (v_done) then 'ok'
                when l.batch = any (v_left) then 'busy'
                when helix.state_of(l.batch) = 'CANCELLED' then 'repeat'
                else 'illegal' end,
           helix.state_of(l.batch),
           case when l.batch is null then 'no such batch' end
    from unnest(p_ids) as asked (id)
    left join helix.locate(p_ids) l on l.public_id = asked.id;
end
$$;

-- FAILED > PENDING, with all tries anew; not what was erased, for a worker would get no payload.
create function helix.retry_v1(p_ids uuid[], p_actor text, p_detail text)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := coalesce(p_actor, session_user);
  v_done  bigint[];
begin
  perform helix.enter();
  perform from helix.outcome o
  where o.batch in (select l.batch from helix.locate(p_ids) l)
  order by o.batch for update;
  with failed as (
    delete from helix.outcome o
    where o.state = 'FAILED'
      and o.batch in (select l.batch from helix.locate(p_ids) l
                      join helix.batch b on b.id = l.batch where b.payload is not null)
    returning o.*
  ),
  again as (
    insert into helix.ready (batch, tenant, version, attempt, actor, reason, detail, lane, turn,
                             limit_key, expires_at)
    select f.batch, f.tenant, f.version + 1, 0, v_actor, 'retried', p_detail, f.lane,
           helix.turn_after(f.lane, f.tenant)
           + row_number() over (partition by f.lane, f.tenant order by f.batch),
           b.limit_key, b.expires_at
    from failed f join helix.batch b on b.id = f.batch
    returning batch
  )
  select coalesce(array_agg(a.batch), '{}') into v_done from again a;

  return query
    select asked.id,
           case when l.batch is null then 'refused'
                when l.batch = any (v_done) then 'ok'
                when d.state = 'PENDING' and d.reason = 'retried' and d.actor = v_actor then 'repeat'
                else 'illegal' end,
           helix.state_of(l.batch),
           case when l.batch is null then 'no such batch'
                when b.id is not null and b.payload is null then 'its payload was erased' end
    from unnest(p_ids) as asked (id)
    left join helix.locate(p_ids) l on l.public_id = asked.id
    left join helix.batch b on b.id = l.batch
    left join lateral (select e.to_state as state, e.reason, e.actor from helix.event e
                       where e.batch = l.batch order by e.version desc limit 1) d on true;
end
$$;

-- Empties payload and result (a person's right to be forgotten). The fingerprint and the ledger
-- stay: that the work happened is not erased, what it was about is.
create function helix.erase_v1(p_ids uuid[], p_actor text, p_detail text)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_mine bigint[];
  v_done bigint[];
begin
  perform helix.enter();
  -- Only finished batches: a worker may be holding the payload of any other.
  select array_agg(o.batch) into v_mine from (
    select o.batch from helix.outcome o
    where o.batch in (select l.batch from helix.locate(p_ids) l)
    order by o.batch for update) o;
  with emptied as (
    update helix.batch b set payload = null
    where b.id = any (v_mine) and b.payload is not null returning b.id
  ),
  unsaid as (
    update helix.outcome o set result = null
    where o.batch = any (v_mine) and o.result is not null returning o.batch
  )
  select array_agg(distinct e.id) into v_done from (
    select id from emptied union all select batch from unsaid) e;
  insert into helix.decision (tenant, queue, kind, batch, actor, detail)
  select b.tenant, b.queue, 'erased', b.id, coalesce(p_actor, session_user), p_detail
  from helix.batch b where b.id = any (v_done);
  return query
    select asked.id,
           case when l.batch is null then 'refused'
                when l.batch = any (v_done) then 'ok'
                when l.batch = any (v_mine) then 'repeat'
                else 'illegal' end,
           helix.state_of(l.batch),
           case when l.batch is null then 'no such batch' end
    from unnest(p_ids) as asked (id)
    left join helix.locate(p_ids) l on l.public_id = asked.id;
end
$$;

-- After a restore or a suspected split: a new epoch, every lease ends, and every fenced effect that had
-- begun is in doubt. Whoever holds an old token is refused from now on.
create function helix.recover_v1(p_actor text, p_detail text)
returns table (epoch integer, ended integer, doubted integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_epoch helix.epoch;
  v_ended integer;
begin
  perform helix.enter();
  insert into helix.epoch as e (number, timeline, reason)
  select helix.next_epoch(now.timeline), now.timeline, coalesce(p_detail, 'recover')
  from (select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) as timeline) now
  returning * into v_epoch;
  perform from helix.active a order by a.batch for update;
  select count(*) into v_ended from (
    select helix.vacate(array_agg(a.batch), 'recovered', coalesce(p_actor, session_user), null,
                        array_agg(p_detail))
    from helix.active a having count(*) > 0) v;
  return query select v_epoch.number, v_ended,
                      helix.recover_fences(coalesce(p_actor, session_user), p_detail);
end
$$;

-- A new key for the fingerprints of new work. Old fingerprints keep the key they were made with, so
-- repeats go on matching.
create function helix.rotate_secret_v1() returns smallint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_id smallint;
begin
  perform helix.enter();
  insert into helix.secret (id, inner_pad, outer_pad)
  select (select max(s.id) + 1 from helix.secret s), pads.inner_pad, pads.outer_pad
  from helix.fresh_pads() pads
  returning id into v_id;
  return v_id;
end
$$;
