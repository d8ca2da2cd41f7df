-- Runs: their start, their datums, and an operator's cancel and retry.

-- The answer to a call about a run.
create type helix.run_answer as (
  answer   text,    -- start: new | same | conflict | occupied; else ok | repeat | illegal | absent
  run      bigint,
  name     text,
  state    text,
  appended bigint,
  note     text
);

-- The id of a run: the same for every call with its key, and without a counter that all tenants share.
create function helix.run_hash(p_tenant text, p_key text) returns text
language sql stable parallel safe as $$
  select encode(sha256(helix.framed(p_tenant) || helix.framed(p_key)), 'hex')
$$;

-- Where runs of a tenant find what they name: below the longest root that applies, with its mapping. Null: below none.
create function helix.stored_at(p_tenant text, p_uri text, p_is_input boolean) returns text
language sql stable as $$
  select coalesce(r.stored_at, r.uri) || substr(p_uri, length(r.uri) + 1)
  from helix.output_root r
  where r.tenant in (p_tenant, '*') and (p_uri = r.uri or starts_with(p_uri, r.uri || '/'))
    and (p_is_input or not r.is_input)
  order by length(r.uri) desc, r.tenant desc limit 1
$$;

-- Final names below a destination that batches of other runs have, as many as a message shows.
create function helix.occupied_names(p_destination text, p_run bigint) returns text[]
language sql stable as $$
  select array_agg(format('%s (run %s)', n.uri, n.name) order by n.uri) from (
    select m.destination || '/' || o.path as uri, r.name
    from helix.run r
    join helix.manifest m on m.run = r.id
    join helix.output o on o.manifest = m.id
    where r.id <> p_run and p_destination <> '' and r.destination <> ''
      and (starts_with(r.destination || '/', p_destination || '/')
           or starts_with(p_destination || '/', r.destination || '/'))
      and starts_with(m.destination || '/' || o.path, p_destination || '/')
      and exists (select from helix.output_name u
                  where u.hash = helix.output_hash(m.destination, o.path) and u.batch = m.batch)
    limit 20) n
$$;

-- Starts a run, whose datums follow. The key decides which call is the first: a repeat with the same spec and
-- datums answers the same run, another one conflicts. With layout `run` its files go into a folder of its name.
create function helix.start_run_v1(
  p_tenant text, p_queue text, p_key text, p_name text, p_digest bytea, p_datums bigint, p_spec text,
  p_received text, p_egress text, p_layout text, p_tries integer, p_timeout_seconds double precision,
  p_priority smallint, p_actor text, p_requires text default null
) returns setof helix.run_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_hash   text := helix.run_hash(p_tenant, p_key);
  v_id     bigint := ('x' || substr(v_hash, 1, 13))::bit(52)::bigint;
  v_name   text;
  v_egress text := rtrim(p_egress, '/');
  v_place  text := '';
  v_queue  helix.queue;
  v_names  text[];
  v_run    helix.run;
begin
  perform helix.enter_for(p_tenant);
  v_name := left(trim(regexp_replace(lower(p_name), '[^a-z0-9]+', '-', 'g'), '-'), 52);
  v_name := coalesce(nullif(v_name, '') || '-', 'run-') || substr(v_hash, 14, 10);
  select * into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  if v_queue.profile is distinct from 'text-v1' then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected a queue with profile text-v1 for datums, got %s',
                       coalesce(p_queue || ' with ' || v_queue.profile, 'no queue ' || p_queue));
  end if;
  if v_egress <> '' then
    v_place := helix.stored_at(p_tenant, v_egress, false) || case p_layout when 'run' then '/' || v_name else '' end;
    if helix.is_destination(v_place) is not true then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('expected an egress below a root of tenant %s, got %L', p_tenant, left(p_egress, 500)),
        hint = 'An operator adds a root with helixq output root URI.';
    end if;
  end if;
  if not exists (select from helix.run r where r.id = v_id) then
    v_names := helix.occupied_names(v_place, v_id);
    if v_names is not null then
      return next row('occupied', null, v_name, null, null, array_to_string(v_names, ', '))::helix.run_answer;
      return;
    end if;
    insert into helix.run (id, queue, datums, tries, priority, state, tenant, name, key, digest, requires, egress,
                           destination, received, spec, actor, timeout_seconds, deadline)
    values (v_id, v_queue.id, p_datums, p_tries, p_priority,
            case when p_datums = 0 then 'running' else 'expanding' end, p_tenant, v_name, p_key, p_digest,
            p_requires, p_egress, v_place, p_received, p_spec, helix.actor_of(p_actor), p_timeout_seconds, null)
    on conflict (id) do nothing;
    if found then
      return query select 'new', r.id, r.name, r.state, r.appended, null::text from helix.run r where r.id = v_id;
      return;
    end if;
  end if;
  select * into v_run from helix.run r where r.id = v_id;
  return next row(
    case when (v_run.tenant, v_run.key, v_run.digest::bytea, v_run.datums, v_run.spec, v_run.destination,
               v_run.queue)
              is not distinct from (p_tenant, p_key, p_digest, p_datums, p_spec, v_place, v_queue.id)
         then 'same' else 'conflict' end,
    v_run.id, v_run.name, v_run.state, v_run.appended,
    concat_ws(', ', case when v_run.spec <> p_spec then 'the spec' end,
              case when (v_run.digest::bytea, v_run.datums) is distinct from (p_digest, p_datums)
                   then format('the datums (%s, not %s)', v_run.datums, p_datums) end,
              case when v_run.destination <> v_place then 'the egress' end,
              case when v_run.queue <> v_queue.id then 'the queue' end))::helix.run_answer;
end
$$;

-- Appends the datums from number p_first on; the last one closes the run. A page that is there already is a repeat,
-- so a start that was interrupted continues after `appended`.
create function helix.append_run_v1(
  p_tenant text, p_run bigint, p_first bigint, p_identity text[], p_payload text[], p_raw text[], p_actor text
) returns setof helix.run_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_count integer := cardinality(p_payload);
  v_run   helix.run;
  v_queue text;
  v_roots text[];
  v_wrong text;
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_parallel(v_count, helix.shape(p_identity), helix.shape(p_payload), helix.shape(p_raw));
  select * into v_run from helix.run r where r.id = p_run and r.tenant = p_tenant for update;
  if not found then
    return next row('absent', null, null, null, null, null)::helix.run_answer;
    return;
  elsif p_first + v_count <= v_run.appended or v_run.state <> 'expanding' then
    return next row(case when p_first + v_count <= v_run.appended then 'repeat' else 'illegal' end, v_run.id,
                    v_run.name, v_run.state, v_run.appended, null)::helix.run_answer;
    return;
  elsif p_first <> v_run.appended or p_first + v_count > v_run.datums then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'run %s: expected datums from number %s to %s, got %s from number %s', v_run.name, v_run.appended,
      v_run.datums - 1, v_count, p_first);
  end if;
  select u.identity into v_wrong from unnest(p_identity) as u (identity)
  where starts_with(u.identity, v_run.name || E'\x1f') is not true limit 1;
  if found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('run %s: expected identities of this run and a datum, got %L', v_run.name, left(v_wrong, 200));
  end if;
  v_roots := array(select coalesce(r.stored_at, r.uri) from helix.output_root r where r.tenant in (p_tenant, '*'));
  select i.uri into v_wrong
  from unnest(p_payload) as u (payload)
  cross join lateral (select j ->> 'uri' as uri from json_array_elements(u.payload::json -> 'inputs') j) i
  where (exists (select from unnest(v_roots) as r (root)
                 where i.uri = r.root or starts_with(i.uri, r.root || '/'))
         and i.uri !~ '(^|/)[.][.]?(/|$)') is not true limit 1;
  if found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('run %s: expected inputs below a root of tenant %s, got %L', v_run.name, p_tenant,
                       left(v_wrong, 500)),
      hint = 'An operator adds a root with helixq output root URI.';
  end if;
  select q.name into v_queue from helix.queue q where q.id = v_run.queue;
  select format('%s is %s%s', replace(p_identity[s.place], E'\x1f', '/'), s.decision, coalesce(': ' || s.note, ''))
  into v_wrong
  from helix.submit_many(
    p_tenant, v_queue, helix.actor_of(p_actor), 'text-v1', p_identity, p_payload, p_raw, null,
    case when v_run.priority <> 5 then array_fill(v_run.priority::smallint, array[v_count]) end, null, null, null,
    case when v_run.requires is not null then array_fill(v_run.requires, array[v_count]) end, null, '{}', p_run) s
  where s.decision <> 'new' limit 1;
  if found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('run %s: expected new datums; %s', v_run.name, v_wrong);
  end if;
  insert into helix.run_change (run, queue, what, value) values (p_run, v_run.queue, 'PENDING', v_count);
  update helix.run r
  set appended = r.appended + v_count,
      state = case when r.appended + v_count = r.datums then 'running' else r.state end,
      deadline = case when r.appended + v_count = r.datums
                      then clock_timestamp() + make_interval(secs => r.timeout_seconds) end
  where r.id = p_run returning * into v_run;
  return next row('ok', v_run.id, v_run.name, v_run.state, v_run.appended, null)::helix.run_answer;
end
$$;

-- Cancels a run: its batches that have not ended are CANCELLED, the leases of their workers end.
create function helix.cancel_run_v1(p_tenant text, p_run bigint, p_actor text, p_reason text)
returns setof helix.run_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
begin
  perform helix.enter_for(p_tenant);
  return query select * from helix.sweep_from_start(
    p_tenant, p_run, 'cancelling', '{expanding,running,stopping,reopening,failed}', '{cancelling,cancelled}',
    helix.actor_of(p_actor), p_reason);
end
$$;

-- Reopens the same run: its failed batches, with all their tries, and those that never ran.
create function helix.retry_run_v1(p_tenant text, p_run bigint, p_actor text, p_reason text)
returns setof helix.run_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
begin
  perform helix.enter_for(p_tenant);
  return query select * from helix.sweep_from_start(
    p_tenant, p_run, 'reopening', '{running,failed}', '{reopening}', helix.actor_of(p_actor), p_reason);
end
$$;

-- Begins to change the batches of a run: a page at once, the rest by the duty `runs`.
create function helix.sweep_from_start(
  p_tenant text, p_run bigint, p_state text, p_from text[], p_repeat text[], p_actor text, p_reason text
) returns setof helix.run_answer
language plpgsql as $$
declare
  v_run    helix.run;
  v_answer text;
begin
  select * into v_run from helix.run r where r.id = p_run and r.tenant = p_tenant for update;
  v_answer := case when not found then 'absent' when v_run.state = any (p_repeat) then 'repeat'
                   when v_run.state = any (p_from) then 'ok' else 'illegal' end;
  if v_answer = 'ok' then
    update helix.run r
    set state = p_state, swept_at = '-infinity', swept_batch = 0, ended_at = null,
        problem = case when p_state = 'cancelling' then left(p_reason, 16000) end,
        deadline = case when p_state = 'reopening'
                        then clock_timestamp() + make_interval(secs => r.timeout_seconds) end
    where r.id = p_run;
    insert into helix.decision (tenant, queue, kind, actor, detail)
    values (p_tenant, 'run/' || v_run.name, 'setting', p_actor,
            jsonb_build_object('state', p_state, 'reason', p_reason)::text);
    perform helix.sweep_run(p_run, 1000, p_actor);
    select * into v_run from helix.run r where r.id = p_run;
  end if;
  return next row(v_answer, v_run.id, v_run.name, v_run.state, v_run.appended, null)::helix.run_answer;
end
$$;
