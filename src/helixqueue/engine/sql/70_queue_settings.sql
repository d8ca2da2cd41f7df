-- Queues and bindings: what operators and programs set.

-- Every setting can be passed alone; a null setting stays as it is, or takes the table's default in a new
-- queue. The change is recorded as a decision with the operator's reason; an application that declares its
-- queue has none.
create function helix.set_queue_v1(
  p_tenant text, p_queue text, p_actor text,
  p_profile text default null, p_lease_seconds real default null,
  p_max_attempts smallint default null, p_backoff_seconds real default null,
  p_backoff_max_seconds real default null, p_key_limit integer default null,
  p_unknown text default null, p_paused boolean default null, p_closed boolean default null,
  p_requires jsonb default null, p_payload_schema jsonb default null,
  p_result_schema jsonb default null, p_keep_completed_seconds double precision default null,
  p_keep_failed_seconds double precision default null,
  p_keep_cancelled_seconds double precision default null,
  p_keep_decisions_seconds double precision default null, p_reason text default null
) returns helix.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_queue helix.queue;
  v_class integer;
begin
  perform helix.enter_for(p_tenant);
  v_class := helix.class_of(p_requires);
  -- The row first, with defaults; then one update that serves new and old queues alike.
  insert into helix.queue (tenant, name, profile)
  values (p_tenant, p_queue, coalesce(p_profile, 'text-v1')) on conflict do nothing;
  update helix.queue q set
    lease_seconds       = coalesce(p_lease_seconds, q.lease_seconds),
    max_attempts        = coalesce(p_max_attempts, q.max_attempts),
    backoff_seconds     = coalesce(p_backoff_seconds, q.backoff_seconds),
    backoff_max_seconds = coalesce(p_backoff_max_seconds, q.backoff_max_seconds),
    key_limit           = coalesce(p_key_limit, q.key_limit),
    unknown             = coalesce(p_unknown, q.unknown),
    paused              = coalesce(p_paused, q.paused),
    closed              = coalesce(p_closed, q.closed),
    class               = coalesce(v_class, q.class),
    payload_schema      = coalesce(p_payload_schema, q.payload_schema),
    result_schema       = coalesce(p_result_schema, q.result_schema),
    keep_completed_seconds = coalesce(p_keep_completed_seconds, q.keep_completed_seconds),
    keep_failed_seconds    = coalesce(p_keep_failed_seconds, q.keep_failed_seconds),
    keep_cancelled_seconds = coalesce(p_keep_cancelled_seconds, q.keep_cancelled_seconds),
    keep_decisions_seconds = coalesce(p_keep_decisions_seconds, q.keep_decisions_seconds),
    updated_at          = clock_timestamp()
  where q.tenant = p_tenant and q.name = p_queue
  returning * into v_queue;
  -- Under another profile an identity that is known would have another key, and be done again.
  if v_queue.profile <> p_profile then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('queue %s has profile %s for good; it cannot become %s', p_queue,
                       v_queue.profile, p_profile),
      hint = 'Make a new queue with that profile.';
  end if;
  -- Schemas are kept as digests: two of them would not fit into a decision.
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (p_tenant, p_queue, 'setting', coalesce(p_actor, session_user),
          (to_jsonb(v_queue) - '{id,tenant,name,created_at,updated_at}'::text[]
           || jsonb_build_object(
                'payload_schema', encode(sha256(convert_to(v_queue.payload_schema::text, 'UTF8')), 'hex'),
                'result_schema', encode(sha256(convert_to(v_queue.result_schema::text, 'UTF8')), 'hex'))
           || jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
          )::text);
  -- Submitters that race on a brand-new lane would wait for each other; make the usual one now.
  perform helix.lane_of(p_tenant, p_queue, v_queue.class, 5::smallint);
  return v_queue;
end
$$;

-- What a queue requires of its workers. Volatile, so that the statement which declares a queue can read
-- its answer from here: a join would miss the class and the queue that were made a moment before.
create function helix.queue_requires_v1(p_tenant text, p_queue text) returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  return (select c.requires from helix.queue q join helix.requirement_class c on c.id = q.class
          where q.tenant = p_tenant and q.name = p_queue);
end
$$;

-- Binds a login role to a tenant ('*': to all). With by_setting the role must name its tenant in
-- helix.tenant, transaction by transaction.
create function helix.bind_v1(p_role name, p_tenant text, p_by_setting boolean default false)
returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  insert into helix.role_tenant (role, tenant, by_setting) values (p_role, p_tenant, p_by_setting)
  on conflict (role, tenant) do update set by_setting = excluded.by_setting;
end
$$;

-- Takes a binding back; false when there was none.
create function helix.unbind_v1(p_role name, p_tenant text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  delete from helix.role_tenant where role = p_role and tenant = p_tenant;
  return found;
end
$$;
