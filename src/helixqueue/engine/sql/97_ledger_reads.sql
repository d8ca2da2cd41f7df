-- Reads of user ledgers and feeds. 92_reads.sql explains how reads are written.

-- The ledgers of a tenant, or of all that the login may see, by tenant and name.
create function helix.read_ledgers_v1(
  p_tenant text, p_name text default null, p_after_tenant text default '', p_after_name text default '',
  p_limit integer default 1001
)
returns table (
  tenant text, name text, machine jsonb, initial text[], is_strict boolean, gaps text, bound boolean,
  ignored text[], created_at timestamptz, created_by text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
  return query
    select l.tenant::text, l.name::text, l.machine, l.initial, l.is_strict, l.gaps, l.bound, l.ignored,
           l.created_at, l.created_by
    from helix.ledger l
    where (p_tenant is null or l.tenant = p_tenant) and (p_name is null or l.name = p_name)
      and (l.tenant, l.name) > (p_after_tenant, p_after_name)
    order by l.tenant, l.name limit least(p_limit, 1001);
end
$$;

-- The events of one entity after a version, or of all entities after an entity and version, in the order of
-- (entity, version), with what the hash covers. Payloads are shown to logins that may see them.
create function helix.read_ledger_events_v1(
  p_tenant text, p_ledger text, p_entity text default null, p_after_entity text default '',
  p_after_version integer default 0, p_limit integer default 1000
)
returns table (
  entity text, seq bigint, kind text, version integer, payload text, node text, actor text, at timestamptz,
  violations text[], key bytea, fingerprint bytea, hash bytea, "position" bigint, feed_position bigint
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  c_bytes    constant integer := 16777216;   -- of the payloads of a page
  v_ledger   integer := (select l.id from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger);
  v_payloads boolean := helix.sees_payloads();
  v_limit    integer := least(p_limit, 10000);
  v_after    text := coalesce(p_entity, p_after_entity);
  v_bytes    bigint := 0;
begin
  -- A page is read row by row: its payloads may have far more bytes than fit into memory.
  for entity, seq, kind, version, payload, node, actor, at, violations, key, fingerprint, hash, position, feed_position in
    select e.entity::text, e.seq::bigint, e.kind::text, e.version,
           case when v_payloads and coalesce(e.entity = p_entity, true) then e.payload::text end, e.node::text,
           e.actor, e.at, e.violations, e.key::bytea, e.fingerprint::bytea, e.hash::bytea, e.position, e.feed_position
    from helix.ledger_event e
    where e.ledger = v_ledger and (e.entity, e.version) > (v_after, p_after_version)
    order by e.ledger, e.entity, e.version limit v_limit
  loop
    exit when entity <> p_entity;
    return next;
    v_bytes := v_bytes + coalesce(octet_length(payload), 0);
    exit when v_bytes > c_bytes;
  end loop;
end
$$;

-- The state of one entity: its greatest seq, and the kind there. No row: it has no event.
create function helix.read_entity_v1(p_tenant text, p_ledger text, p_entity text)
returns table (entity text, state text, seq bigint, events integer, hash bytea, changed_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_ledger integer := (select l.id from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger);
begin
  return query
    select p_entity, top.kind::text, top.seq::bigint, last.version, last.hash::bytea, last.at
    from (select e.version, e.hash, e.at from helix.ledger_event e
          where e.ledger = v_ledger and e.entity = p_entity order by e.version desc limit 1) last
    cross join lateral (
      select e.kind, e.seq from helix.ledger_event e
      where e.ledger = v_ledger and e.entity = p_entity order by e.seq desc, e.version desc limit 1) top;
end
$$;

-- What a signed head of a ledger covers: digests over the last event of each entity, in 256 buckets by the hash
-- of the entity. p_to is a position in the order of feeds; null: the present one, below which no event can appear.
create function helix.read_ledger_head_v1(p_tenant text, p_ledger text, p_to bigint default null)
returns table (reached bigint, bucket integer, entities bigint, events bigint, digest bytea)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set jit = off set work_mem = '64MB' as $$
#variable_conflict use_column
declare
  v_ledger integer := (select l.id from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger);
  v_to     bigint := coalesce(p_to, helix.reached_position());
begin
  return query
    select v_to, h.bucket, count(*), sum(h.version)::bigint,
           sha256(string_agg(helix.framed(h.entity) || int4send(h.version) || h.hash, ''::bytea
                             order by h.entity collate "C"))
    from (select distinct on (e.entity) e.entity::text as entity, e.version, e.hash::bytea as hash,
                 get_byte(sha256(convert_to(e.entity::text, 'UTF8')), 0) as bucket
          from helix.ledger_event e
          where e.ledger = v_ledger and e.feed_position < v_to
          order by e.entity, e.version desc) h
    group by h.bucket
    union all
    -- A ledger without events has a position as well.
    select v_to, null, 0, 0, null
    where v_ledger is not null
    order by 2 nulls first;
end
$$;

-- The feeds of a tenant, or of all that the login may see, with the number of events after their position (at
-- most 10,000 are counted) and the time of the oldest of them. Without p_lag nothing is counted.
create function helix.read_feeds_v1(
  p_tenant text, p_name text default null, p_lag boolean default true, p_after_tenant text default '',
  p_after_name text default '', p_limit integer default 1001
)
returns table (
  tenant text, name text, ledger text, queue text, paused boolean, delivered bigint, lag bigint,
  oldest_at timestamptz, moved_at timestamptz, holder text
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
#variable_conflict use_column
begin
  return query
    select f.tenant::text, f.name::text, l.name::text, f.queue, f.paused, f.delivered, coalesce(behind.lag, 0),
           behind.oldest_at, f.moved_at, case when f.held_until > clock_timestamp() then f.holder::text end
    from helix.feed f
    left join helix.ledger l on l.id = f.ledger
    left join lateral (select * from helix.feed_lag(f) where p_lag) behind on true
    where (p_tenant is null or f.tenant = p_tenant) and (p_name is null or f.name = p_name)
      and (f.tenant, f.name) > (p_after_tenant, p_after_name)
    order by f.tenant, f.name limit least(p_limit, 1001);
end
$$;

-- The next events of a feed, with at most 16 MiB of payloads (or one event), without moving it, and its
-- position.
create function helix.read_feed_v1(p_tenant text, p_feed text, p_limit integer default 500)
returns table (
  "position" bigint, number bigint, version integer, key text, entity text, seq bigint, kind text, payload text,
  node text, actor text, at timestamptz, violations text[], from_position bigint, from_number bigint,
  from_version integer
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query
    select e.*, f.position, f.number, f.version
    from helix.feed f cross join lateral helix.feed_page(f, least(p_limit, 10000), 16777216) e
    where f.tenant = p_tenant and f.name = p_feed and not f.paused;
end
$$;
