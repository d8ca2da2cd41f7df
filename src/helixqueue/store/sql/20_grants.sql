-- Who owns what and who may do what. Deny first: nothing is open to PUBLIC.

-- Workers are listed to the role they log in with, and to operators.
alter table helix.worker enable row level security;
alter table helix.worker force row level security;
create policy own_workers on helix.worker for all to helix_engine, helix_client, helix_operator
  using (pg_has_role(session_user, 'helix_operator', 'member')
         or (role = session_user
             -- A login that serves many tenants by turns keeps their workers apart by name: lab/gpu-1.
             and (starts_with(name, current_setting('helix.tenant', true) || '/')
                  or not exists (select from helix.role_tenant b
                                 where b.role = session_user and b.by_setting))));
-- Whoever sweeps, sweeps for all.
create policy long_gone on helix.worker for all to helix_engine
  using (last_seen < statement_timestamp() - interval '30 days') with check (false);

-- Classes are shared, but the labels in them are words of whoever asked first. A client reads the
-- classes that its own queues ask for.
alter table helix.requirement_class enable row level security;
alter table helix.requirement_class force row level security;
create policy engine_classes on helix.requirement_class for all to helix_engine using (true);
create policy own_classes on helix.requirement_class for select to helix_client, helix_operator
  using (pg_has_role(session_user, 'helix_operator', 'member')
         or exists (select from helix.queue q where q.class = requirement_class.id));

-- Handing over takes CREATE on the schema for the new owner, for this moment only.
grant create, usage on schema helix to helix_owner, helix_engine;

do $$
declare
  v_object record;
begin
  for v_object in
    select c.oid::regclass as name,
           case c.relkind when 'S' then 'sequence' when 'v' then 'view' else 'table' end as kind
    from pg_class c
    where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
      -- Sequences of identity columns follow their table. (A partitioned table has an entry of that
      -- kind too, on its own key: without the first condition the ledger would stay the migrator's.)
      and not (c.relkind = 'S'
               and exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'i'))
  loop
    execute format('alter %s %s owner to helix_owner', v_object.kind, v_object.name);
    execute format('revoke all on %s from public', v_object.name);
  end loop;
  for v_object in
    select t.oid::regtype as name from pg_type t
    left join pg_class c on c.oid = t.typrelid
    where t.typnamespace = 'helix'::regnamespace and (t.typtype in ('e', 'd') or c.relkind = 'c')
  loop
    execute format('alter type %s owner to helix_owner', v_object.name);
  end loop;
  for v_object in
    select p.oid::regprocedure as name,
           -- DDL needs the tables' owner; everything else is the engine's.
           case when p.proname in ('protect', 'enclose', 'always_on', 'add_event_partition')
                then 'helix_owner' else 'helix_engine' end as owner
    from pg_proc p where p.pronamespace = 'helix'::regnamespace
  loop
    execute format('revoke all on function %s from public', v_object.name);
    execute format('alter function %s owner to %I', v_object.name, v_object.owner);
  end loop;
end
$$;

alter schema helix owner to helix_owner;
revoke create on schema helix from helix_engine;
grant usage on schema helix to helix_client, helix_operator;

-- The engine writes everything but the arrows, and adds secrets without changing one.
grant select, insert, update, delete on all tables in schema helix to helix_engine;
revoke insert, update, delete on helix.arrow, helix.fence_arrow from helix_engine;
revoke update, delete on helix.secret from helix_engine;
grant usage, select on all sequences in schema helix to helix_engine;
grant execute on function helix.add_event_partition() to helix_engine;
-- New partitions get their guards from the owner.
grant execute on function helix.guard_ledger(), helix.event_partition_size() to helix_owner;

-- Clients read their own tenants' rows: everything but the secret part of a live token. Lanes cross
-- tenants and carry the names of their queues, so only operators read them.
grant select on helix.identity, helix.batch, helix.ready, helix.waiting, helix.outcome, helix.event,
  helix.refusal, helix.decision, helix.retired, helix.queue, helix.worker, helix.standing,
  helix.overview,
  helix.role_tenant, helix.arrow, helix.requirement_class, helix.key_limit, helix.epoch,
  helix.fence_arrow, helix.fence_event, helix.fence_decision, helix.duty
  to helix_client, helix_operator;
grant select on helix.lane to helix_operator;
grant select (batch, tenant, state, version, attempt, epoch, number, actor, reason, detail, late,
              worker, deadline, lane, turn, queue, lease_seconds, limit_key, claimed_at)
  on helix.active to helix_client, helix_operator;
grant select (key, tenant, name, identity, life, state, version, attempt, fingerprint, secret, request,
              epoch, number, actor, reason, detail, lease_seconds, quiet_seconds, deadline, first_at,
              changed_at, effect, form, digest, answer, omitted, sealed_at, answer_until, until)
  on helix.fence to helix_client, helix_operator;
grant select (tenant, name, generation, scopes, queues, created_at, created_by, expires_at, revoked_at,
              revoked_by, reason, last_used_at)
  on helix.api_token to helix_client, helix_operator;
grant execute on function helix.key_text(bytea), helix.public_id(bytea), helix.framed(text),
  helix.framed_parts(text[]), helix.framed_identity(text), helix.derive_key(text, text, text, text),
  helix.key_within(bytea, text, text), helix.locate(uuid[]), helix.state_of(bigint),
  helix.ending(helix.state), helix.queues_of(text, text),
  helix.session_tenants(), helix.event_hash, helix.derive_fence_key(text, text, text),
  helix.fence_receipt(bytea, bytea, text, text, bytea)
  to helix_client, helix_operator;

do $$
declare
  v_function record;
begin
  for v_function in
    select p.oid::regprocedure as name,
           p.proname in ('bind_v1', 'unbind_v1', 'recover_v1', 'rotate_secret_v1',
                         'resolve_fence_v1') as operators_only
    from pg_proc p where p.pronamespace = 'helix'::regnamespace and p.proname like '%\_v1'
  loop
    execute format('grant execute on function %s to helix_operator', v_function.name);
    if not v_function.operators_only then
      execute format('grant execute on function %s to helix_client', v_function.name);
    end if;
  end loop;
end
$$;
