-- Owners and privileges. Deny first: nothing is open to PUBLIC, and clients have no privilege
-- on tables. (EXPLAIN on a table would reveal the number of rows that row-level security hides.)

-- Workers are listed to the role they log in with, and to operators.
alter table helix.worker enable row level security;
alter table helix.worker force row level security;
create policy own_workers on helix.worker for all to helix_engine, helix_reader
  using (pg_has_role(session_user, 'helix_operator', 'member')
         or (role = session_user
             -- A login that serves one tenant per transaction keeps their workers apart by name: lab/gpu-1.
             and (starts_with(name, current_setting('helix.tenant', true) || '/')
                  or not exists (select from helix.role_tenant b
                                 where b.role = session_user and b.by_setting))));
create policy operator on helix.worker for select to helix_operator using (true);
-- A sweep is for all tenants.
create policy long_gone on helix.worker for all to helix_engine
  using (last_seen < statement_timestamp() - interval '30 days') with check (false);

-- Classes are shared, but their labels are words of the tenant that used them first: a reader sees the
-- classes of its own queues.
alter table helix.requirement_class enable row level security;
alter table helix.requirement_class force row level security;
create policy engine on helix.requirement_class for all to helix_engine using (true);
create policy operator on helix.requirement_class for select to helix_operator using (true);
create policy reader on helix.requirement_class for select to helix_reader
  using (pg_has_role(session_user, 'helix_operator', 'member')
         or exists (select from helix.queue q where q.class = requirement_class.id));

-- Changing an owner requires CREATE on the schema for the new owner, for this moment only.
grant create, usage on schema helix to helix_owner, helix_engine, helix_reader;

do $$
declare
  -- Functions that read. Row-level security restricts them to the caller's tenants.
  c_reads constant text := '^read_';
  v_object record;
begin
  for v_object in
    select c.oid::regclass as name,
           case c.relkind when 'S' then 'sequence' when 'v' then 'view' else 'table' end as kind
    from pg_class c
    where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'v', 'S')
      -- Sequences of identity columns follow their table.
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
           case when p.proname in ('protect', 'protect_table') then 'helix_owner'
                when p.proname ~ c_reads then 'helix_reader' else 'helix_engine' end as owner
    from pg_proc p where p.pronamespace = 'helix'::regnamespace
  loop
    execute format('revoke all on function %s from public', v_object.name);
    execute format('alter function %s owner to %I', v_object.name, v_object.owner);
  end loop;
end
$$;

alter schema helix owner to helix_owner;
revoke create on schema helix from helix_engine, helix_reader;
grant usage on schema helix to helix_client, helix_operator;

-- The engine writes everything but the arrows, and adds secrets without changing one.
grant select, insert, update, delete on all tables in schema helix to helix_engine;
revoke insert, update, delete on helix.arrow, helix.fence_arrow from helix_engine;
revoke update, delete on helix.secret from helix_engine;
grant usage, select, update on all sequences in schema helix to helix_engine;

-- The reader and operators read everything but secrets: the keys of fingerprints, the secret part of
-- live tokens, hashes of API tokens and login codes.
grant select on helix.arrow, helix.role_tenant, helix.queue, helix.requirement_class, helix.lane,
  helix.batch, helix.result, helix.ended, helix.key_limit, helix.epoch, helix.worker, helix.entry,
  helix.event, helix.refusal, helix.decision, helix.duty, helix.fence_arrow,
  helix.fence_event, helix.fence_decision, helix.overview, helix.fence_overview
  to helix_reader, helix_operator;
grant select on helix.queue_settings to helix_reader;
-- The id of a claim and its worker's name are enough to get its tokens.
grant select (number, due, at) on helix.request to helix_reader, helix_operator;
grant select (batch, turn, entry, before, number, deadline, due, expires_at, changed_at, queue, lane,
              version, epoch, lease_seconds, state, came_from, reason, cause, attempt, pending, step, late,
              actor, limit_key, content)
  on helix.work to helix_reader, helix_operator;
grant select (key, tenant, name, identity, life, state, version, attempt, fingerprint, secret, request,
              epoch, number, actor, reason, detail, lease_seconds, quiet_seconds, deadline, first_at,
              changed_at, effect, form, digest, answer, omitted, sealed_at, answer_until, until)
  on helix.fence to helix_reader, helix_operator;
grant select (tenant, name, generation, scopes, queues, created_at, created_by, expires_at, revoked_at,
              revoked_by, reason, last_used_at)
  on helix.api_token to helix_reader, helix_operator;
grant select on helix.batch_id, helix.entry_id, helix.fence_number to helix_reader, helix_operator;
-- Pure functions, which read no table.
grant execute on function helix.key_text(bytea), helix.public_id(bytea), helix.framed(text),
  helix.framed_parts(text[]), helix.framed_identity(text), helix.derive_key(text, text, text, text),
  helix.key_within(bytea, text, text)
  to helix_reader, helix_operator, helix_client;
-- What the functions of helix_reader, and operators at a prompt, call inside their queries.
grant execute on function helix.locate(uuid[]), helix.state_of(bigint),
  helix.ending(helix.state), helix.session_tenants(), helix.session_queues(), helix.entry_hash,
  helix.content_hash, helix.tombstone_hash, helix.row_hash, helix.history_of,
  helix.derive_fence_key(text, text, text), helix.fence_receipt(bytea, bytea, text, text, bytea)
  to helix_reader, helix_operator;
grant execute on function helix.requires_of(integer), helix.demand_parallel, helix.shape to helix_reader;

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
