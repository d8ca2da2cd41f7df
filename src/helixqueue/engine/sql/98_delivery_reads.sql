-- Reads of webhook sources and their deliveries, in the form of 92_reads.sql.

-- Deliveries of a source, newest first, before the fence p_before: how each was decided, and how often it was repeated
-- or came with another body.
create function helix.read_deliveries_v1(p_tenant text, p_source text, p_before bigint, p_limit integer)
returns table (
  life bigint, key bytea, identity text, decision text, effect text, at timestamptz, sealed_at timestamptz,
  duplicates bigint, conflicts bigint, detail text
)
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
  select f.life, f.key::bytea, f.identity::text,
         case f.state when 'SEALED' then split_part(f.form, ' ', 2) when 'RELEASED' then 'failed' else 'in_progress' end,
         f.effect::text, f.first_at, f.sealed_at, d.duplicates, d.conflicts, f.detail::text
  from helix.fence f
  cross join lateral (
    select coalesce(sum(c.times) filter (where c.kind in ('repeated', 'expired')), 0) as duplicates,
           coalesce(sum(c.times) filter (where c.kind = 'mismatch'), 0) as conflicts
    from (select n.kind::text, n.times from helix.fence_decision n where n.life = f.life
          union all select n.kind, n.times from helix.answer_count n where n.life = f.life) c) d
  where f.tenant = p_tenant and f.name = 'webhook ' || p_source and f.life < p_before
  order by f.life desc limit least(p_limit, 501)
$$;

-- The sources of a tenant by name, with the number of their valid secrets.
create function helix.read_webhooks_v1(p_tenant text, p_name text)
returns table (
  tenant text, name text, scheme text, definition text, applied_at timestamptz, applied_by text, secrets bigint,
  secret_since timestamptz
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select s.tenant::text, s.name, s.scheme, s.definition, s.applied_at, s.applied_by, x.number, x.since
  from helix.webhook_source s
  cross join lateral (
    select count(*) as number, max(w.valid_from) as since from helix.webhook_secret w
    where w.tenant = s.tenant and w.source = s.name and coalesce(w.valid_until > clock_timestamp(), true)) x
  where s.tenant = p_tenant and (p_name is null or s.name = p_name)
  order by s.name limit 1000
$$;
