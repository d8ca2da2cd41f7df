-- Reads about identities: those that were refused, and all of a queue, in which clients look for twins.

-- Refused identities of one queue, newest first, before a position; of every queue of that name that the
-- login may see if p_tenant is null.
create function helix.read_refused_v1(
  p_tenant text, p_queue text, p_before bigint default 9223372036854775807, p_limit integer default 50
)
returns table (
  id bigint, tenant text, at timestamptz, actor text, raw_hex text, why text, times integer,
  last_at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select r.id, t.tenant, r.at, r.actor, r.detail::json ->> 'raw_hex', r.detail::json ->> 'why', r.times,
           coalesce(r.last_at, r.at)
    from (select p_tenant where p_tenant is not null
          union all
          select q.tenant from helix.queue q where p_tenant is null and q.name = p_queue) as t (tenant)
    cross join lateral (
          (select d.id, d.at, d.actor, d.detail, d.times, d.last_at from helix.decision d
           where d.tenant = t.tenant and d.queue = p_queue and d.kind = 'refused' and d.id < p_before
             -- Refused for another reason: the text is no JSON.
             and d.detail like '{"why": %"raw_hex": "%'
           order by d.id desc limit least(p_limit, 1001))
          union all
          select c.id, c.at, c.actor, c.detail, c.times, c.last_at from helix.answer_count c
          where c.tenant = t.tenant and c.queue = p_queue and c.kind = 'refused' and c.life is null
            and c.id < p_before and c.detail like '{"why": %"raw_hex": "%') r
    order by r.id desc limit least(p_limit, 1001);
end
$$;

-- Identities of a queue in the order of their arrival, after a position. Retired batches have none.
create function helix.read_identities_v1(
  p_tenant text, p_queue text, p_after_at timestamptz default '-infinity', p_after_id bigint default 0,
  p_limit integer default 1000
)
returns table (created_at timestamptz, id bigint, key bytea, identity text, raw text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    select b.created_at, b.id, b.key::bytea, b.identity::text, b.raw
    from helix.read_queue_ids(p_tenant, p_queue) q
    cross join lateral (
      select * from helix.batch b
      where b.queue = q.id and b.retired_at is null and (b.created_at, b.id) > (p_after_at, p_after_id)
      order by b.queue, b.created_at, b.id limit least(p_limit, 5001)) b;
end
$$;
