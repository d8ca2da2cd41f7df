-- Invariants of fences, and read_check_v1, through which all sets are asked. Same form as 85_check.sql.
-- An IN_DOUBT fence violates nothing; `helixq fence list --state IN_DOUBT` shows it.

-- Compares each fence with its events.
create function helix.read_check_fences() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
  with arrow (from_state, to_state, correction) as materialized (
    values (null, 'CLAIMED', false), (null, 'EFFECT_STARTED', false), ('CLAIMED', 'CLAIMED', false),
           ('CLAIMED', 'EFFECT_STARTED', false), ('CLAIMED', 'SEALED', false), ('CLAIMED', 'RELEASED', false),
           ('EFFECT_STARTED', 'SEALED', false), ('EFFECT_STARTED', 'RELEASED', false),
           ('EFFECT_STARTED', 'IN_DOUBT', false), ('IN_DOUBT', 'SEALED', false),
           ('IN_DOUBT', 'RELEASED', false), ('IN_DOUBT', 'EFFECT_STARTED', false),
           ('RELEASED', 'CLAIMED', false), ('RELEASED', 'EFFECT_STARTED', false),
           ('SEALED', 'SEALED', true), ('SEALED', 'RELEASED', true), ('RELEASED', 'SEALED', true)
  ),
  bad as materialized (
    select c.* from (
      select e.life, e.version, e.tenant, e.from_state, e.to_state, e.reason, e.last_state,
             f.life is null as unknown, f.tenant as fence_tenant, f.name, f.state as fence_state,
             f.version as fence_version,
             e.life is not null
               and (e.version <> e.last_version + 1 or e.from_state is distinct from e.last_state) as torn,
             e.life is not null
               and not exists (select from arrow a
                               where a.from_state is not distinct from e.from_state::text
                                 and a.to_state = e.to_state::text
                                 and (not a.correction or (e.reason = 'corrected'
                                        and e.last_reason in ('resolved', 'corrected')))) as illegal,
             coalesce(e.newest, true) and f.life is not null
               and (f.state, f.version) is distinct from (e.to_state, e.version) as other_state,
             e.hash is distinct from e.computed as edited,
             coalesce(e.newest, true)
               and (f.content is distinct from e.content
                    or (f.attempt, f.epoch, f.number, f.actor, f.reason, f.detail)
                       is distinct from (e.attempt, e.epoch, e.number, e.actor, e.reason, e.detail))
               as other_content,
             f.state in ('CLAIMED', 'EFFECT_STARTED')
               and f.deadline > clock_timestamp() + make_interval(secs => f.lease_seconds) as endless
      from (select e.*, lag(e.to_state) over history as last_state, lag(e.reason) over history as last_reason,
                   lag(e.version, 1, 0) over history as last_version,
                   lead(e.version) over history is null as newest, helix.row_hash(to_jsonb(e)) as computed
            from helix.fence_event e window history as (partition by e.life order by e.version)) e
      full join (select f.life, f.tenant, f.name, f.state, f.version, f.attempt, f.epoch, f.number,
                        f.actor::text as actor, f.reason, f.detail::text as detail, f.lease_seconds, f.deadline,
                        helix.fence_content(f.key, f.tenant, f.name, f.identity, f.fingerprint, f.secret, f.effect,
                                            f.form, f.digest, f.omitted, f.first_at, f.sealed_at, f.answer_until,
                                            f.until) as content
                 from helix.fence f) f
        on f.life = e.life) c
    where c.other_content or c.unknown or c.torn or c.illegal or c.other_state or c.edited or c.endless
       or c.tenant <> c.fence_tenant
  )
  -- name: fence_not_last_event
  -- promise: G8
  -- means: State or version of the fence differ from its last event.
  -- action: The row was edited; the event is the record. The effect may be executed again, or never.
  select 'fence_not_last_event', jsonb_build_object(
           'life', b.life, 'tenant', b.fence_tenant, 'name', b.name, 'state', b.fence_state,
           'version', b.fence_version, 'last_event', b.to_state, 'last_version', b.version)
  from bad b where b.other_state
  union all
  -- name: fence_edited
  -- promise: G8
  -- means: What the fence says about its effect (key, request, effect, answer's digest, times, how long its key is
  --        kept, its token's number, actor and reason) is not what its last event recorded.
  -- action: Restore the row from a backup; receipts that were issued before show the right values.
  select 'fence_edited', jsonb_build_object('life', b.life, 'tenant', b.fence_tenant, 'name', b.name)
  from bad b where b.other_content and not b.unknown
  union all
  -- name: fence_endless
  -- promise: G8
  -- means: The deadline of a fence is further away than its lease: no renewal wrote it, and every other call waits
  --        for a holder that may be dead.
  -- action: Run helixq recover, which puts it in doubt; then resolve it (helixq fence resolve).
  select 'fence_endless', jsonb_build_object('life', b.life, 'tenant', b.fence_tenant, 'name', b.name)
  from bad b where b.endless
  union all
  -- name: fence_event_torn
  -- promise: G8
  -- means: The events of a fence do not follow each other: one was deleted, forged or edited.
  -- action: Compare with a backup; `helixq fence show` lists the remaining events.
  select 'fence_event_torn', jsonb_build_object('life', b.life, 'version', b.version,
                                                'from_state', b.from_state, 'state_before', b.last_state)
  from bad b where b.torn
  union all
  -- name: fence_illegal_arrow
  -- promise: G8
  -- means: A fence took an arrow that this release does not have, or corrected a step that was no resolution.
  -- action: The event was forged, or the trigger that writes events was off; see the invariants of the
  --         schema.
  select 'fence_illegal_arrow', jsonb_build_object('life', b.life, 'version', b.version,
                                                   'from_state', b.from_state, 'to_state', b.to_state)
  from bad b where b.illegal
  union all
  -- name: fence_arrows_edited
  -- promise: G8
  -- means: helix.fence_arrow does not list the arrows of this release, so illegal steps could pass.
  -- action: Restore the table as in 80_fence.sql.
  select 'fence_arrows_edited', jsonb_build_object(
           'from_state', coalesce(t.from_state::text, a.from_state),
           'to_state', coalesce(t.to_state::text, a.to_state),
           'what', case when t.to_state is null then 'missing' else 'added' end)
  from helix.fence_arrow t
  full join arrow a on coalesce(a.from_state, '') = coalesce(t.from_state::text, '')
                   and a.to_state = t.to_state::text and a.correction = t.correction
  where t.to_state is null or a.to_state is null
  union all
  -- name: fence_key_not_derived
  -- promise: G8
  -- means: The key is not derived from tenant, name and identity: a repeat would be executed as new.
  -- action: Restore the edited column.
  select 'fence_key_not_derived', jsonb_build_object('life', f.life, 'tenant', f.tenant, 'name', f.name)
  from helix.fence f
  where f.identity is not null and f.key <> helix.derive_fence_key(f.tenant, f.name, f.identity)
  union all
  -- name: fence_answer_edited
  -- promise: G8
  -- means: The kept answer is not the answer that was sealed: repeats differ from the first answer, and the
  --        receipt does not match them.
  -- action: Empty the answer, so that repeats get the receipt only, or restore it from a backup.
  select 'fence_answer_edited', jsonb_build_object('life', f.life, 'tenant', f.tenant, 'name', f.name)
  from helix.fence f where f.answer is not null and f.digest is distinct from sha256(f.answer)
  union all
  -- name: fence_tenant_differs
  -- promise: G10
  -- means: A fence and its records name different tenants: one tenant may see another's row.
  -- action: Restore the edited row; the key of the fence is derived from the right tenant.
  select 'fence_tenant_differs', jsonb_build_object('life', b.life, 'tenant', b.fence_tenant,
                                                    'other', b.tenant)
  from bad b where b.tenant <> b.fence_tenant
  union all
  select 'fence_tenant_differs', jsonb_build_object('life', f.life, 'tenant', f.tenant, 'other', d.tenant)
  from helix.fence f join helix.fence_decision d on d.life = f.life where d.tenant <> f.tenant
  union all
  -- name: fence_missing
  -- promise: G8
  -- means: Events or decisions name a fence that does not exist: its row was deleted, and its key would
  --        be new again.
  -- action: Restore the row from a backup; the last event has its state.
  select 'fence_missing', jsonb_build_object('life', b.life, 'steps', count(*))
  from bad b where b.unknown group by b.life
  union all
  -- name: fence_record_edited
  -- promise: G3
  -- means: An event or a decision of a fence was edited: its hash does not match.
  -- action: Restore it from a backup.
  select 'fence_record_edited', jsonb_build_object('table', 'fence_event', 'life', b.life,
                                                   'version', b.version)
  from bad b where b.edited
  union all
  select 'fence_record_edited', jsonb_build_object('table', 'fence_decision', 'life', d.life, 'id', d.id)
  from helix.fence_decision d where d.hash is distinct from helix.row_hash(to_jsonb(d))
$$;

-- Checks one set of invariants; returns the violated ones with their number and the first witnesses.
-- Tenants do not see entry numbers, which count the calls of all tenants.
create function helix.read_check_v1(p_set text)
returns table (invariant text, violations bigint, witnesses jsonb)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' as $$   -- of the times in witnesses
declare
  v_hidden text[] := case when helix.session_tenants() is null then '{}' else '{entry,part,position}' end;
begin
  if p_set <> all ('{steps,entries,results,batches,counters,records,fences,settings,tombstones,'
                   'user_ledgers,findings,outputs}') then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('unknown set of invariants: %s', p_set),
      hint = 'Known: steps, entries, results, batches, counters, records, fences, settings, tombstones, '
             'user_ledgers, findings, outputs.';
  end if;
  return query
    select f.invariant, count(*), jsonb_agg(f.witness - v_hidden order by f.nth) filter (where f.nth <= 10)
    from (select v.invariant, v.witness, row_number() over (partition by v.invariant) as nth
          from (select * from helix.read_check_steps() where p_set = 'steps'
                union all
                select * from helix.read_check_entries() where p_set = 'entries'
                union all
                select * from helix.read_check_results() where p_set = 'results'
                union all
                select * from helix.read_check_batches() where p_set = 'batches'
                union all
                select * from helix.read_check_counters() where p_set = 'counters'
                union all
                select * from helix.read_check_records() where p_set = 'records'
                union all
                select * from helix.read_check_fences() where p_set = 'fences'
                union all
                select * from helix.read_check_settings() where p_set = 'settings'
                union all
                select * from helix.read_check_tombstones() where p_set = 'tombstones'
                union all
                select * from helix.read_check_user_ledgers() where p_set = 'user_ledgers'
                union all
                select * from helix.read_check_findings() where p_set = 'findings'
                union all
                select * from helix.read_check_outputs() where p_set = 'outputs') v) f
    group by f.invariant;
end
$$;
