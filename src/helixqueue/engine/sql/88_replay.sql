-- What `helixq replay` reads. It folds the ledger outside of the database and compares the result with
-- where batches stand. A session that sees every tenant reads whole entries and verifies their hashes
-- itself. A tenant's session reads its own steps; entries may contain steps of other tenants, so there
-- the database verifies the hash and returns whether it matches.

-- Whether what this session reads is everything, or only the rows of some tenants.
create function helix.read_every_tenant_v1() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select helix.session_tenants() is null
$$;

-- The tenants that this login is bound to, and whether it must name one per transaction.
create function helix.read_bindings_v1() returns table (tenant text, by_setting boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select b.tenant, b.by_setting from helix.role_tenant b where b.role = session_user order by b.tenant
$$;

-- An entry as a replay reads it: enums as text, because their binary form needs the type numbers of the
-- database.
create type helix.replay_entry as (
  id         bigint,
  part       smallint,
  at         timestamptz,
  position   bigint,
  epoch      integer,
  from_state text,
  to_state   text,
  reason     text,
  late       boolean,
  hash       bytea,
  actor      text,
  batch      bigint[],    -- null: archived
  queue      integer[],
  version    integer[],
  attempt    smallint[],
  before     bigint[],
  content    bytea[],
  sound      boolean      -- whether the hash matches; null: to be verified by the reader
);

-- The next entries of the whole ledger, in the order of ids and parts. Ids jump after a failover, so pages
-- continue after the last entry and not after a range of ids.
create function helix.read_entries_v1(p_id bigint, p_part smallint, p_limit integer)
returns setof helix.replay_entry
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off as $$
begin
  if helix.session_tenants() is not null then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not read whole ledger entries', session_user),
      hint = 'Entries contain steps of all tenants; read_chains_v1 returns those of your own.';
  end if;
  return query
    select e.id, e.part, e.at, e.position, e.epoch, e.from_state::text, e.to_state::text, e.reason::text, e.late,
           e.hash, e.actor, e.batch, e.queue, e.version, e.attempt, e.before, e.content, null::boolean
    from helix.entry e
    where (e.id, e.part) > (p_id, p_part) order by e.id, e.part limit least(p_limit, 10000);
end
$$;

-- The next batches of the session's tenants after a batch (0: from the first one on). Sessions that see
-- every tenant scan by id; others by queue and arrival, so that they do not step over the batches of others.
create function helix.read_next_batches(p_after bigint, p_limit integer) returns bigint[]
language plpgsql stable
-- Its own plan, whatever the functions that call it have set for theirs.
set enable_seqscan = off set enable_indexscan = on set enable_bitmapscan = off set enable_nestloop = on
set enable_sort = on set jit = off as $$
declare
  v_queues integer[] := helix.session_queues();
  v_after  record;
begin
  if v_queues is null then
    return array(select b.id from helix.batch b where b.id > p_after order by b.id limit p_limit);
  end if;
  select b.queue, b.created_at, b.id into v_after from helix.batch b where b.id = p_after;
  return array(
    select n.id
    from (select q.id from unnest(v_queues) as q (id)
          where q.id >= coalesce(v_after.queue, q.id) order by q.id) q
    cross join lateral (
      select b.id, b.created_at from helix.batch b
      where b.queue = q.id
        and (b.created_at, b.id) > (case when q.id = v_after.queue then v_after.created_at
                                         else '-infinity' end, coalesce(v_after.id, 0))
      order by b.created_at, b.id limit p_limit) n
    order by q.id, n.created_at, n.id limit p_limit);
end
$$;

-- The ledger of the next batches after one: the entries that their histories lead to, with the steps of
-- these batches only, and the archived entries among them.
create function helix.read_chains_v1(p_after bigint, p_limit integer)
returns setof helix.replay_entry
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
-- A constant array is searched by hashing, a variable one from its first element on.
set plan_cache_mode = force_custom_plan as $$
declare
  v_batch bigint[] := helix.read_next_batches(p_after, least(p_limit, 1000));
begin
  return query
    -- From the last entries of these batches along `before`. UNION keeps each entry once, so an entry is
    -- read once, however many of the batches it has.
    with recursive touched as (
      (select w.entry as id from helix.work w where w.batch = any (v_batch)
       union
       select b.entry from helix.batch b where b.id = any (v_batch) and b.entry is not null)
      union
      select u.before
      from touched t
      join helix.entry e on e.id = t.id
      cross join lateral unnest(e.batch, e.before) as u (batch, before)
      where u.batch = any (v_batch) and u.before is not null
    ),
    own as materialized (
      select e.id, e.part, e.at, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.late, e.actor, s.*,
             e.hash is not distinct from helix.entry_hash(
               (select array_agg(p.hash order by p.id, p.part) from helix.entry p
                where p.id = any (array(select distinct b from unnest(e.before) b))),
               e.id, e.part, e.at, e.position, e.epoch, e.from_state, e.to_state, e.reason, e.late, e.actor,
               e.batch, e.queue, e.version, e.attempt, e.before, e.content) as sound
      from touched t
      join helix.entry e on e.id = t.id
      cross join lateral (
        select array_agg(u.batch) as batch, array_agg(u.queue) as queue, array_agg(u.version) as version,
               array_agg(u.attempt) as attempt,
               case when count(u.before) > 0 then array_agg(u.before) end as before
        from unnest(e.batch, e.queue, e.version, e.attempt, e.before)
          as u (batch, queue, version, attempt, before)
        where u.batch = any (v_batch)) s
      where s.batch is not null
    )
    select p.* from (
      select o.id, o.part, o.at, o.position, o.epoch, o.from_state::text, o.to_state::text, o.reason::text,
             o.late, null::bytea, o.actor, o.batch, o.queue, o.version, o.attempt, o.before, null::bytea[],
             o.sound
      from own o
      union all
      select e.id, e.part, e.at, e.position, e.epoch, e.from_state::text, e.to_state::text, e.reason::text,
             e.late, null::bytea, e.actor, null, null, null, null, null, null, true
      from helix.entry e
      where e.batch is null and e.id = any (array(select t.id from touched t))) p
    order by p.id, p.part;
end
$$;

-- The stored states of the next batches: one row for all batches that stand equally; 0 stands for a number or
-- an epoch that is null. A batch without a row of work is retired, or its row was deleted.
create function helix.read_batch_states_v1(p_after bigint, p_limit integer)
returns table (reached bigint, retired boolean, working boolean, state text, entry bigint, version integer,
               attempt smallint, queue integer, number bigint, epoch integer, batch bigint[])
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
-- Bitmaps read each page of a table once. Ids of neighbours are apart in it, so an index scan would visit
-- a page for each batch.
set enable_seqscan = off set enable_indexscan = off set enable_nestloop = off set enable_mergejoin = off
set enable_sort = off set jit = off
-- With the values known, PostgreSQL plans only the half of the query that applies.
set plan_cache_mode = force_custom_plan as $$
declare
  v_batch bigint[] := helix.read_next_batches(p_after, least(p_limit, 10000));
  v_last  bigint := v_batch[cardinality(v_batch)];
  -- Where a page is a range of ids, reading the range is four times as fast as looking each id up.
  v_every boolean := helix.session_tenants() is null;
begin
  return query
    select v_last, s.retired, s.working, s.state::text, s.entry, s.version, s.attempt, s.queue, s.number,
           s.epoch, array_agg(s.id)
    from (select b.id, b.retired_at is not null as retired, w.batch is not null as working,
                 coalesce(w.state, b.state) as state,
                 coalesce(w.queue, b.queue) as queue, coalesce(w.version, b.version, 0) as version,
                 coalesce(w.attempt, b.attempt, 0::smallint) as attempt,
                 coalesce(w.entry, b.entry, 0) as entry, coalesce(w.number, 0) as number,
                 coalesce(w.epoch, 0) as epoch
          from (select b.* from helix.batch b where v_every and b.id > p_after and b.id <= v_last
                union all
                select b.* from helix.batch b where not v_every and b.id = any (v_batch)) b
          left join (
            select w.batch, w.state, w.queue, w.version, w.attempt, w.entry, w.number, w.epoch
            from helix.work w where v_every and w.batch > p_after and w.batch <= v_last
            union all
            select w.batch, w.state, w.queue, w.version, w.attempt, w.entry, w.number, w.epoch
            from helix.work w where not v_every and w.batch = any (v_batch)) w on w.batch = b.id) s
    group by s.retired, s.working, s.state, s.entry, s.version, s.attempt, s.queue, s.number, s.epoch;
end
$$;
