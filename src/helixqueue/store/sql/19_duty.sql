-- Background duties: what time alone decides, done on a clock by services, though nobody claims. There
-- is no leader to elect and nothing to hand over. Every replica asks now and then whether a duty is
-- due; the duty's row, locked while one does it, lets the others pass. Whoever dies in the middle
-- leaves a transaction that is undone, and the next to ask finds the duty due. No rule rests on any of
-- it: every call decides by the clock anyway, and claims reap.

-- One row a duty: when it is due next, and what was seen of it last. It names no tenant.
create table helix.duty (
  duty      text primary key,
  every     interval not null,
  next_at   timestamptz not null default '-infinity',
  last_at   timestamptz,                   -- when it was last done to its end
  actor     text,                          -- and by whom
  did       integer not null default 0,    -- rows of the last run
  total     bigint not null default 0,     -- and of all
  seconds   double precision not null default 0,  -- that the last run took
  failures  bigint not null default 0,
  -- SQLSTATE of a run that failed; the words may be about somebody's data, and everybody reads this.
  failed    text
) with (fillfactor = 50);
insert into helix.duty (duty, every) values
  ('reap',    '1 s'),   -- leases past their deadline; claims do it four times as often
  ('promote', '1 s'),   -- waiting batches whose time has come
  ('expire',  '2 s'),   -- batches nobody began in time
  ('fences',  '10 s'),  -- fences past their lease, answers and tombstones past their time
  ('retire',  '10 s'),  -- finished batches and decisions past what their queue keeps
  ('sweep',   '60 s');  -- old request ids and login codes, the next partition of the ledger

do $$
begin
  perform helix.enclose('helix.duty'::regclass, 'helix.guard'::regproc);
  perform helix.always_on('helix.duty'::regclass);
end
$$;

-- What a run of a duty came to; no row when none was due.
create type helix.tended as (
  duty    text,
  did     integer,   -- rows; as many as allowed means that there is more to do
  seconds double precision,
  error   text       -- why it failed, for the log of the service that asked
);

-- Does one duty that is due, for all tenants, a bounded number of rows in one transaction. For logins
-- that act for all tenants, if by turns: a service sees no rows by itself, and learns nothing here but
-- numbers. One that acts for some would take a turn that is everybody's.
create function helix.tend_v1(p_actor text, p_limit integer default 1000)
returns setof helix.tended
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_began timestamptz := clock_timestamp();
  v_limit integer := least(greatest(p_limit, 1), 10000);
  v_actor text := coalesce(p_actor, session_user);
  v_done  helix.tended;
  v_code  text;
begin
  perform helix.enter();
  if not pg_has_role(session_user, 'helix_operator', 'member')
     and not exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*')
  then
    raise exception using errcode = 'insufficient_privilege',
      message = format('role %s may not do duties: it acts for some tenants, they are for all',
                       session_user),
      hint = 'An operator binds it with helix.bind_v1(role, ''*'', true).';
  end if;
  select d.duty into v_done.duty from helix.duty d where d.next_at <= v_began
  order by d.next_at limit 1 for update skip locked;
  if not found then
    return;
  end if;
  perform set_config('helix.scope', '*', true);
  begin
    v_done.did := helix.do_duty(v_done.duty, v_actor, v_limit);
  exception when others then
    -- Told, and tried again later: one duty that fails must not keep the others from their turn.
    get stacked diagnostics v_done.error = message_text, v_code = returned_sqlstate;
  end;
  v_done.seconds := extract(epoch from clock_timestamp() - v_began);
  update helix.duty d set
    next_at  = case when v_done.did >= v_limit then v_began
                    else v_began + greatest(d.every, make_interval(secs => v_done.seconds))
                         + case when v_code is null then interval '0' else interval '5 s' end end,
    last_at  = case when v_code is null then v_began else d.last_at end,
    actor    = v_actor,
    did      = coalesce(v_done.did, 0),
    total    = d.total + coalesce(v_done.did, 0),
    seconds  = v_done.seconds,
    failures = d.failures + (v_code is not null)::int,
    failed   = v_code
  where d.duty = v_done.duty;
  return next v_done;
end
$$;

-- The duties by their names; how many rows each was about.
create function helix.do_duty(p_duty text, p_actor text, p_limit integer) returns integer
language plpgsql as $$
begin
  return case p_duty
    when 'reap' then helix.reap(p_actor, p_limit)
    when 'promote' then helix.promote(p_limit)
    when 'expire' then helix.expire_due(p_actor, p_limit)
    when 'fences' then (select greatest(t.doubted + t.released, t.emptied, t.forgotten)
                        from helix.tend_fences(p_actor, p_limit) t)
    when 'retire' then greatest(helix.retire_due(p_limit), helix.forget_decisions(p_limit))
    when 'sweep' then helix.sweep(p_limit)
  end;
end
$$;

-- What was kept for repeats that can no longer come, and room for the ledger to grow.
create function helix.sweep(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  perform helix.extend_ledger();
  delete from helix.request r
  where r.id in (select o.id from helix.request o
                 where o.at < clock_timestamp() - interval '1 day'
                 limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  return greatest(v_gone, helix.forget_logins(p_limit), helix.forget_workers(p_limit));
end
$$;

-- Workers that were not heard of for a month: where every start has a name of its own, they would
-- pile up. One that says hello this moment is skipped, or is new again.
create function helix.forget_workers(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.worker w
  where (w.role, w.name) in (select o.role, o.name from helix.worker o
                             where o.last_seen < statement_timestamp() - interval '30 days'
                             limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;
