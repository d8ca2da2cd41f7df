-- A claim for one batch: the path of workers that run one batch after the other (decision 20). It takes three
-- statements; claim_v1 (51_claim.sql) decides when.

-- `choose` for a worker that wants one batch, of all tenants or of one queue (p_mine): one statement. A batch
-- that is not plain is left to `choose`. The two statements differ in the index that they read.
create function helix.choose_one(
  p_queues text[], p_mine integer, p_free helix.resources, p_hint_lane integer[], p_hint_turn bigint[],
  p_hint_batch bigint[]
) returns helix.chosen
language plpgsql as $$
declare
  v_one helix.chosen;
begin
  if p_mine is null then
    select r.batch, r.ctid, f.id, r.turn, r.queue, q.lease_seconds,
           helix.is_plain(r.limit_key, r.expires_at, q.paused),
           f.served_at < clock_timestamp() - interval '1 s'
    into v_one
    from (select l.id, l.served_at from helix.fitting_lanes(p_queues, p_free, '{}') l
          order by l.priority + random() offset 0) f
    cross join lateral (
      select n.batch, n.ctid, n.turn, n.queue, n.limit_key, n.expires_at from helix.work n
      where n.pending and n.lane = f.id
        and (n.turn, n.batch) > (helix.hinted(p_hint_turn, p_hint_lane, f.id),
                                 helix.hinted(p_hint_batch, p_hint_lane, f.id))
      order by n.turn, n.batch limit 1 for update skip locked) r
    cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                        where s.id = r.queue offset 0) q
    limit 1;
  else
    select r.batch, r.ctid, f.id, r.turn, p_mine, q.lease_seconds,
           helix.is_plain(r.limit_key, r.expires_at, q.paused),
           f.served_at < clock_timestamp() - interval '1 s'
    into v_one
    from (select l.id, l.served_at from helix.fitting_lanes(p_queues, p_free, '{}') l
          order by l.priority + random() offset 0) f
    cross join lateral (
      select n.batch, n.ctid, n.turn, n.limit_key, n.expires_at from helix.work n
      where n.pending and n.queue = p_mine and n.lane = f.id
        and (n.turn, n.batch) > (helix.hinted(p_hint_turn, p_hint_lane, f.id),
                                 helix.hinted(p_hint_batch, p_hint_lane, f.id))
      order by n.turn, n.batch limit 1 for update skip locked) r
    cross join lateral (select s.lease_seconds, s.paused from helix.queue s
                        where s.id = p_mine offset 0) q
    limit 1;
  end if;
  return v_one;
end
$$;

-- Leases the batch that `choose_one` found, as claim_v1 does with many: header and lease. Null: the request has
-- leases already. p_content: the hash of what the lease holds of its host (55_device.sql).
create function helix.lease_one(
  p_one helix.chosen, p_worker text, p_request uuid, p_start boolean, p_seconds real, p_epoch integer,
  p_settled helix.answer[], p_content bytea default null
) returns helix.lease[]
language plpgsql as $$
declare
  v_epoch    integer := coalesce(p_epoch, helix.current_epoch());
  v_entry    bigint := nextval('helix.entry_id');
  v_nonce    bigint := hashtextextended(gen_random_uuid()::text, 0);
  v_now      timestamptz := clock_timestamp();
  v_seconds  real := coalesce(p_seconds, p_one.lease_seconds);
  v_deadline timestamptz := v_now + make_interval(secs => v_seconds);
  v_state    helix.state := case when p_start then 'RUNNING' else 'ASSIGNED' end;
  v_allocated bigint := case when p_content is not null then v_entry end;
  v_row      record;
begin
  insert into helix.request (id, number, worker, unsettled, due)
  values (p_request, v_entry, p_worker, 1, v_now + make_interval(secs => least(10, v_seconds)))
  on conflict do nothing;
  if not found then
    return null;
  end if;
  update helix.work w
  set state = v_state, pending = false, version = w.version + 1 + p_start::int,
      version_before = w.version,
      attempt = w.attempt + 1, epoch = v_epoch, nonce = v_nonce, number = v_entry, deadline = v_deadline,
      lease_seconds = v_seconds, entry = v_entry, before = w.entry, came_from = w.state,
      reason = case when p_start then 'started' else 'claimed' end::helix.reason, changed_at = v_now,
      actor = p_worker, step = true, late = false, content = p_content, allocated = v_allocated
  from helix.batch b, helix.queue q
  where w.ctid = p_one.tuple and b.id = p_one.batch and q.id = p_one.queue
  returning w.batch, w.queue, w.attempt, b.key, b.identity, b.revision, b.payload::text as payload,
            q.tenant, q.name, b.run
  into v_row;
  return array[
    helix.claim_header(
      p_settled, v_state, v_epoch, v_nonce, v_entry,
      helix.queue_header(v_row.queue, v_row.tenant, v_row.name, v_seconds, v_deadline),
      format('[%s,%s,%s]', p_one.lane, p_one.turn, p_one.batch), false),
    row(v_row.batch, v_row.queue, v_row.attempt, v_row.key, v_row.identity, v_row.revision,
        v_row.payload, v_row.run)::helix.lease];
end
$$;
