-- Waking workers that wait. A NOTIFY takes a lock of the whole database at commit and would halve what
-- a busy queue can take in, so a submission tells only those who said that they wait, and workers that
-- have work do not say so. Nothing rests on it: a worker looks for itself every second or so.

-- The channel of a queue. Anybody may listen to any channel, so it does not tell the queue's name.
create function helix.wake_channel(p_queue text) returns text
language sql immutable parallel safe as $$ select 'helix_' || left(md5(p_queue), 16) $$;

-- Says that a worker waits for these queues, for so long unless it says otherwise; with 0, that it
-- does no more. Returns the channels to listen to. Whoever waits claims once more after saying so:
-- what was submitted before that told nobody.
create function helix.wait_v1(p_worker text, p_queues text[], p_seconds real) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.enter();
  delete from helix.waiter w
  where w.until < v_now
     or (p_seconds <= 0 and w.login = session_user and w.worker = p_worker and w.queue = any (p_queues));
  if p_seconds > 0 then
    insert into helix.waiter as w (queue, login, worker, until)
    select distinct u.queue, session_user, p_worker,
           v_now + make_interval(secs => least(p_seconds, 300))
    from unnest(p_queues[1:1000]) as u (queue)
    order by u.queue
    on conflict (queue, login, worker) do update set until = excluded.until;
  end if;
  return array(select helix.wake_channel(u.queue) from unnest(p_queues[1:1000]) as u (queue));
end
$$;
