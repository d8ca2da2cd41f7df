-- Reads of runs.

-- Runs, newest first: one by its name or id, or those of a tenant and state. Specs for those who may see payloads.
create function helix.read_runs_v1(
  p_tenant text default null, p_run text default null, p_state text default null,
  p_before timestamptz default 'infinity', p_limit integer default 100, p_specs boolean default false
)
returns table (run bigint, name text, tenant text, queue text, state text, datums bigint, appended bigint,
               counts jsonb, failures jsonb, tries smallint, egress text, destination text, blocked text,
               problem text, actor text, key text, digest bytea, created_at timestamptz, deadline timestamptz,
               ended_at timestamptz, spec text, received text)
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
  select r.id, r.name, r.tenant, q.name, r.state, r.datums, r.appended, c.counts, c.failures, r.tries, r.egress,
         r.destination,
         (select m.problem from helix.manifest m where m.run = r.id and m.state = 'blocked' limit 1),
         r.problem, r.actor, r.key, r.digest, r.created_at, r.deadline, r.ended_at,
         case when p_specs and helix.sees_payloads() then r.spec end,
         case when p_specs and helix.sees_payloads() then r.received end
  from helix.run r
  join helix.queue q on q.id = r.queue
  cross join lateral (
    select coalesce(jsonb_object_agg(n.what, n.value) filter (where n.what <> 'failure'), '{}') as counts,
           coalesce(jsonb_object_agg(n.label, n.value) filter (where n.what = 'failure' and n.place <= 20), '{}')
             as failures
    from (select g.what, g.label, g.value, row_number() over (partition by g.what order by g.value desc, g.label) as place
          from helix.run_counts(r.id) g) n) c
  where (p_tenant is null or r.tenant = p_tenant) and (p_state is null or r.state = p_state)
    and (p_run is null or r.name = p_run
         or r.id = case when p_run ~ '^[0-9]{1,18}$' then p_run::bigint end)
    and r.created_at < p_before
  order by r.created_at desc, r.id limit least(p_limit, 1001)
$$;

-- What a worker executes for the batches of a run.
create function helix.read_run_text_v1(p_run bigint) returns table (run bigint, name text, spec text)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select r.id, r.name, r.spec from helix.run r where r.id = p_run
$$;

-- A page of the published files of a run.
create function helix.read_run_outputs_v1(
  p_run bigint, p_after_manifest uuid default null, p_after_path text default '', p_limit integer default 100
)
returns table (batch_id uuid, datum text, path text, uri text, size bigint, sha256 bytea, manifest uuid)
language sql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
  select helix.public_id(b.key), substr(b.identity, strpos(b.identity, E'\x1f') + 1), o.path,
         m.destination || '/' || o.path, o.size, o.sha256::bytea, m.id
  from helix.manifest m
  join helix.batch b on b.id = m.batch
  join helix.output o on o.manifest = m.id
  where m.run = p_run and m.state = 'sealed'
    and (p_after_manifest is null or (m.id, o.path) > (p_after_manifest, p_after_path collate "C"))
  order by m.id, o.path limit least(p_limit, 5001)
$$;

-- Below which roots runs of a tenant read and write.
create function helix.read_run_roots_v1(p_tenant text default null)
returns table (uri text, stored_at text, is_input boolean)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select distinct on (r.uri) r.uri, coalesce(r.stored_at, r.uri), r.is_input from helix.output_root r
  where p_tenant is null or r.tenant in (p_tenant, '*')
  order by r.uri, r.tenant desc
$$;
