-- Duties: periodic background work, without a leader. Every claim and every service checks regularly whether
-- a duty is due and locks the row of the duty while it runs; others skip it. If the process dies, its
-- transaction is rolled back and the duty is still due. No guarantee depends on it: every call compares the
-- clock itself.

create table helix.duty (
  duty      text primary key,
  every     interval not null,
  of_claims boolean not null default false,  -- claims run it too, so that no service is required
  next_at   timestamptz not null default '-infinity',
  last_at   timestamptz,                     -- when it last finished
  actor     text,                            -- the process that ran it last
  did       integer not null default 0,      -- rows of the last run
  total     bigint not null default 0,       -- rows of all runs
  seconds   double precision not null default 0,  -- duration of the last run
  failures  bigint not null default 0,
  -- SQLSTATE of a failed run; the message may contain a tenant's data, and every tenant can read this.
  failed    text,
  mark      bigint not null default 0        -- the position of a duty that scans a table in steps
) with (fillfactor = 50);
insert into helix.duty (duty, every, of_claims) values
  ('reap',    '250 ms', true),   -- leases past their deadline; a quarter of the shortest sensible lease
  ('promote', '250 ms', true),   -- waiting batches whose cause no longer holds
  ('expire',  '2 s', true),      -- batches not started in time
  ('answers', '15 s', true),    -- counts of answers that changed nothing, of minutes that are over
  ('sweep',   '15 s', true),     -- lists of queues in lanes; old request ids, login codes, workers and lanes
  ('runs',    '1 s', true),      -- counts of runs; stops, cancels and ends them
  ('fences',  '10 s', false),    -- fences past their lease, answers and tombstones past their time
  ('retire',  '10 s', false),    -- finished batches and decisions past what their queue keeps
  ('archive', '30 s', false),    -- ledger entries whose batches are all retired
  ('metrics', '15 s', false),    -- counters and gauges of /metrics
  ('reconcile', '60 s', false),  -- new claims and live leases, compared with ledger and requests
  ('audit',   '60 s', false);    -- every row of work once a day, a part per run
-- These two follow the ledger by position; it begins with this transaction.
update helix.duty d set mark = helix.current_position() where d.duty in ('metrics', 'reconcile');

do $$
begin
  perform helix.protect_table('helix.duty'::regclass, 'helix.guard'::regproc);
end
$$;

-- The result of one run of a duty; no row when none was due.
create type helix.duty_result as (
  duty    text,
  did     integer,   -- rows; as many as allowed means that there is more to do
  seconds double precision,
  error   text       -- why it failed, for the log of the service
);

-- Runs one duty that is due, for all tenants, on a bounded number of rows in one transaction. Only for logins
-- that act for all tenants, also one per transaction: a service sees no rows and learns only numbers here.
create function helix.run_duty_v1(p_actor text, p_limit integer default 1000)
returns setof helix.duty_result
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
declare
  v_began timestamptz := clock_timestamp();
  v_limit integer := least(greatest(p_limit, 1), 10000);
  v_actor text := helix.actor_of(p_actor);
  v_done  helix.duty_result;
  v_code  text;
begin
  perform helix.enter();
  if not pg_has_role(session_user, 'helix_operator', 'usage')
     and not exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*')
  then
    raise exception using errcode = 'insufficient_privilege',
      message = format('expected a role that acts for all tenants, got %s: duties are for all tenants',
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
    v_done.did := helix.perform_duty(v_done.duty, v_actor, v_limit);
  exception when others then
    -- Recorded and retried later: a failing duty must not block the others.
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

-- Runs a duty by its name; returns the number of rows.
create function helix.perform_duty(p_duty text, p_actor text, p_limit integer) returns integer
language plpgsql as $$
begin
  return case p_duty
    when 'reap' then helix.reap_since(p_actor, p_limit)
    when 'promote' then helix.promote(p_limit)
    when 'expire' then helix.expire_due(p_actor, p_limit)
    when 'runs' then helix.advance_runs(p_limit)
    when 'fences' then (select greatest(t.doubted + t.released, t.emptied, t.forgotten)
                        from helix.sweep_fences(p_actor, p_limit) t)
    when 'retire' then greatest(helix.retire_due(p_limit), helix.delete_old_decisions(p_limit),
                                 helix.expire_letters(p_limit))
    when 'answers' then helix.fold_answers(p_limit)
    when 'archive' then helix.archive(p_limit)
    when 'sweep' then helix.sweep(p_limit)
    when 'metrics' then helix.keep_metrics(p_limit)
    when 'reconcile' then helix.reconcile(p_limit)
    when 'audit' then helix.audit_rows(p_limit)
  end;
end
$$;

-- Runs the duties that claims share, so that no batch is stuck while any worker claims (G6).
create function helix.run_claim_duties(p_worker text) returns void
language plpgsql as $$
declare
  v_scope text;
  v_actor text;
  v_duty  text;
  v_did   integer;
begin
  -- Usually none is due, which is checked without a lock.
  if not exists (select from helix.duty d where d.of_claims and d.next_at < clock_timestamp()) then
    return;
  end if;
  v_scope := current_setting('helix.scope');
  -- A duty is for all tenants, and its actor is written to their ledgers: a login of one tenant must not
  -- write a name of its choice into another's ledger.
  v_actor := case when v_scope = '*' then p_worker else 'duty' end;
  perform set_config('helix.scope', '*', true);
  for v_duty in
    select d.duty from helix.duty d where d.of_claims and d.next_at < clock_timestamp()
    order by d.duty for update skip locked
  loop
    v_did := helix.perform_duty(v_duty, v_actor, 1000);
    update helix.duty d
    set next_at = clock_timestamp() + d.every, last_at = clock_timestamp(), actor = v_actor, did = v_did,
        total = d.total + v_did
    where d.duty = v_duty;
  end loop;
  perform set_config('helix.scope', v_scope, true);
end
$$;

-- Changes how often a duty runs; the change is recorded with its reason.
create function helix.set_duty_v1(
  p_duty text, p_every_seconds double precision, p_actor text default null, p_reason text default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_was interval;
begin
  perform helix.enter();
  if p_every_seconds not between 0.05 and 86400 then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected 0.05 to 86400 seconds, got %s', p_every_seconds);
  end if;
  select d.every into v_was from helix.duty d where d.duty = p_duty for update;
  if not found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected one of the duties %s, got %L',
                       (select string_agg(d.duty, ', ' order by d.duty) from helix.duty d), p_duty);
  end if;
  update helix.duty d set every = make_interval(secs => p_every_seconds), next_at = clock_timestamp()
  where d.duty = p_duty;
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values ('*', 'duty/' || p_duty, 'setting', helix.actor_of(p_actor),
          jsonb_build_object('every_seconds', p_every_seconds, 'was', extract(epoch from v_was),
                             'reason', p_reason)::text);
end
$$;
