-- Audited tables: settings, bindings, tokens and other rows that change seldom and decide much. A trigger
-- writes each change of the audited columns to helix.decision, where it is hashed, kept for ever and covered by
-- seals. `check` compares each row with its last record, so an edit past the triggers shows.

-- The audited columns of a row.
create function helix.audited(p_row jsonb, p_columns text[]) returns jsonb
language sql immutable parallel safe as $$
  select coalesce(jsonb_object_agg(c.name, p_row -> c.name), '{}') from unnest(p_columns) as c (name)
$$;

-- Records the key of a row and the digest of its audited columns; a deleted row has no digest. The first
-- argument of the trigger has the key's columns, the second the audited ones.
create function helix.audit_row() returns trigger
language plpgsql
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
declare
  v_scope   text := current_setting('helix.scope', true);
  v_row     jsonb := case tg_op when 'DELETE' then to_jsonb(old) else to_jsonb(new) end;
  v_columns text[] := string_to_array(tg_argv[1], ',');
begin
  if tg_op = 'UPDATE' and helix.audited(to_jsonb(old), v_columns) = helix.audited(v_row, v_columns) then
    return null;
  end if;
  -- The record may belong to no tenant, and row-level security restricts the caller to its own.
  perform set_config('helix.scope', '*', true);
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (coalesce(v_row ->> 'tenant', '*'), tg_table_name, 'audit', session_user,
          jsonb_build_object(
            'key', helix.audited(v_row, string_to_array(tg_argv[0], ',')),
            'digest', case when tg_op <> 'DELETE'
                           then encode(helix.row_hash(helix.audited(v_row, v_columns)), 'hex') end)::text);
  perform set_config('helix.scope', coalesce(v_scope, ''), true);
  return null;
end
$$;

-- Audits a table: its key and the columns that count. An update of other columns costs nothing.
create function helix.audit_table(p_table regclass, p_key name[], p_columns name[]) returns void
language plpgsql as $$
begin
  execute format('create trigger audit after insert or delete or update of %s on %s '
                 'for each row execute function helix.audit_row(%L, %L)',
                 (select string_agg(format('%I', c.name), ', ') from unnest(p_columns) as c (name)), p_table,
                 array_to_string(p_key, ','), array_to_string(p_columns, ','));
  execute format('alter table %s enable always trigger audit', p_table);
end
$$;

do $$
begin
  perform helix.audit_table('helix.role_tenant', '{role,tenant}', '{role,tenant,by_setting}');
  perform helix.audit_table('helix.secret', '{id}', '{id,inner_pad,outer_pad,created_at}');
  perform helix.audit_table('helix.epoch', '{number}', '{number,cluster,timeline,reason,started_at}');
  perform helix.audit_table('helix.duty', '{duty}', '{duty,every,of_claims}');
  perform helix.audit_table('helix.requirement_class', '{id}',
                            '{id,requires,gpus,gpu_vram_gb,cpu_cores,ram_gb,disk_gb,labels,gpu_model,'
                            'gpu_cc_min,twin}');
  perform helix.audit_table('helix.lane', '{id}', '{id,queue,class,priority,gpus,gpu_vram_gb,cpu_cores,ram_gb,'
                                                  'disk_gb,labels,made_for,twin}');
  perform helix.audit_table('helix.host', '{name}', '{name,withdrawn}');
  perform helix.audit_table('helix.ledger', '{id}',
                            '{id,tenant,name,machine,initial,is_strict,gaps,bound,ignored,created_at,created_by}');
  perform helix.audit_table('helix.feed', '{tenant,name}',
                            '{tenant,name,ledger,queue,paused,created_at,created_by}');
  perform helix.audit_table('helix.output_root', '{tenant,uri}',
                            '{tenant,uri,stored_at,is_input,created_at,created_by}');
  perform helix.audit_table('helix.run', '{id}',
                            '{id,created_at,queue,datums,tries,priority,tenant,name,key,digest,requires,egress,'
                            'destination,received,spec,actor,timeout_seconds}');
  perform helix.audit_table('helix.webhook_source', '{tenant,name}', '{tenant,name,scheme,definition,applied_at,'
                                                                     'applied_by}');
  -- Without the secret: its digest would let readers of the audit try guesses.
  perform helix.audit_table('helix.webhook_secret', '{tenant,source,number}',
                            '{tenant,source,number,valid_from,valid_until,created_by}');
  -- Every setting, also one that a later release adds.
  perform helix.audit_table('helix.queue', '{id}', array(
    select a.attname from pg_attribute a
    where a.attrelid = 'helix.queue'::regclass and a.attnum > 0 and not a.attisdropped
      and a.attname <> 'updated_at' order by a.attnum));
end
$$;

-- The rows of all audited tables: key and digest, never a column. For operators, who see every binding.
create function helix.audited_rows() returns table (name text, key jsonb, digest text)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
declare
  v_trigger record;
begin
  perform helix.enter();
  if not pg_has_role(session_user, 'helix_operator', 'usage') then
    return;
  end if;
  for v_trigger in
    select c.relname::text as name, c.oid::regclass as place,
           string_to_array(encode(g.tgargs, 'escape'), E'\\000') as arguments
    from pg_trigger g join pg_class c on c.oid = g.tgrelid
    where g.tgname = 'audit' and c.relnamespace = 'helix'::regnamespace
    order by c.relname
  loop
    return query execute format(
      'select %L::text, helix.audited(to_jsonb(r), %L::text[]), '
      'encode(helix.row_hash(helix.audited(to_jsonb(r), %L::text[])), ''hex'') from %s r',
      v_trigger.name, string_to_array(v_trigger.arguments[1], ','),
      string_to_array(v_trigger.arguments[2], ','), v_trigger.place);
  end loop;
end
$$;

-- Records the rows that the migrations inserted. Run by 99_grants.sql, when the functions have their owners.
create function helix.audit_present() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform set_config('helix.scope', '*', true);
  insert into helix.decision (tenant, queue, kind, actor, detail)
  select coalesce(r.key ->> 'tenant', '*'), r.name, 'audit', session_user,
         jsonb_build_object('key', r.key, 'digest', r.digest)::text
  from helix.audited_rows() r;
end
$$;

-- Audited rows against their records. Same form as 85_check.sql.
create function helix.read_check_settings() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  -- name: setting_edited
  -- promise: G3
  -- means: A queue setting, a binding of a login, an API token, a secret, an epoch, a duty, a requirement class
  --        or a lane is not as its last recorded change left it: it was edited, deleted or inserted by hand.
  -- action: Restore the row from a backup, or set it again with the function that is meant for it.
  select 'setting_edited', jsonb_build_object(
           'table', coalesce(r.name, d.name), 'key', coalesce(r.key, d.key),
           'what', case when r.key is null then 'deleted' when d.key is null then 'inserted'
                        else 'edited' end)
  from (select distinct on (d.queue, d.detail::jsonb -> 'key') d.queue as name, d.detail::jsonb -> 'key' as key,
               d.detail::jsonb ->> 'digest' as digest
        from helix.decision d where d.kind = 'audit' and pg_has_role(session_user, 'helix_operator', 'usage')
        order by d.queue, d.detail::jsonb -> 'key', d.id desc) d
  full join helix.audited_rows() r on r.name = d.name and r.key = d.key
  where d.digest is distinct from r.digest
  union all
  -- name: duty_put_off
  -- promise: G6
  -- means: A duty is due later than its interval after its last run: nothing does it meanwhile.
  -- action: Set its interval again, with helix.set_duty_v1, which makes it due at once.
  select 'duty_put_off', jsonb_build_object('duty', d.duty, 'next_at', d.next_at)
  from helix.duty d
  where d.next_at > clock_timestamp() + greatest(d.every, make_interval(secs => least(d.seconds, 3600))) + interval '5 s'
$$;

-- Tombstones against the records of their retirement.
create function helix.read_check_tombstones() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  with recorded as (
    select d.id, (u.batch)::bigint as batch from helix.decision d
    cross join lateral jsonb_array_elements_text(d.detail::jsonb -> 'batches') as u (batch)
    where d.kind = 'retired'
  ),
  found as (select b.id, b.tombstone from helix.batch b where b.retired_at is not null)
  -- name: tombstone_missing
  -- promise: G1
  -- means: Retention recorded that it retired this batch, but its tombstone is gone: a repeat would be new work.
  -- action: Restore the row of helix.batch from a backup.
  select 'tombstone_missing', jsonb_build_object('batch', r.batch, 'decision', r.id)
  from recorded r left join found f on f.id = r.batch where f.id is null
  union all
  -- name: tombstone_unrecorded
  -- promise: G5
  -- means: A batch looks retired, but no retention recorded it: its payload and its results were removed by hand.
  -- action: Restore the batch from a backup.
  select 'tombstone_unrecorded', jsonb_build_object('batch', f.id)
  from found f left join recorded r on r.batch = f.id where r.batch is null
  union all
  -- name: tombstone_not_recorded_so
  -- promise: G1
  -- means: The tombstones of one retirement are not those that it left, although each is consistent in itself.
  -- action: Compare the batches of the decision with a backup.
  select 'tombstone_not_recorded_so', jsonb_build_object('decision', d.id, 'first', min(r.batch), 'last', max(r.batch))
  from recorded r join helix.decision d on d.id = r.id join found f on f.id = r.batch
  group by d.id, d.detail
  having encode(sha256(string_agg(f.tombstone, ''::bytea order by f.id)), 'hex')
         is distinct from d.detail::jsonb ->> 'digest'
    and count(*) = jsonb_array_length(d.detail::jsonb -> 'batches')
$$;

-- Events of user ledgers: the hash chain of each entity.
create function helix.read_check_user_ledgers() returns setof helix.violation
language sql stable
set work_mem = '128MB' set enable_nestloop = off set jit = off as $$
  with chained as materialized (
    select e.ledger, e.entity, e.version, e.id, e.tenant, l.id is null as unknown, l.tenant as ledger_tenant,
           e.version <> lag(e.version, 1, 0) over chain + 1 as gap,
           e.hash <> helix.event_hash(lag(e.hash) over chain, e.key, e.version, e.at, e.position, e.feed_position,
                                      e.fingerprint, e.node, e.actor, e.violations,
                                      convert_to(e.payload::text, 'UTF8'))
             or e.key <> helix.event_key(e.tenant, l.name, e.entity, e.seq, e.kind, e.bound) as edited
    from helix.ledger_event e left join helix.ledger l on l.id = e.ledger
    window chain as (partition by e.ledger, e.entity order by e.version)
  )
  -- name: ledger_event_edited
  -- promise: G3
  -- means: An event of a user ledger is not what was appended: its hash or its key does not match.
  -- action: The first witness is the place; compare with an export or a backup.
  select 'ledger_event_edited', jsonb_build_object('ledger', c.ledger, 'event', c.id, 'version', c.version)
  from chained c where c.edited and not c.gap and not c.unknown
  union all
  -- name: ledger_event_missing
  -- promise: G3
  -- means: The versions of an entity do not run from 1 without a gap, or its ledger is gone: something was deleted.
  -- action: Compare with an export or a backup.
  select 'ledger_event_missing', jsonb_build_object('ledger', c.ledger, 'event', c.id, 'version', c.version)
  from chained c where c.gap or c.unknown
$$;
