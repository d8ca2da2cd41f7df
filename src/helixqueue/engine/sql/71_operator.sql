-- Calls of operators and applications about batches by public id: cancel, retry, release, erase, recover.
-- Answers are ok | repeat | refused | busy | illegal.

create type helix.verdict as (
  public_id uuid,
  answer    text,
  state     helix.state,   -- of the batch after this call
  note      text,
  queue     text,
  identity  text,
  revision  text
);

-- The batches of some public ids, in the lock order of all calls. Without p_lock the rows stay unlocked, for
-- calls that only report what they would do.
create function helix.find_work(p_ids uuid[], p_lock boolean) returns bigint[]
language plpgsql as $$
begin
  if p_lock then
    return array(select w.batch from helix.work w
                 where w.batch in (select l.batch from helix.locate(p_ids) l)
                 order by w.batch for update);
  end if;
  return array(select w.batch from helix.work w
               where w.batch in (select l.batch from helix.locate(p_ids) l));
end
$$;

-- One answer per id, in the order of p_ids: ok if p_done has the batch, repeat if its last step shows that
-- this actor did the same before, else illegal; unknown ids are refused.
create function helix.answer_by_id(
  p_ids uuid[], p_done bigint[], p_state helix.state, p_reason helix.reason, p_actor text
) returns setof helix.verdict
language plpgsql stable as $$
begin
  return query
    select given.id,
           case when l.batch is null then 'refused'
                when l.batch = any (p_done) then 'ok'
                when coalesce(w.state, b.state) = p_state
                     and (p_reason is null or w.reason = p_reason)
                     and (p_actor is null or w.actor = p_actor) then 'repeat'
                else 'illegal' end,
           coalesce(w.state, b.state),
           case when l.batch is null then 'no such batch' end,
           q.name, b.identity::text, b.revision::text
    from unnest(p_ids) with ordinality as given (id, place)
    left join helix.locate(p_ids) l on l.public_id = given.id
    left join helix.work w on w.batch = l.batch
    left join helix.batch b on b.id = l.batch
    left join helix.queue q on q.id = b.queue
    order by given.place;
end
$$;

-- PENDING, ASSIGNED and RUNNING batches can be cancelled. The token of a running worker is stale from
-- then on; the worker is informed by its next renewal. A dry run answers the same and changes nothing.
create function helix.cancel_v1(
  p_ids uuid[], p_actor text, p_detail text, p_dry_run boolean default false
)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := helix.actor_of(p_actor);
  v_held  bigint[];
begin
  perform helix.enter();
  v_held := helix.find_work(p_ids, not p_dry_run);
  v_held := array(select w.batch from helix.work w
                  where w.batch = any (v_held) and w.state in ('PENDING', 'ASSIGNED', 'RUNNING'));
  if not p_dry_run then
    perform helix.cancel(v_held, 'cancelled', v_actor, p_detail);
    perform helix.link_fence(v_held);
  end if;
  return query select * from helix.answer_by_id(p_ids, v_held, 'CANCELLED', null, null);
end
$$;

-- Cancels batches whose rows the caller has locked.
create function helix.cancel(p_batch bigint[], p_reason helix.reason, p_actor text, p_detail text)
returns void
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_entry bigint;
begin
  if p_batch = '{}' then
    return;
  end if;
  v_entry := helix.next_entry();
  with cancelled as (
    update helix.work w
    set state = 'CANCELLED', version = w.version + 1, version_before = w.version, reason = p_reason,
        late = false, actor = p_actor,
        entry = v_entry, before = w.entry, came_from = w.state, changed_at = v_now, step = true,
        pending = false, cause = null, due = null,
        content = helix.content_hash(null, t.detail, null)
    from (select c.batch, case p_reason when 'expired' then format('not started before %s', c.expires_at)
                          else p_detail end as detail
          from helix.work c where c.batch = any (p_batch)) t
    where w.batch = t.batch
    returning w.batch, w.version, w.queue, t.detail
  )
  insert into helix.result (batch, version, queue, detail)
  select c.batch, c.version, c.queue, c.detail from cancelled c where c.detail is not null;
end
$$;

-- FAILED > PENDING for batches whose rows the caller has locked.
create function helix.reopen(p_batch bigint[], p_actor text, p_detail text) returns void
language plpgsql as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_entry bigint;
begin
  if p_batch = '{}' then
    return;
  end if;
  v_entry := helix.next_entry();
  perform helix.link_fence(p_batch);
  perform helix.activate_lanes(p_batch);
  delete from helix.ended e using helix.work w
  where w.batch = any (p_batch) and e.queue = w.queue and e.ending = 2 and e.at = w.changed_at
    and e.batch = w.batch;
  with again as (
    update helix.work w
    set state = 'PENDING', version = w.version + 1, version_before = w.version, reason = 'retried',
        late = false, actor = p_actor,
        entry = v_entry, before = w.entry, came_from = w.state, changed_at = v_now, step = true,
        attempt = 0, turn = t.turn, pending = not t.paused,
        cause = case when t.paused then 'paused' end::helix.cause,
        content = helix.content_hash(null, p_detail, null)
    from (select f.batch, q.paused,
                 helix.turn_after(f.lane, f.queue)
                 + row_number() over (partition by f.lane, f.queue order by f.batch) as turn
          from helix.work f join helix.queue q on q.id = f.queue
          where f.batch = any (p_batch)) t
    where w.batch = t.batch
    returning w.batch, w.version, w.queue
  )
  insert into helix.result (batch, version, queue, detail)
  select a.batch, a.version, a.queue, p_detail from again a where p_detail is not null;
end
$$;

-- FAILED > PENDING, with the full number of attempts. Not for erased batches: they have no payload.
-- A dry run answers the same and changes nothing.
create function helix.retry_v1(
  p_ids uuid[], p_actor text, p_detail text, p_dry_run boolean default false
)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := helix.actor_of(p_actor);
  v_held  bigint[];
begin
  perform helix.enter();
  v_held := helix.find_work(p_ids, not p_dry_run);
  v_held := array(select w.batch from helix.work w join helix.batch b on b.id = w.batch
                  where w.batch = any (v_held) and w.state = 'FAILED' and b.payload is not null);
  if not p_dry_run then
    perform helix.reopen(v_held, v_actor, p_detail);
  end if;
  return query
    select v.public_id, v.answer, v.state,
           coalesce(v.note, case when b.retired_at is null and b.payload is null
                                 then 'its payload was erased' end),
           v.queue, v.identity, v.revision
    from helix.answer_by_id(p_ids, v_held, 'PENDING', 'retried', v_actor) v
    left join helix.locate(p_ids) l on l.public_id = v.public_id
    left join helix.batch b on b.id = l.batch
    order by array_position(p_ids, v.public_id);
end
$$;

-- An operator's release: ASSIGNED, RUNNING > PENDING without the worker, as when a node is known to be
-- gone and its lease should not be waited for. It costs no attempt. If the worker is alive after all, its
-- next write is refused and kept.
create function helix.release_by_id_v1(p_ids uuid[], p_actor text, p_detail text)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := helix.actor_of(p_actor);
  v_held  bigint[];
begin
  perform helix.enter();
  v_held := helix.find_work(p_ids, true);
  v_held := array(select w.batch from helix.work w
                  where w.batch = any (v_held) and w.state in ('ASSIGNED', 'RUNNING'));
  if v_held <> '{}' then
    perform helix.end_leases(v_held, 'released', v_actor, null,
                             array_fill(p_detail, array[cardinality(v_held)]));
    perform helix.link_fence(v_held);
  end if;
  return query select * from helix.answer_by_id(p_ids, v_held, 'PENDING', 'released', v_actor);
end
$$;

-- Deletes payload, result and failure details, which may quote the payload (the right to erasure), and their
-- copies in fences; with p_identity also the other texts of the submitter and of the worker: the identity in both
-- spellings, revision, limit key, sources and failure classes. Key, fingerprint and ledger stay: that the work
-- happened is not erased, what it was about is.
create function helix.erase_v1(
  p_ids uuid[], p_actor text, p_detail text, p_identity boolean default false
)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_mine bigint[];
  v_done bigint[];
begin
  perform helix.enter();
  -- Only finished batches: a worker may hold the payload of any other.
  v_mine := helix.find_work(p_ids, true);
  v_mine := array(select w.batch from helix.work w
                  where w.batch = any (v_mine) and w.state in ('COMPLETED', 'FAILED', 'CANCELLED'));
  with emptied as (
    update helix.batch b
    set payload = null, identity = case when p_identity then null else b.identity end,
        raw = case when p_identity then null else b.raw end,
        revision = case when p_identity then '' else b.revision end,
        limit_key = case when p_identity then null else b.limit_key end
    where b.id = any (v_mine)
      and (b.payload is not null
           or p_identity and (b.revision <> '' or coalesce(b.identity, b.raw, b.limit_key) is not null))
    returning b.id
  ),
  unsaid as (
    update helix.result r
    set result = null, detail = case when r.failure is null then r.detail end,
        failure = case when not p_identity then r.failure end
    where r.batch = any (v_mine)
      and (r.result is not null or r.failure is not null and (p_identity or r.detail is not null))
    returning r.batch
  )
  select array_agg(distinct e.id) into v_done from (
    select id from emptied union all select batch from unsaid
    union all select unnest(helix.remove_outputs(v_mine))) e;
  delete from helix.difference d where d.batch = any (v_mine);
  if p_identity then
    perform helix.forget_keys(array_agg(w.queue), array_agg(w.limit_key)) from helix.work w
    where w.batch = any (v_mine) and w.limit_key is not null having count(*) > 0;
    update helix.work w set step = false, limit_key = null
    where w.batch = any (v_mine) and w.limit_key is not null;
    -- The hash stays, so that the source is recognised.
    update helix.source s set kind = null, name = null, id = null, actor = null
    where s.batch = any (v_mine) and s.kind is not null;
  end if;
  perform helix.empty_fences(v_mine, p_identity);
  perform helix.link_fence(v_mine);
  perform helix.empty_letters(v_mine);
  insert into helix.decision (tenant, queue, kind, batch, actor, detail)
  select q.tenant, q.name, k.kind, b.id, helix.actor_of(p_actor), p_detail
  from helix.batch b join helix.queue q on q.id = b.queue
  -- By the second record, `check` knows an identity that was erased from one that was removed.
  cross join (values ('erased', true), ('identity_erased', p_identity)) as k (kind, is_made)
  where b.id = any (v_done) and k.is_made
  order by b.id, k.kind;
  return query
    select given.id,
           case when l.batch is null then 'refused'
                when l.batch = any (v_done) then 'ok'
                when l.batch = any (v_mine) then 'repeat'
                else 'illegal' end,
           helix.state_of(l.batch),
           case when l.batch is null then 'no such batch' end,
           q.name, b.identity::text, b.revision::text
    from unnest(p_ids) with ordinality as given (id, place)
    left join helix.locate(p_ids) l on l.public_id = given.id
    left join helix.batch b on b.id = l.batch
    left join helix.queue q on q.id = b.queue
    order by given.place;
end
$$;

-- After a restore or a suspected split brain, while no client writes: a new epoch, every lease ends, and every fenced effect that had
-- started is in doubt. Every old token is refused from now on.
create function helix.recover_v1(p_actor text, p_detail text)
returns table (epoch integer, ended integer, doubted integer)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_epoch  helix.epoch;
  v_leased bigint[];
begin
  perform helix.enter();
  -- Every transaction that writes has read this table. The lock waits for those that run and holds off new ones: no
  -- position of the last epoch can appear after the first of the new one.
  lock table helix.epoch in access exclusive mode;
  perform helix.current_epoch();   -- Where the server changed, sequences move ahead first.
  insert into helix.epoch as e (number, cluster, timeline, reason)
  values (helix.next_epoch(helix.timeline()), helix.cluster_id(), helix.timeline(), coalesce(p_detail, 'recover'))
  returning * into v_epoch;
  -- No index has the leased rows; a recovery may read the whole table.
  v_leased := array(select w.batch from helix.work w
                    where w.state in ('ASSIGNED', 'RUNNING') order by w.batch for update);
  if v_leased <> '{}' then
    perform helix.end_leases(v_leased, 'recovered', helix.actor_of(p_actor), null,
                             array_fill(p_detail, array[cardinality(v_leased)]));
  end if;
  return query select v_epoch.number, cardinality(v_leased),
                      helix.recover_fences(helix.actor_of(p_actor), p_detail);
end
$$;

-- A new key for the fingerprints of new work. Old fingerprints keep the key they were made with, so
-- repeats still match.
create function helix.rotate_secret_v1() returns smallint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_id smallint;
begin
  perform helix.enter();
  insert into helix.secret (id, inner_pad, outer_pad)
  select (select max(s.id) + 1 from helix.secret s), pads.inner_pad, pads.outer_pad
  from helix.new_secret_pads() pads
  returning id into v_id;
  return v_id;
end
$$;
