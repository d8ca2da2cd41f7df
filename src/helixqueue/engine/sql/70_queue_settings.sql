-- Queues and bindings: what operators and programs set.

-- Whether a queue has no batch and no tombstone: each partial index is asked by itself.
create function helix.is_empty(p_queue integer) returns boolean
language sql volatile as $$
  select not exists (select from helix.batch b where b.queue = p_queue and b.retired_at is null)
     and not exists (select from helix.batch b where b.queue = p_queue and b.retired_at is not null)
$$;

-- Whether a queue has never had a batch, with a lock under which that stays true. Every transaction that has read helix.queue
-- holds its lock on the table until it ends, so with this lock no submission is in progress that read the
-- queue before. Everything else waits behind this lock, so it is asked for only if the queue looks empty,
-- and given up after a second: no tenant may stop the others by repeating the call.
create function helix.lock_if_empty(p_queue integer) returns boolean
language plpgsql set lock_timeout = '1s' as $$
begin
  if not helix.is_empty(p_queue) then
    return false;
  end if;
  lock table helix.queue in access exclusive mode;
  return helix.is_empty(p_queue);
end
$$;

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
  p_keep_decisions_seconds double precision default null,
  p_stalled_after_seconds double precision default null, p_resubmit_failed text default null,
  p_placeholders jsonb default null, p_outputs text default null, p_outputs_after text default null,
  p_misfit text default null, p_reason text default null
) returns helix.queue
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s'
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
declare
  v_queue helix.queue;
  v_class integer;
begin
  perform helix.enter_for(p_tenant);
  v_class := helix.class_of(p_requires);
  if p_outputs is not null then
    perform helix.demand_root(p_tenant, p_outputs);
  end if;
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
    placeholders        = case when p_placeholders is null then q.placeholders
                               else array(select jsonb_array_elements_text(p_placeholders)) end,
    paused              = coalesce(p_paused, q.paused),
    closed              = coalesce(p_closed, q.closed),
    class               = coalesce(v_class, q.class),
    payload_schema      = coalesce(p_payload_schema, q.payload_schema),
    result_schema       = coalesce(p_result_schema, q.result_schema),
    keep_completed_seconds = coalesce(p_keep_completed_seconds, q.keep_completed_seconds),
    keep_failed_seconds    = coalesce(p_keep_failed_seconds, q.keep_failed_seconds),
    keep_cancelled_seconds = coalesce(p_keep_cancelled_seconds, q.keep_cancelled_seconds),
    keep_decisions_seconds = coalesce(p_keep_decisions_seconds, q.keep_decisions_seconds),
    stalled_after_seconds  = coalesce(p_stalled_after_seconds, q.stalled_after_seconds),
    resubmit_failed     = coalesce(p_resubmit_failed, q.resubmit_failed),
    outputs             = coalesce(p_outputs, q.outputs),
    outputs_after       = coalesce(p_outputs_after, q.outputs_after),
    misfit              = coalesce(p_misfit, q.misfit),
    updated_at          = clock_timestamp()
  where q.tenant = p_tenant and q.name = p_queue
  returning * into v_queue;
  -- Under another profile an identity that is known would have another key, and be done again.
  if v_queue.profile <> p_profile then
    if not helix.lock_if_empty(v_queue.id) then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('queue %s has batches of profile %s; its profile cannot become %s', p_queue,
                         v_queue.profile, p_profile),
        hint = 'Make a new queue with that profile.';
    end if;
    update helix.queue q set profile = p_profile where q.id = v_queue.id returning * into v_queue;
  end if;
  -- Schemas are kept as digests: two of them would not fit into a decision.
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (p_tenant, p_queue, 'setting', helix.actor_of(p_actor),
          (to_jsonb(v_queue) - '{id,tenant,name,created_at,updated_at}'::text[]
           || jsonb_build_object(
                'payload_schema', encode(sha256(convert_to(v_queue.payload_schema::text, 'UTF8')), 'hex'),
                'result_schema', encode(sha256(convert_to(v_queue.result_schema::text, 'UTF8')), 'hex'))
           || jsonb_strip_nulls(jsonb_build_object('reason', p_reason))
          )::text);
  -- Submitters that race on a brand-new lane would wait for each other; make the usual one now.
  perform helix.lane_of(v_queue, v_queue.class, 5::smallint, false);
  return v_queue;
end
$$;

-- Deletes a queue that never had a batch: deleted, absent or not_empty. Keys of batches contain the name of
-- their queue, so a queue with batches, even retired ones, stays; it can be closed.
create function helix.delete_queue_v1(p_tenant text, p_queue text, p_actor text, p_reason text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '5s' as $$
declare
  v_id integer;
begin
  perform helix.enter_for(p_tenant);
  select q.id into v_id from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  if v_id is null then
    return 'absent';
  end if;
  if not helix.lock_if_empty(v_id) then
    return 'not_empty';
  end if;
  delete from helix.queue q where q.id = v_id;
  if not found then  -- another call was faster
    return 'absent';
  end if;
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (p_tenant, p_queue, 'setting', helix.actor_of(p_actor),
          jsonb_build_object('deleted', true, 'reason', p_reason)::text);
  return 'deleted';
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

-- Binds a login role to a tenant ('*': to all). What it may do there follows from the scope roles that it was
-- granted (99_grants.sql). With by_setting the role must name its tenant in
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
