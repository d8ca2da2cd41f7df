-- Wake-ups for idle workers. A NOTIFY takes a database-wide lock at commit and would halve the rate at
-- which a busy queue takes submissions, so a submission notifies only workers that are registered as waiting, and
-- busy workers are not. No rule depends on it: a worker also polls every second or so.

-- The channel for a queue and the workers of one login that act for the same tenants. Any role may listen
-- to any channel, so its name is derived from a secret: a session learns only of work that its own
-- workers wait for. The tenants are part of it because the HTTP service is one login for many of them.
create function helix.wake_channel(p_queue text, p_login name, p_tenants text[]) returns text
language sql stable as $$
  select 'helix_' || left(encode(sha256(
           s.outer_pad || convert_to(jsonb_build_array(p_queue, p_login, p_tenants)::text, 'UTF8')),
           'hex'), 24)
  from helix.secret s order by s.id limit 1
$$;

-- Notifies the workers that wait for this queue and may claim this tenant's work.
create function helix.wake(p_tenant text, p_queue text) returns void
language plpgsql as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  if exists (select from helix.waiter w where w.queue = p_queue and w.until > v_now) then
    perform pg_notify(c.channel, '')
    from (select distinct w.channel from helix.waiter w
          where w.queue = p_queue and w.until > v_now
            and (w.tenants is null or p_tenant = any (w.tenants))) c;
  end if;
end
$$;

-- Registers a worker as waiting for these queues for p_seconds, or with 0 unregisters it. Returns
-- the channels to listen to. The worker claims once more after this call: a submission before it
-- found no waiting worker.
create function helix.wait_v1(p_worker text, p_queues text[], p_seconds real) returns text[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_tenants text[] := helix.enter();
  v_now     timestamptz := clock_timestamp();
begin
  delete from helix.waiter w
  where w.until < v_now
     or (p_seconds <= 0 and w.login = session_user and w.worker = p_worker and w.queue = any (p_queues));
  if p_seconds > 0 then
    insert into helix.waiter as w (queue, login, worker, tenants, channel, until)
    select distinct u.queue, session_user, p_worker, v_tenants,
           helix.wake_channel(u.queue, session_user, v_tenants),
           v_now + make_interval(secs => least(p_seconds, 300))
    from unnest(p_queues[1:1000]) as u (queue)
    order by u.queue
    on conflict (queue, login, worker) do update
      set until = excluded.until, tenants = excluded.tenants, channel = excluded.channel;
  end if;
  return array(select helix.wake_channel(u.queue, session_user, v_tenants)
               from unnest(p_queues[1:1000]) as u (queue));
end
$$;
