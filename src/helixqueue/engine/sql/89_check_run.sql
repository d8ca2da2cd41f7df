-- Runs of `check` on the rows of a tenant: when, by whom, how long, and what each invariant found. The service
-- writes one after each complete run; the newest hundred of a tenant are kept.

create table helix.check_run (
  id      bigint generated always as identity primary key,
  tenant  helix.tenant_name not null,
  at      timestamptz not null default clock_timestamp(),
  seconds real not null,
  actor   helix.actor_name not null,
  results helix.document not null  -- [invariant, count, witnesses, why it was skipped], ...
);
create index check_run_list on helix.check_run (tenant, id);
do $$
begin
  perform helix.protect_table('helix.check_run'::regclass, 'helix.guard'::regproc);
end
$$;

-- Stores a run, and removes the runs before the newest hundred of its tenant.
create function helix.note_check_v1(p_tenant text, p_actor text, p_seconds double precision, p_results text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
begin
  perform helix.enter_for(p_tenant);
  insert into helix.check_run (tenant, actor, seconds, results)
  values (p_tenant, helix.actor_of(p_actor), p_seconds, p_results::helix.document);
  delete from helix.check_run r
  where r.tenant = p_tenant
    and r.id <= (select o.id from helix.check_run o where o.tenant = p_tenant order by o.id desc limit 1 offset 100);
end
$$;
