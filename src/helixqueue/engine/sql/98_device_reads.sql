-- Devices that workers of the last day described, and what holds them.

-- Whether a lease holds a device, or its former process may. As the engine: also a lease of another tenant, of which
-- readers learn no more than that.
create function helix.is_held(p_host text, p_device text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select exists (select from helix.allocation a where a.host = p_host and a.device = p_device)
$$;

-- By host and place. The newest report of a host counts. The first 1,000.
create function helix.read_devices_v1(p_tenant text)
returns table (
  host text, device text, place integer, model text, vram_gb real, cc real, fault text, seen_at timestamptz, held boolean,
  worker text, public_id uuid, queue text, identity text, since timestamptz, ended_at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    with report as materialized (
      select w.free ->> 'host' as host, w.free, w.last_seen from helix.worker w
      where w.tenant in (p_tenant, '*') and w.free ? 'host' and w.last_seen > clock_timestamp() - interval '1 day'
      order by w.tenant, w.name limit 1000
    ),
    newest as (
      select distinct on (r.host) r.host, r.free, r.last_seen from report r order by r.host, r.last_seen desc
    )
    select n.host, d.uuid, d.index, d.model, d.vram_gb, d.cc,
           coalesce((select h.withdrawn ->> d.uuid from helix.host h where h.name = n.host), d.fault), n.last_seen,
           helix.is_held(n.host, d.uuid), a.worker, helix.public_id(b.key), q.name, b.identity::text, a.at, a.ended_at
    from newest n
    cross join lateral helix.devices_of(n.free) d
    left join lateral (select * from helix.allocation l where l.host = n.host and l.device = d.uuid limit 1) a on true
    left join lateral (select * from helix.batch l where l.id = a.batch limit 1) b on true
    left join helix.queue q on q.id = b.queue
    order by n.host, d.index, d.uuid limit 1000;
end
$$;
