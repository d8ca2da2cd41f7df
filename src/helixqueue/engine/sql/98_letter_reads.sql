-- Reads of dead letters and of intakes, in the form of 92_reads.sql.

-- A letter as lists show it.
create view helix.letter_overview with (security_invoker = true) as
  select l.id, l.tenant, l.queue::text as queue, l.kind::text as kind, l.name::text as name,
         l.source::text as source, l.reason,
         -- The detail may quote the message.
         case when helix.sees_payloads() then l.detail::text end as detail, l.status, l.size, l.complete,
         l.deliveries, encode(l.digest, 'hex') as digest, l.first_at, l.last_at, l.actor,
         case when l.batch is not null
              then (select helix.public_id(b.key) from helix.batch b where b.id = l.batch) end as batch_id,
         l.closed_at, l.closed_by, l.closed_for::text as closed_for
  from helix.dead_letter l;

-- A page of letters of one tenant (null: of all tenants of the login), newest first, before the id p_before. Each page looks at p_look rows at
-- most; `edge` is where it stopped.
create function helix.read_letters_v1(
  p_tenant text, p_status text, p_reason text, p_queue text, p_before bigint, p_look integer,
  p_limit integer
) returns table (edge bigint, letter helix.letter_overview)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  return query
    with seen as materialized (
      select l.id, l.status, l.reason, l.queue::text as queue,
             row_number() over (order by l.id desc) = p_look as last
      from ((select * from helix.dead_letter l where l.tenant = p_tenant and l.id < p_before
             order by l.id desc limit p_look)
            union all
            (select * from helix.dead_letter l where p_tenant is null and l.id < p_before
             order by l.id desc limit p_look)) l
      order by l.id desc limit p_look
    ),
    page as (
      select s.id from seen s
      where (p_status is null or s.status = p_status) and (p_reason is null or s.reason = p_reason)
        and (p_queue is null or s.queue = p_queue)
      order by s.id desc limit p_limit
    )
    select (select s.id from seen s where s.last), v
    from (values (1)) as always (one)
    left join page p on true
    left join lateral (select v from helix.letter_overview v where v.id = p.id limit 1) as o (v) on true
    order by p.id desc;
end
$$;

-- One letter; its body only where p_body is set.
create function helix.read_letter_v1(p_letter bigint, p_body boolean default false)
returns table (letter helix.letter_overview, body bytea)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  perform helix.demand_payloads(p_body);
  return query
    select v, case when p_body then l.body end
    from helix.dead_letter l join helix.letter_overview v on v.id = l.id where l.id = p_letter;
end
$$;

-- The intakes of a tenant (null: of all tenants of the login) as they last reported, with the figures of their group
-- from the last look at Redis, by any process, and the age of that look.
create function helix.read_intakes_v1(p_tenant text)
returns table (
  tenant text, stream text, group_name text, consumer text, started_at timestamptz, seen_at timestamptz,
  ended_at timestamptz, age_seconds double precision, problem text, figures jsonb
)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
  select i.tenant::text, i.stream::text, i.group_name::text, i.consumer::text, i.started_at, i.seen_at, i.ended_at,
         extract(epoch from clock_timestamp() - i.seen_at)::double precision, i.problem::text,
         i.figures || coalesce(g.figures || jsonb_build_object(
           'looked_seconds', round(extract(epoch from clock_timestamp() - g.looked_at), 3)), '{}')
  from helix.intake i
  left join helix.stream_group g
    on g.tenant = i.tenant and g.stream = i.stream and g.group_name = i.group_name
  where p_tenant is null or i.tenant = p_tenant
  order by 1, 2, 3, 4 limit 10000
$$;
