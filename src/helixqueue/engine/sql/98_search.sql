-- The search of the dashboard, in the form of 92_reads.sql.

-- What a text of a person may mean, at most p_limit of each kind, each found through an index: batches whose key
-- lies between p_from and p_to (the first digits of an id are those of the key), workers whose name begins with it,
-- fences with this name, of up to a thousand names this identity, or a key in that range, a queue, a dead letter.
create function helix.read_search_v1(
  p_tenant text, p_text text, p_from bytea, p_to bytea, p_letter bigint, p_limit integer default 10
)
returns table (kind text, name text, id text, queue text, state text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  v_limit integer := least(p_limit, 50);
begin
  return query
    (select 'batch', coalesce(replace(f.identity, chr(31), ' / '), helix.public_id(f.key)::text),
            helix.public_id(f.key)::text, q.name, coalesce(w.state, f.state)::text
     from (select b.id, b.key, b.queue, b.identity::text as identity, b.state from helix.batch b
           where b.key >= p_from and b.key <= p_to order by b.key limit 1000) f
     cross join lateral (select q.name from helix.queue q where q.id = f.queue and q.tenant = p_tenant limit 1) q
     left join lateral (select w.state from helix.work w where w.batch = f.id limit 1) w on true
     limit v_limit)
    union all
    (select 'worker', n.name, n.name, null, null
     from (select distinct w.name from helix.worker w
           where w.tenant in (p_tenant, '*') and w.name >= p_text collate "C"
             and w.name < p_text || chr(1114111) collate "C"
           order by w.name limit v_limit) n)
    union all
    (select 'fence', f.name::text, helix.key_text(f.key), null, f.state::text
     from (select x.name, x.key, x.state from helix.fence x where x.tenant = p_tenant and x.name = p_text
           order by x.tenant, x.name, x.life desc limit v_limit) f)
    union all
    -- A key is derived from the name of its fence: each name of the tenant is one step through the index.
    (with recursive named (name, place) as (
       (select x.name::text, 1 from helix.fence x where x.tenant = p_tenant order by x.tenant, x.name limit 1)
       union all
       select (select x.name::text from helix.fence x where x.tenant = p_tenant and x.name > n.name
               order by x.tenant, x.name limit 1), n.place + 1
       from named n where n.name is not null and n.place < 1000
     )
     select 'fence', f.name::text || ' ' || replace(p_text, chr(31), ' / '), helix.key_text(f.key), null, f.state::text
     from named n
     cross join lateral (select x.name, x.key, x.state from helix.fence x
                         where x.key = helix.derive_fence_key(p_tenant, n.name, p_text) limit 1) f
     where n.name is not null and octet_length(p_text) <= 4096
     limit v_limit)
    union all
    (select 'fence', f.name::text || ' ' || coalesce(replace(f.identity::text, chr(31), ' / '), ''),
            helix.key_text(f.key), null, f.state::text
     from (select x.key, x.name, x.identity, x.state, x.tenant from helix.fence x
           where x.key >= p_from and x.key <= p_to order by x.key limit 1000) f
     where f.tenant = p_tenant limit v_limit)
    union all
    (select 'queue', q.name, q.name, q.name, null
     from helix.queue q where q.tenant = p_tenant and q.name = p_text)
    union all
    (select 'letter', l.id::text, l.id::text, l.queue::text, l.status
     from helix.dead_letter l where l.id = p_letter and l.tenant = p_tenant);
end
$$;
