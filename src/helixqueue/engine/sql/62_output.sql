-- Output files: what each attempt stages, and the names that its files will have (G11).
--
-- An attempt opens a manifest, copies its files below `.helix/<manifest>` of the destination, and registers path,
-- size and SHA-256 of each under its token. The settlement writes nothing here: a batch that is COMPLETED under the
-- epoch and number of a manifest has granted it. 63_publish.sql then gives the files their final names.

-- Where operators allow outputs; the destination of a queue is a root or below one. Runs read their inputs below
-- roots, and write below those that are not for inputs only.
create table helix.output_root (
  tenant     helix.tenant_name not null,   -- `*`: every tenant
  uri        text not null check (helix.is_destination(regexp_replace(uri, '^gs://', 's3://'))),
  stored_at  text check (helix.is_destination(stored_at)),  -- where runs find what they name below `uri`
  is_input   boolean not null default false,                -- for inputs of runs only
  check (uri !~ '^gs://' or stored_at is not null),
  created_at timestamptz not null default clock_timestamp(),
  created_by text not null,
  primary key (tenant, uri)
);

-- One row per attempt that has outputs. The id is random: it names the staging prefix, and the ids of a database
-- that was restored from a backup must not meet the files of its later life.
create table helix.manifest (
  id            uuid primary key default gen_random_uuid(),
  opened_at     timestamptz not null default clock_timestamp(),
  batch         bigint not null,
  number        bigint not null,           -- of the lease, with epoch
  epoch         integer not null,
  attempt       smallint not null,
  state         text not null default 'open' check (state in (
    'open',        -- the attempt stages its files
    'registered',  -- all files are registered; the attempt has not ended
    'granted',     -- the batch is COMPLETED under this attempt: its files are published
    'sealed',      -- every file has its final name
    'blocked',     -- a file cannot get its name; an operator decides
    'lost',        -- the attempt ended otherwise
    'removing',    -- staging and published files are to be removed
    'removed')),
  tenant        helix.tenant_name not null,
  queue         text not null,
  worker        text not null,
  destination   text not null check (helix.is_destination(destination)),
  folder        text not null,             -- of the final names, below the destination
  files         integer,                   -- set when the manifest is registered
  bytes         bigint,                    -- what the worker found; when registered, the sum of its files
  due_at        timestamptz default clock_timestamp(),  -- of the next task (63_publish.sql); null: none
  registered_at timestamptz,
  granted_at    timestamptz,
  sealed_at     timestamptz,
  ended_at      timestamptz,               -- lost, removing: since when
  problem       helix.long_text,           -- why it is blocked, or why the last task failed
  run           bigint,                    -- of its batch; final names of a run have no folder
  hash          helix.sha256,              -- of a registered manifest and its files; see manifest_hash
  unique (batch, number, epoch)
) with (fillfactor = 70);
create index manifest_due on helix.manifest (tenant, due_at) where due_at is not null;
-- Lists, newest first.
create index manifest_list on helix.manifest (tenant, opened_at, id);
create index manifest_run on helix.manifest (run, state, id) where run is not null;

-- The files of a registered manifest.
create table helix.output (
  manifest uuid not null,
  size     bigint not null check (size >= 0),
  number   integer not null check (number >= 0),   -- the name of its copy below the staging prefix
  tenant   helix.tenant_name not null,
  sha256   helix.sha256 not null,
  path     text collate "C" not null,
  primary key (manifest, path)
);

-- Covers what is registered, so that an edit shows.
create function helix.manifest_hash(p_manifest helix.manifest) returns bytea
language sql stable as $$
  select sha256(convert_to(concat_ws('>', p_manifest.id, p_manifest.batch, p_manifest.number, p_manifest.epoch,
                                     p_manifest.attempt, p_manifest.tenant, p_manifest.queue, p_manifest.worker,
                                     p_manifest.destination, p_manifest.folder, p_manifest.files, p_manifest.bytes,
                                     extract(epoch from p_manifest.opened_at),
                                     extract(epoch from p_manifest.registered_at), p_manifest.run), 'UTF8')
                || (select sha256(string_agg(sha256(int8send(o.size) || int4send(o.number) || o.sha256
                                                    || convert_to(o.tenant || '/' || o.path, 'UTF8')), ''::bytea
                                             order by o.path))
                    from helix.output o where o.manifest = p_manifest.id))
$$;

-- Which batch a final name belongs to. Another batch that claims the name is refused when it registers.
create table helix.output_name (
  hash   helix.sha256 primary key,   -- of destination and name
  batch  bigint not null,
  tenant helix.tenant_name not null
);
create index output_name_batch on helix.output_name (batch);

do $$
begin
  perform helix.protect_table(t, 'helix.guard'::regproc)
  from unnest('{helix.output_root,helix.manifest,helix.output,helix.output_name}'::regclass[]) t;
end
$$;

-- The answer to a call of a worker about its outputs.
create type helix.output_answer as (
  answer      text,          -- ok | refused | illegal | conflict | none (the queue has no destination)
  owner       text,          -- refused: the worker that holds the batch; conflict: that registered the name
  state       helix.state,
  manifest    uuid,
  destination text,
  note        text
);

-- One part of a final name: no two texts give the same one. A part of more than 200 bytes becomes its beginning and
-- its hash, after `%~`, which no other part contains.
create function helix.output_part(p_text text, p_special text) returns text
language sql immutable parallel safe as $$
  select case when octet_length(e.text) <= 200 then e.text
              else left(e.text, 32) || '%~' || encode(sha256(convert_to(p_text, 'UTF8')), 'hex') end
  from (select case when p_text !~ p_special then p_text else (
          select string_agg(case when c.char !~ p_special then c.char else
                              regexp_replace(upper(encode(convert_to(c.char, 'UTF8'), 'hex')), '(..)', E'%\\1', 'g')
                            end, '' order by c.place)
          from regexp_split_to_table(p_text, '') with ordinality as c (char, place)) end as text) e
$$;

-- Tenant, queue and identity[@revision] of a batch. Work without identity has its public id after an `@`.
create function helix.output_folder(p_batch bigint) returns text
language sql stable as $$
  select q.tenant || '/' || q.name || '/'
         || case when b.identity is null then '@' || helix.public_id(b.key)
                 else helix.output_part(b.identity, E'[%/@\\x01-\\x1f\\x7f]|^[.]') end
         || case when b.revision <> '' then '@' || helix.output_part(b.revision, E'[%/@\\x01-\\x1f\\x7f]') else '' end
  from helix.batch b join helix.queue q on q.id = b.queue where b.id = p_batch
$$;

-- The final name of a file below its destination. That of a run, which has no folder, is its path as it is.
create function helix.output_name(p_folder text, p_path text) returns text
language sql immutable parallel safe as $$
  select case when p_folder <> '' then p_folder || '/' else '' end
         || case when p_folder = '' or p_path !~ '%|[^/]{50}' then p_path else (
              select string_agg(helix.output_part(s.part, '[%]'), '/' order by s.place)
              from string_to_table(p_path, '/') with ordinality as s (part, place)) end
$$;

-- The key of a name: names are longer than an index takes.
create function helix.output_hash(p_destination text, p_name text) returns bytea
language sql immutable parallel safe as $$
  select sha256(convert_to(p_destination || '/' || p_name, 'UTF8'))
$$;

-- Adds a root or changes it, or removes it: false if it was so already.
create function helix.set_output_root_v1(
  p_tenant text, p_uri text, p_actor text, p_reason text, p_removed boolean default false,
  p_stored_at text default null, p_is_input boolean default false
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  if not helix.is_destination(regexp_replace(p_uri, '^gs://', 's3://'))
     or not helix.is_destination(p_stored_at) or p_uri ~ '^gs://' and p_stored_at is null and not p_removed
  then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'expected a root such as s3://bucket/prefix or file:///srv/outputs, and of gs://bucket where it is stored, '
      'got %L%s', left(p_uri, 200), coalesce(' stored at ' || left(p_stored_at, 200), ''));
  end if;
  if p_removed then
    delete from helix.output_root r where r.tenant = p_tenant and r.uri = p_uri;
  else
    insert into helix.output_root as r (tenant, uri, stored_at, is_input, created_by)
    values (p_tenant, p_uri, p_stored_at, p_is_input, helix.actor_of(p_actor))
    on conflict (tenant, uri) do update
    set stored_at = p_stored_at, is_input = p_is_input, created_by = excluded.created_by
    where (r.stored_at, r.is_input) is distinct from (p_stored_at, p_is_input);
  end if;
  if not found then
    return false;
  end if;
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (p_tenant, 'root/' || p_uri, 'setting', helix.actor_of(p_actor),
          jsonb_strip_nulls(jsonb_build_object('uri', p_uri, 'removed', p_removed, 'reason', p_reason,
                                               'stored_at', p_stored_at,
                                               'is_input', nullif(p_is_input, false)))::text);
  return true;
end
$$;

-- Refuses a destination that is below no root; an empty one means no outputs.
create function helix.demand_root(p_tenant text, p_uri text) returns void
language plpgsql as $$
begin
  if p_uri = '' or exists (
       select from helix.output_root r
       where r.tenant in (p_tenant, '*') and (p_uri = r.uri or starts_with(p_uri, r.uri || '/'))
         and r.stored_at is null and not r.is_input and helix.is_destination(p_uri))
  then
    return;
  end if;
  raise exception using errcode = 'invalid_parameter_value',
    message = format('expected a destination below a root of tenant %s, got %L', p_tenant, left(p_uri, 200)),
    hint = 'An operator adds a root with helixq output root URI.';
end
$$;

-- Whether the token holds its lease; else the refusal, which is kept. Locks the row of the batch.
create function helix.output_holder(
  p_worker text, p_batch bigint, p_epoch integer, p_nonce bigint, p_number bigint
) returns helix.output_answer
language plpgsql as $$
declare
  v_answer helix.output_answer;
begin
  if cardinality((helix.lock_leases(p_worker, array[p_batch], array[p_epoch], array[p_nonce],
                                    array[p_number])).batch) = 1 then
    return row('ok', null, null, null, null, null)::helix.output_answer;
  end if;
  select a.answer, a.owner, a.state into v_answer.answer, v_answer.owner, v_answer.state
  from helix.answer_rest('outputs', p_worker, '{}', array[p_batch], array[p_epoch], array[p_nonce],
                         array[p_number], array[null::helix.reason]) a;
  return v_answer;
end
$$;

-- Opens the manifest of an attempt; a repeated call returns the same one.
create function helix.open_outputs_v1(
  p_worker text, p_batch bigint, p_epoch integer, p_nonce bigint, p_number bigint, p_bytes bigint default null
) returns setof helix.output_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_answer helix.output_answer;
begin
  perform helix.enter();
  p_worker := helix.actor_of(p_worker);
  v_answer := helix.output_holder(p_worker, p_batch, p_epoch, p_nonce, p_number);
  if v_answer.answer = 'ok' then
    insert into helix.manifest (batch, number, epoch, attempt, tenant, queue, worker, destination, folder,
                                bytes, run)
    select w.batch, w.number, w.epoch, w.attempt, q.tenant, q.name, p_worker,
           case when r.id is null then q.outputs else r.destination end,
           case when r.id is null then helix.output_folder(w.batch) else '' end, p_bytes, r.id
    from helix.work w join helix.queue q on q.id = w.queue left join helix.run r on r.id = w.run
    where w.batch = p_batch and case when r.id is null then q.outputs else r.destination end <> ''
    on conflict (batch, number, epoch) do nothing;
    select m.id, m.destination into v_answer.manifest, v_answer.destination from helix.manifest m
    where m.batch = p_batch and m.number = p_number and m.epoch = p_epoch;
    if not found then
      v_answer.answer := 'none';
    end if;
  end if;
  return next v_answer;
end
$$;

-- Registers a page of staged files, numbered from p_first; with p_files, the number of all, the manifest is
-- complete. A page may be repeated.
create function helix.register_outputs_v1(
  p_worker text, p_batch bigint, p_epoch integer, p_nonce bigint, p_number bigint, p_first integer,
  p_path text[], p_size bigint[], p_sha256 bytea[], p_files integer default null
) returns setof helix.output_answer
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_manifest helix.manifest;
  v_answer   helix.output_answer;
  v_wrong    text;
  v_hash     bytea[];   -- of the final names
  v_name     record;
begin
  perform helix.enter();
  p_worker := helix.actor_of(p_worker);
  perform helix.demand_parallel(cardinality(p_path), helix.shape(p_path), helix.shape(p_size),
                                helix.shape(p_sha256));
  v_answer := helix.output_holder(p_worker, p_batch, p_epoch, p_nonce, p_number);
  if v_answer.answer <> 'ok' then
    return next v_answer;
    return;
  end if;
  select * into v_manifest from helix.manifest m
  where m.batch = p_batch and m.number = p_number and m.epoch = p_epoch;
  v_answer.manifest := v_manifest.id;
  if v_manifest.state = 'registered' and v_manifest.files = p_files then
    return next v_answer;   -- a repeat of the last page
    return;
  elsif v_manifest.state is distinct from 'open' then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected an open manifest, got %s', coalesce(v_manifest.state, 'none'));
  end if;
  select u.path into v_wrong from unnest(p_path) as u (path)
  where helix.is_output_path(u.path) is not true
     or octet_length(v_manifest.destination || helix.output_name(v_manifest.folder, u.path)) > 1000
     -- Names of runs are not escaped: they must be possible in a directory, and not be those of staged copies.
     or v_manifest.run is not null and (u.path ~ '(^|/)[.]helix(/|$)' or exists (
          select from string_to_table(u.path, '/') as p (part) where octet_length(p.part) > 255))
  limit 1;
  if found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('expected a relative path in NFC of at most 1,000 bytes with its destination%s, got %L',
                       case when v_manifest.run is not null
                            then ', without .helix and parts of more than 255 bytes' else '' end,
                       left(v_wrong, 1000));
  end if;
  v_hash := array(select helix.output_hash(v_manifest.destination, helix.output_name(v_manifest.folder, u.path))
                  from unnest(p_path) with ordinality as u (path, place) order by u.place);
  insert into helix.output_name as n (hash, batch, tenant)
  select distinct u.hash, p_batch, v_manifest.tenant from unnest(v_hash) as u (hash) order by 1
  on conflict do nothing;
  -- Names of other tenants are invisible: they conflict and stay without an owner.
  select u.path, n.batch into v_name
  from unnest(p_path, v_hash) as u (path, hash)
  left join lateral (select o.batch from helix.output_name o where o.hash = u.hash offset 0) n on true
  where n.batch is distinct from p_batch limit 1;
  if found then
    return next helix.refuse_outputs(v_manifest, p_worker, v_name.path, v_name.batch);
    return;
  end if;
  insert into helix.output (manifest, size, number, tenant, sha256, path)
  select v_manifest.id, u.size, p_first + u.place - 1, v_manifest.tenant, u.sha256, u.path
  from unnest(p_path, p_size, p_sha256) with ordinality as u (path, size, sha256, place)
  on conflict do nothing;
  if p_files is not null then
    update helix.manifest m
    set state = 'registered', files = t.files, bytes = t.bytes, registered_at = clock_timestamp()
    from (select count(*)::integer as files, coalesce(sum(o.size), 0)::bigint as bytes,
                 count(distinct o.number) as numbers
          from helix.output o where o.manifest = v_manifest.id) t
    where m.id = v_manifest.id and t.files = p_files and t.numbers = p_files;
    if not found then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('expected %s registered files, got %s', p_files,
                         (select count(*) from helix.output o where o.manifest = v_manifest.id));
    end if;
    update helix.manifest m set hash = helix.manifest_hash(m) where m.id = v_manifest.id;
  end if;
  return next v_answer;
end
$$;

-- A name belongs to another batch: the refusal is kept, the manifest and the names of this attempt are given up.
create function helix.refuse_outputs(
  p_manifest helix.manifest, p_worker text, p_path text, p_other bigint
) returns helix.output_answer
language plpgsql as $$
declare
  v_other record;
  v_note  text;
begin
  select helix.public_id(b.key) as id, replace(b.identity, E'\x1f', '/') as identity, b.run,
         (select m.worker from helix.manifest m where m.batch = b.id order by m.opened_at desc limit 1) as worker
  into v_other from helix.batch b where b.id = p_other;
  v_note := left(format('the name %s/%s belongs to %s%s', p_manifest.destination,
                        helix.output_name(p_manifest.folder, p_path),
                        coalesce('batch ' || v_other.id, 'another tenant'),
                        -- Of runs, both datums: their files must have different names.
                        (select format(' (%s); %s writes it as well', v_other.identity,
                                       replace(b.identity, E'\x1f', '/'))
                         from helix.batch b
                         where b.id = p_manifest.batch and b.run is not null and v_other.run is not null)), 1900);
  insert into helix.refusal as r (batch, epoch, number, operation, tenant, worker, owner, state, why)
  values (p_manifest.batch, p_manifest.epoch, p_manifest.number, 'outputs', p_manifest.tenant, p_worker,
          v_other.worker, 'RUNNING', v_note)
  on conflict (batch, number, epoch, operation, worker) do update
    set times = r.times + 1, last_at = clock_timestamp();
  delete from helix.output_name n where n.batch = p_manifest.batch;
  delete from helix.output o where o.manifest = p_manifest.id;
  update helix.manifest m
  set state = 'lost', problem = v_note, due_at = clock_timestamp(), ended_at = clock_timestamp()
  where m.id = p_manifest.id;
  return row('conflict', v_other.worker, 'RUNNING', p_manifest.id, p_manifest.destination,
             v_note)::helix.output_answer;
end
$$;
