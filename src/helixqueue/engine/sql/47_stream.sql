-- Consumer groups of Redis Streams: what Redis says about them, and counts of what intakes decided.

-- One row per group that an intake has read. Redis may lose the group, and `start` of the intake's settings
-- holds only for a group without a row here. Figures are those of Redis at `looked_at`.
create table helix.stream_group (
  tenant     helix.tenant_name not null,
  stream     helix.source_text not null,
  group_name helix.source_text not null,
  first_at   timestamptz not null,
  looked_at  timestamptz not null,
  figures    jsonb not null check (octet_length(figures::text) <= 65536),
  primary key (tenant, stream, group_name)
) with (fillfactor = 50);

do $$
begin
  perform helix.protect_table('helix.stream_group'::regclass, 'helix.guard'::regproc);
end
$$;

-- Adds to the counters of a group, in the transaction that decided about its entries.
create function helix.count_stream(
  p_tenant text, p_stream text, p_group text, p_deliveries bigint, p_vanished bigint, p_xack_failures bigint
) returns void
language plpgsql as $$
begin
  insert into helix.metric_change (tenant, name, queue, label, value)
  select p_tenant, n.name, p_stream, p_group, n.value
  from (values ('helix_stream_deliveries_total', p_deliveries),
               ('helix_stream_vanished_total', p_vanished),
               ('helix_xack_after_commit_failures', p_xack_failures)) as n (name, value)
  where n.value is not null;
end
$$;

-- `count_stream` for an intake.
create function helix.count_stream_v1(
  p_tenant text, p_stream text, p_group text, p_deliveries bigint default null, p_vanished bigint default null,
  p_xack_failures bigint default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  perform helix.count_stream(p_tenant, p_stream, p_group, p_deliveries, p_vanished, p_xack_failures);
end
$$;

-- Lets a login that acts for all tenants (also one per transaction, as a service does) act for all of them at once.
create function helix.enter_every_tenant() returns void
language plpgsql as $$
begin
  if exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*') then
    perform set_config('helix.scope', '*', true);
  end if;
end
$$;

-- Stores what a look at a group of Redis found, p_seconds ago. An older look does not replace a newer one. The first
-- look makes the group known, and starts its counters from zero, because Prometheus sees an increase only of a series
-- that it has seen before.
create function helix.look_stream_v1(
  p_tenant text, p_stream text, p_group text, p_seconds double precision, p_figures jsonb,
  p_every_tenant boolean default false
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_at timestamptz := clock_timestamp() - make_interval(secs => greatest(p_seconds, 0));
begin
  if p_every_tenant then
    perform helix.enter();
    perform helix.enter_every_tenant();
  else
    perform helix.enter_for(p_tenant);
  end if;
  update helix.stream_group g set looked_at = v_at, figures = p_figures
  where g.tenant = p_tenant and g.stream = p_stream and g.group_name = p_group and g.looked_at < v_at;
  if not found then
    insert into helix.stream_group (tenant, stream, group_name, first_at, looked_at, figures)
    values (p_tenant, p_stream, p_group, clock_timestamp(), v_at, p_figures)
    on conflict do nothing;
    if found then
      perform helix.count_stream(p_tenant, p_stream, p_group, 0, 0, 0);
    end if;
  end if;
end
$$;

-- Groups whose last look is so long ago. In random order: those of a Redis that the caller does not know
-- stay old, and must not hide the others.
create function helix.stream_groups_v1(
  p_seconds double precision, p_every_tenant boolean default false, p_limit integer default 100
) returns table (tenant text, stream text, group_name text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  perform helix.enter();
  if p_every_tenant then
    perform helix.enter_every_tenant();
  end if;
  return query
    select g.tenant::text, g.stream::text, g.group_name::text from helix.stream_group g
    where g.looked_at <= clock_timestamp() - make_interval(secs => p_seconds)
    order by random() limit p_limit;
end
$$;

-- Whether an intake has read this group before.
create function helix.knows_group_v1(p_tenant text, p_stream text, p_group text) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  return exists (select from helix.stream_group g
                 where g.tenant = p_tenant and g.stream = p_stream and g.group_name = p_group);
end
$$;
