-- Owners and privileges. Deny first: nothing is open to PUBLIC, and clients have no privilege
-- on tables. (EXPLAIN on a table would reveal the number of rows that row-level security hides.)
-- The list at the end grants each function that clients call to the scopes that it belongs to.

-- Workers that serve every tenant are listed to each tenant.
create policy serves_all on helix.worker for select to helix_reader
  using (tenant = '*' and cardinality((select helix.session_tenants())) > 0);
create policy also_serves_all on helix.worker for select to helix_engine using (tenant = '*');
-- A sweep is for all tenants.
create policy long_gone on helix.worker for all to helix_engine
  using (last_seen < statement_timestamp() - interval '30 days') with check (false);

-- Roots of every tenant are shown to each, and bind each.
create policy for_all on helix.output_root for select to helix_reader, helix_engine
  using (tenant = '*' and cardinality((select helix.session_tenants())) > 0);

-- Classes are shared, but their labels are words of the tenant that used them first: a reader sees the
-- classes of its own queues.
alter table helix.requirement_class enable row level security;
alter table helix.requirement_class force row level security;
create policy engine on helix.requirement_class for all to helix_engine using (true);
create policy operator on helix.requirement_class for select to helix_operator using (true);
create policy reader on helix.requirement_class for select to helix_reader
  using (pg_has_role(session_user, 'helix_operator', 'usage')
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
           case when p.proname in ('protect', 'protect_table', 'audit_table') then 'helix_owner'
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
grant usage on schema helix to helix_submit, helix_work, helix_read, helix_payloads, helix_operate, helix_admin,
  helix_run, helix_intake, helix_webhook, helix_delegate, helix_operator;

-- The engine writes everything but the arrows, and adds secrets without changing one.
grant select, insert, update, delete on all tables in schema helix to helix_engine;
revoke insert, update, delete on helix.arrow, helix.fence_arrow from helix_engine;
revoke update, delete on helix.secret from helix_engine;
grant usage, select, update on all sequences in schema helix to helix_engine;

-- The reader and operators read everything but secrets: the keys of fingerprints, the secret part of
-- live tokens, hashes of API tokens and login codes.
grant select on helix.arrow, helix.role_tenant, helix.queue, helix.requirement_class, helix.lane,
  helix.batch, helix.result, helix.ended, helix.key_limit, helix.epoch, helix.worker, helix.entry,
  helix.event, helix.refusal, helix.decision, helix.answer_count, helix.duty, helix.fence_arrow,
  helix.fence_event, helix.fence_decision, helix.fence_batch, helix.overview, helix.fence_overview,
  helix.ledger, helix.ledger_event, helix.feed, helix.metric, helix.rollup, helix.finding,
  helix.source, helix.dead_letter, helix.letter_overview, helix.intake, helix.intake_failure,
  helix.stream_group, helix.difference, helix.check_run, helix.worker_day,
  helix.host, helix.allocation, helix.output_root, helix.manifest, helix.output, helix.output_name,
  helix.run, helix.run_count, helix.run_change,
  helix.webhook_source, helix.webhook_mark
  to helix_reader, helix_operator;
grant select (tenant, source, number, valid_from, valid_until, created_by) on helix.webhook_secret
  to helix_reader, helix_operator;
grant select on helix.queue_settings to helix_reader;
-- The id of a claim and its worker's name are enough to get its tokens.
grant select (number, due, at) on helix.request to helix_reader, helix_operator;
grant select (batch, turn, entry, before, number, deadline, due, expires_at, changed_at, queue, lane,
              version, version_before, epoch, lease_seconds, state, came_from, reason, cause, attempt, pending,
              step, late, actor, limit_key, content, allocated, run)
  on helix.work to helix_reader, helix_operator;
grant select (key, tenant, name, identity, life, state, version, attempt, fingerprint, secret, request,
              epoch, number, actor, reason, detail, lease_seconds, quiet_seconds, deadline, first_at,
              changed_at, effect, form, digest, answer, omitted, sealed_at, answer_until, until)
  on helix.fence to helix_reader, helix_operator;
grant select (tenant, name, generation, scopes, queues, created_at, created_by, expires_at, revoked_at,
              revoked_by, reason, last_used_at)
  on helix.api_token to helix_reader, helix_operator;
grant select on helix.batch_id, helix.entry_id, helix.fence_number, helix.ledger_event_id
  to helix_reader, helix_operator;
-- Pure functions, which read no table.
grant execute on function helix.key_text(bytea), helix.public_id(bytea), helix.framed(text),
  helix.framed_parts(text[]), helix.framed_identity(text), helix.derive_key(text, text, text, text),
  helix.key_within(bytea, text, text)
  to helix_reader, helix_operator, helix_submit, helix_work, helix_read, helix_payloads, helix_operate,
     helix_admin, helix_run, helix_delegate;
-- What the functions of helix_reader, and operators at a prompt, call inside their queries.
grant execute on function helix.locate(uuid[]), helix.state_of(bigint),
  helix.ending(helix.state), helix.session_tenants(), helix.session_queues(), helix.sees_payloads(),
  helix.entry_hash, helix.asked_bytes,
  helix.content_hash, helix.source_hash, helix.tombstone_hash, helix.row_hash, helix.letter_hash, helix.history_of,
  helix.fence_content,
  helix.derive_fence_key(text, text, text), helix.fence_receipt,
  helix.event_key, helix.event_hash, helix.feed_page, helix.feed_events, helix.feed_steps,
  helix.feed_lag, helix.reached_position(), helix.timeline(), helix.cluster_id(),
  helix.output_part, helix.output_name(text, text), helix.output_hash, helix.manifest_hash
  to helix_reader, helix_operator;
grant execute on function helix.requires_of(integer), helix.demand_parallel, helix.shape, helix.demand_payloads,
  helix.audited_rows(), helix.all_metrics, helix.worker_status,
  helix.missing(text, text, jsonb), helix.meets, helix.fits, helix.is_match, helix.devices_needed, helix.devices_of,
  helix.requirement_of, helix.resources_of, helix.is_held, helix.run_counts
  to helix_reader;

-- Which scope may execute which function: a new function `..._v1` gets its line here, and the migration fails
-- without it. The scopes are those of API tokens, as roles helix_submit, helix_work, ... `any` means all seven,
-- `delegate` the right to act for others, which a service has. Operators may execute every function; `operator`
-- means no other role.
do $$
declare
  v_grant record;
  v_role  text;
begin
  for v_grant in
    select p.oid::regprocedure as function, g.name, g.scopes
    from (values
      -- Submit.
      ('submit_v1',              'submit'),
      ('submit_from_v1',         'submit intake'),
      ('note_refused_v1',        'submit intake'),
      -- Intakes, which submit and write dead letters.
      ('write_letters_v1',       'intake'),
      ('count_try_v1',           'intake'),
      ('clear_tries_v1',         'intake'),
      ('report_stream_v1',       'intake'),
      ('knows_group_v1',         'intake'),
      ('count_stream_v1',        'intake'),
      ('look_stream_v1',         'intake delegate'),
      ('stream_groups_v1',       'delegate'),
      -- Receivers of webhooks; administrators define their sources.
      ('assume_webhook_v1',      'webhook'),
      ('webhook_v1',             'webhook'),
      ('begin_delivery_v1',      'webhook'),
      ('end_delivery_v1',        'webhook'),
      ('submit_delivery_v1',     'webhook'),
      ('apply_webhook_v1',       'admin'),
      ('rotate_webhook_v1',      'admin'),
      ('read_webhooks_v1',       'read admin'),
      ('read_deliveries_v1',     'read'),
      -- Work.
      ('claim_v1',               'work'),
      ('hello_v1',               'work'),
      ('wait_v1',                'work'),
      ('start_v1',               'work'),
      ('renew_v1',               'work'),
      ('settle_v1',              'work'),
      ('release_v1',             'work'),
      ('reap_v1',                'work operate'),
      ('promote_v1',             'work operate'),
      ('run_duty_v1',            'work operate'),
      -- Outputs: a worker registers and publishes, and so does any process that has the credentials.
      ('open_outputs_v1',        'work'),
      ('register_outputs_v1',    'work'),
      ('withdraw_device_v1',     'operator'),
      ('take_outputs_v1',        'work operate delegate'),
      ('output_files_v1',        'work operate delegate'),
      ('end_outputs_v1',         'work operate delegate'),
      ('read_manifests_v1',      'read'),
      ('read_outputs_v1',        'read'),
      -- Runs: who starts one chooses what workers execute.
      ('start_run_v1',           'run'),
      ('append_run_v1',          'run'),
      ('cancel_run_v1',          'operate'),
      ('retry_run_v1',           'operate'),
      ('read_run_text_v1',       'work'),
      ('read_runs_v1',           'read run'),
      ('read_run_outputs_v1',    'read'),
      ('read_run_roots_v1',      'read run'),
      -- Fences: an application guards its requests, a worker its effects.
      ('claim_fence_v1',         'submit work'),
      ('seal_fence_v1',          'submit work'),
      ('step_fence_v1',          'submit work webhook'),
      ('renew_fences_v1',        'submit work'),
      ('probe_fence_v1',         'submit work'),
      ('read_fence_holder_v1',   'submit work read'),
      ('sweep_fences_v1',        'work operate'),
      ('preview_fence_v1',       'payloads'),
      ('resolve_fence_v1',       'operator'),
      -- Read. Payloads, results and failure details require the scope payloads as well.
      ('read_batch_v1',          'read'),
      ('read_batches_v1',        'read'),
      ('read_outcomes_v1',       'read'),
      ('read_contents_v1',       'payloads'),
      ('read_events_v1',         'read'),
      ('read_queues_v1',         'read'),
      ('read_workers_v1',        'read'),
      ('read_devices_v1',        'read'),
      ('read_changes_v1',        'read'),
      ('read_changes_lost_v1',   'read'),
      ('change_mark_v1',         'read'),
      ('read_fence_v1',          'read'),
      ('read_fences_v1',         'read'),
      ('read_fence_history_v1',  'read'),
      ('read_fence_counts_v1',   'read'),
      ('read_fence_lag_v1',      'read'),
      ('read_letters_v1',        'read'),
      ('read_letter_v1',         'read'),
      ('read_intakes_v1',        'read'),
      ('read_entries_v1',        'read'),
      ('read_chains_v1',         'read'),
      ('read_batch_states_v1',   'read'),
      ('read_check_v1',          'read operate'),
      ('read_duties_v1',         'read operate'),
      ('read_metrics_v1',        'read operate'),
      ('read_findings_v1',       'read operate'),
      ('read_refused_v1',        'read'),
      ('read_identities_v1',     'read'),
      ('read_rollup_v1',         'read'),
      ('read_overview_v1',       'read'),
      ('read_refusals_v1',       'read'),
      ('read_activity_v1',       'read'),
      ('read_search_v1',         'read'),
      ('read_proof_v1',          'read'),
      ('read_waiting_v1',        'read'),
      ('read_check_runs_v1',     'read'),
      ('read_worker_days_v1',    'read'),
      -- What every login may know: its tenants and the settings of their queues.
      ('read_tenants_v1',        'any'),
      ('read_bindings_v1',       'any'),
      ('read_every_tenant_v1',   'any'),
      ('read_queue_v1',          'any intake webhook'),
      ('queue_requires_v1',      'any'),
      -- Operate.
      ('set_queue_v1',           'operate'),
      ('delete_queue_v1',        'operate'),
      ('cancel_v1',              'operate'),
      ('retry_v1',               'operate'),
      ('release_by_id_v1',       'operate'),
      ('erase_v1',               'operate'),
      ('note_check_v1',          'operate'),
      ('retire_v1',              'operate'),
      ('redrive_letter_v1',      'operate'),
      ('discard_letters_v1',     'operate'),
      -- User ledgers and feeds. An event of a feed has its payload.
      ('append_v1',              'submit'),
      ('append_one_v1',          'submit'),
      ('ledger_hint_key_v1',     'submit'),
      ('declare_ledger_v1',      'operate'),
      ('read_ledgers_v1',        'any'),
      ('read_ledger_events_v1',  'read'),
      ('read_entity_v1',         'read'),
      ('read_ledger_head_v1',    'read'),
      ('declare_feed_v1',        'payloads'),
      ('take_feed_v1',           'payloads'),
      ('read_feed_v1',           'payloads'),
      ('advance_feed_v1',        'payloads'),
      ('hold_feed_v1',           'payloads'),
      ('read_feeds_v1',          'read payloads'),
      ('set_feed_v1',            'operate'),
      -- Tokens, for services; 90_token.sql refuses other logins.
      ('create_token_v1',        'admin'),
      ('rotate_token_v1',        'admin'),
      ('revoke_token_v1',        'admin'),
      ('offer_login_v1',         'admin'),
      ('read_tokens_v1',         'admin'),
      -- The service acts for the tokens of its requests.
      ('assume_v1',              'delegate'),
      ('tenant_key_v1',          'delegate'),
      ('authenticate_v1',        'delegate'),
      ('redeem_login_v1',        'delegate'),
      ('end_session_v1',         'delegate'),
      ('read_can_serve_v1',      'any'),
      ('resolve_by_token_v1',    'delegate'),
      -- The whole server.
      ('bind_v1',                'operator'),
      ('set_output_root_v1',     'operator'),
      ('read_known_outputs_v1',  'operator'),   -- what another login does not see would look unknown
      ('unbind_v1',              'operator'),
      ('recover_v1',             'operator'),
      ('rotate_secret_v1',       'operator'),
      -- Seals cover all tenants; only the place of a difference shows names.
      ('seal_position_v1',       'operate'),
      ('seal_pages_v1',          'operate'),
      ('seal_witness_v1',        'operator'),
      ('seals_v1',               'delegate'),
      ('add_seal_v1',            'delegate'),
      ('set_duty_v1',            'operator')
    ) as g (name, scopes)
    full join pg_proc p on p.proname = g.name and p.pronamespace = 'helix'::regnamespace
    where g.name is not null or (p.pronamespace = 'helix'::regnamespace and p.proname like '%\_v1')
  loop
    if v_grant.function is null or v_grant.scopes is null then
      raise exception using errcode = 'invalid_grant_operation',
        message = format('99_grants.sql: expected one line per function of clients, got %s',
                         coalesce(v_grant.name || ' without a function',
                                  v_grant.function || ' without a scope'));
    end if;
    execute format('grant execute on function %s to helix_operator', v_grant.function);
    for v_role in
      select 'helix_' || r.scope
      from regexp_split_to_table(
        replace(v_grant.scopes, 'any', 'submit work read payloads operate admin run'), ' ') as r (scope)
      where r.scope <> 'operator'
    loop
      execute format('grant execute on function %s to %I', v_grant.function, v_role);
    end loop;
  end loop;
end
$$;

-- The rows of audited tables that the migrations inserted.
do $$
begin
  perform helix.audit_present();
end
$$;
