-- Publication: which manifests were granted, who works on them, and their end. Any process with the credentials of a
-- destination may publish; every step may be repeated, also by two processes at once.

-- How long the staging of a lost attempt stays: its worker may be frozen in the middle of an upload.
create function helix.output_grace() returns interval
language sql immutable parallel safe as $$ select interval '1 h' $$;

-- One task of a publisher.
create type helix.output_task as (
  manifest    uuid,
  batch_id    uuid,
  tenant      text,
  queue       text,
  task        text,      -- publish | clean (remove staging) | remove (remove staging and published files)
  state       text,      -- of the manifest
  destination text,
  files       integer,
  sealed      boolean    -- every file had its final name
);

-- Decides about manifests whose attempt has ended. COMPLETED is final and numbers of leases never return, so what
-- is read here cannot change any more.
create function helix.decide_outputs(p_manifest uuid[]) returns void
language plpgsql
set enable_seqscan = off set jit = off as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  update helix.manifest m
  set state = d.state, due_at = case d.state when 'lost' then v_now + helix.output_grace()
                                             when 'granted' then '-infinity'::timestamptz end,
      granted_at = case when d.state <> 'lost' then v_now end,
      ended_at = case when d.state = 'lost' then v_now end,
      problem = case when d.state = 'blocked' then 'the attempt completed before its files were registered' end
  from (select o.id, case when w.batch is null or (w.number, w.epoch) is distinct from (o.number, o.epoch)
                            then 'lost'
                          when w.state in ('ASSIGNED', 'RUNNING') then null
                          when w.state <> 'COMPLETED' then 'lost'
                          when o.state = 'registered' then 'granted'
                          else 'blocked' end as state
        from helix.manifest o left join helix.work w on w.batch = o.batch
        where o.id = any (p_manifest) and o.state in ('open', 'registered')) d
  where m.id = d.id and d.state is not null;
end
$$;

-- Takes tasks that are due, or those of p_manifest at once; for a minute others do not take them. Blocked manifests
-- are tried again only by name. Workers take tasks of their own queues: they have the credentials of no other.
create function helix.take_outputs_v1(
  p_limit integer, p_manifest uuid[] default null, p_every_tenant boolean default false,
  p_queue text[] default null
)
returns setof helix.output_task
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_held uuid[];
begin
  perform helix.enter();
  if p_every_tenant then
    perform helix.enter_every_tenant();
  end if;
  if p_manifest is null then
    -- Attempts in progress are looked at as well; a thousand of them must not hide the tasks behind them.
    v_held := array(select m.id from helix.manifest m
                    where m.due_at <= v_now and (p_queue is null or m.queue = any (p_queue))
                    order by m.due_at limit 1000 for update skip locked);
  else
    v_held := array(select m.id from helix.manifest m where m.id = any (p_manifest) for update);
  end if;
  perform helix.decide_outputs(v_held);
  if p_manifest is null then
    update helix.manifest m set due_at = v_now + interval '5 s'
    where m.id = any (v_held) and m.state in ('open', 'registered');
    v_held := array(select m.id from helix.manifest m
                    where m.id = any (v_held) and m.due_at <= v_now order by m.due_at limit p_limit);
  end if;
  update helix.manifest m
  set state = case when m.state = 'blocked' and m.files is not null then 'granted' else m.state end,
      due_at = case when m.state in ('open', 'registered') then v_now + interval '5 s'
                    when m.state = 'lost' and m.due_at > v_now then m.due_at
                    else v_now + interval '1 min' end
  where m.id = any (v_held) and (m.due_at is not null or p_manifest is not null and m.state = 'blocked');
  return query
    select m.id, helix.public_id(b.key), m.tenant::text, m.queue,
           case m.state when 'granted' then 'publish' when 'removing' then 'remove' else 'clean' end,
           m.state, m.destination, m.files, m.sealed_at is not null
    from helix.manifest m join helix.batch b on b.id = m.batch
    where m.id = any (v_held) and m.due_at is not null
      and (m.state in ('granted', 'removing', 'sealed') or m.state = 'lost' and m.due_at <= v_now + interval '1 min');
end
$$;

-- A page of the files of a manifest, in the order of their paths: path, final name, number below the staging prefix.
create function helix.output_files_v1(
  p_manifest uuid, p_after text, p_limit integer, p_every_tenant boolean default false
)
returns table (path text, name text, number integer, size bigint, sha256 bytea)
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
begin
  perform helix.enter();
  if p_every_tenant then
    perform helix.enter_every_tenant();
  end if;
  return query
    select o.path, helix.output_name(m.folder, o.path), o.number, o.size, o.sha256::bytea
    from helix.manifest m join helix.output o on o.manifest = m.id
    where m.id = p_manifest and o.path > p_after collate "C"
    order by o.path limit least(p_limit, 5000);
end
$$;

-- Releases the names of a batch of which no other manifest is left: another batch may have them. A registration
-- locks the row of the batch, so that none comes between the look and the deletion.
create function helix.release_output_names(p_batch bigint, p_manifest uuid) returns void
language plpgsql as $$
begin
  perform from helix.work w where w.batch = p_batch for update;
  delete from helix.output_name n
  where n.batch = p_batch
    and not exists (select from helix.manifest m where m.batch = p_batch and m.id <> p_manifest
                      and m.state in ('open', 'registered', 'granted', 'sealed', 'blocked', 'removing'));
end
$$;

-- Ends a task: what a publisher did, and how many files it handled.
--   sealed    every file has its final name; demands that their number is that of the manifest
--   blocked   p_problem says why
--   failed    p_problem says why; the task is due again when the minute of its taker is over
--   cleaned   staging is removed
--   removed   staging and published files are removed: the rows of the files go as well
-- Returns the state of the manifest; null if it is not there.
create function helix.end_outputs_v1(
  p_manifest uuid, p_outcome text, p_files integer default null, p_problem text default null,
  p_every_tenant boolean default false
) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_now      timestamptz := clock_timestamp();
  v_manifest helix.manifest;
begin
  perform helix.enter();
  if p_every_tenant then
    perform helix.enter_every_tenant();
  end if;
  select * into v_manifest from helix.manifest m where m.id = p_manifest for update;
  if p_outcome = 'sealed' and v_manifest.state = 'granted' then
    -- A publisher that sees no row of another tenant would otherwise seal without having published.
    if p_files is distinct from v_manifest.files then
      raise exception using errcode = 'invalid_parameter_value',
        message = format('expected %s published files, got %s', v_manifest.files, coalesce(p_files::text, 'null'));
    end if;
    update helix.manifest m set state = 'sealed', sealed_at = v_now, problem = null, due_at = v_now
    where m.id = p_manifest;
    insert into helix.metric_change (tenant, name, queue, label, value)
    values (v_manifest.tenant, 'helix_outputs_published_total', v_manifest.queue, '', v_manifest.files);
  elsif p_outcome = 'blocked' and v_manifest.state = 'granted' then
    update helix.manifest m
    set state = 'blocked', problem = left(p_problem, 16000), due_at = null where m.id = p_manifest;
  elsif p_outcome = 'failed' and v_manifest.due_at is not null then
    update helix.manifest m set problem = left(p_problem, 16000) where m.id = p_manifest;
  elsif p_outcome = 'cleaned' and v_manifest.state in ('sealed', 'lost') then
    update helix.manifest m set due_at = null where m.id = p_manifest;
    if v_manifest.state = 'lost' then
      delete from helix.output o where o.manifest = p_manifest;
      perform helix.release_output_names(v_manifest.batch, p_manifest);
    end if;
  elsif p_outcome = 'removed' and v_manifest.state = 'removing' then
    delete from helix.output o where o.manifest = p_manifest;
    perform helix.release_output_names(v_manifest.batch, p_manifest);
    -- The folder contains the identity.
    update helix.manifest m set state = 'removed', due_at = null, folder = '', problem = null, hash = null
    where m.id = p_manifest;
  end if;
  return (select m.state from helix.manifest m where m.id = p_manifest);
end
$$;

-- Erasure and retention: publishers remove the files of these finished batches.
create function helix.remove_outputs(p_batch bigint[]) returns bigint[]
language plpgsql as $$
declare
  v_done bigint[];
begin
  perform helix.decide_outputs(array(select m.id from helix.manifest m where m.batch = any (p_batch)));
  with removing as (
    update helix.manifest m
    set state = 'removing', due_at = clock_timestamp(), ended_at = clock_timestamp(), problem = null
    where m.batch = any (p_batch) and m.state in ('granted', 'sealed', 'blocked', 'lost')
    returning m.batch
  )
  select array_agg(distinct r.batch) into v_done from removing r;
  return v_done;
end
$$;

-- Retention of batches, before their rows of helix.work are deleted, by which the grant is known.
create function helix.retire_outputs(p_batch bigint[]) returns void
language plpgsql as $$
begin
  perform helix.decide_outputs(array(select m.id from helix.manifest m where m.batch = any (p_batch)));
  perform helix.remove_outputs(array(
    select distinct m.batch from helix.manifest m
    join helix.queue q on q.tenant = m.tenant and q.name = m.queue
    where m.batch = any (p_batch) and q.outputs_after = 'remove'));
end
$$;

-- Reads.

-- For reconciliation with what a store contains: which staging prefixes still have a task or an attempt, and which
-- objects are published files of a batch that completed.
create function helix.read_known_outputs_v1(p_manifest uuid[], p_uri text[])
returns table (manifest uuid[], uri text[])
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
  select array(select m.id from helix.manifest m
               where m.id = any (p_manifest) and (m.due_at is not null or m.state = 'blocked')),
         array(select u.uri
               from unnest(p_uri) as u (uri)
               join helix.output_name n on n.hash = sha256(convert_to(u.uri, 'UTF8'))
               where exists (select from helix.manifest m
                             where m.batch = n.batch and m.state in ('granted', 'sealed', 'blocked', 'removing')))
$$;

-- Manifests, newest first: of some batches, or of a tenant by queue and state.
create function helix.read_manifests_v1(
  p_ids uuid[], p_tenant text default null, p_queue text default null, p_state text default null,
  p_before timestamptz default 'infinity', p_limit integer default 100
)
returns table (manifest uuid, batch_id uuid, tenant text, queue text, state text, worker text, attempt smallint,
               destination text, folder text, files integer, bytes bigint, opened_at timestamptz,
               granted_at timestamptz, sealed_at timestamptz, problem text)
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
  select m.id, helix.public_id(b.key), m.tenant, m.queue,
         -- The settlement grants, before a publisher writes it down.
         case when m.state = 'registered' and w.state = 'COMPLETED'
                   and (w.number, w.epoch) = (m.number, m.epoch) then 'granted' else m.state end,
         m.worker, m.attempt, m.destination, m.folder, m.files, m.bytes, m.opened_at,
         coalesce(m.granted_at, case when m.state = 'registered' and w.state = 'COMPLETED' then w.changed_at end),
         m.sealed_at, m.problem
  from helix.manifest m
  join helix.batch b on b.id = m.batch
  left join helix.work w on w.batch = m.batch
  where (p_ids is null or m.batch in (select l.batch from helix.locate(p_ids) l))
    and (p_tenant is null or m.tenant = p_tenant) and (p_queue is null or m.queue = p_queue)
    and (p_state is null or m.state = p_state) and m.opened_at < p_before
  order by m.opened_at desc, m.id limit least(p_limit, 1001)
$$;

-- A page of the published files of a batch: those of its sealed manifest.
create function helix.read_outputs_v1(p_id uuid, p_after text default '', p_limit integer default 100)
returns table (path text, uri text, size bigint, sha256 bytea)
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
  select o.path, m.destination || '/' || helix.output_name(m.folder, o.path), o.size, o.sha256::bytea
  from helix.locate(array[p_id]) l
  join helix.manifest m on m.batch = l.batch and m.state = 'sealed'
  join helix.output o on o.manifest = m.id
  where o.path > p_after collate "C"
  order by o.path limit least(p_limit, 5001)
$$;
