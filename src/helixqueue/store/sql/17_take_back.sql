-- An operator's release: a lease ends though its worker did not say so, as when a node is known to be
-- gone and nobody wants to wait for the deadline.

-- ASSIGNED and RUNNING > PENDING, at no cost of an attempt. The worker's token dies with the lease: if
-- it is alive after all, its next write is refused and kept.
create function helix.take_back_v1(p_ids uuid[], p_actor text, p_detail text)
returns setof helix.verdict
language plpgsql security definer set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off as $$
declare
  v_actor text := coalesce(p_actor, session_user);
  v_done  bigint[];
begin
  perform helix.enter();
  v_done := array(select a.batch from helix.active a
                  where a.batch in (select l.batch from helix.locate(p_ids) l)
                  order by a.batch for update);
  perform helix.vacate(v_done, 'released', v_actor, null,
                       array_fill(p_detail, array[cardinality(v_done)]));
  return query
    select asked.id,
           case when l.batch is null then 'refused'
                when l.batch = any (v_done) then 'ok'
                when d.state = 'PENDING' and d.reason = 'released' and d.actor = v_actor then 'repeat'
                else 'illegal' end,
           helix.state_of(l.batch),
           case when l.batch is null then 'no such batch' end
    from unnest(p_ids) as asked (id)
    left join helix.locate(p_ids) l on l.public_id = asked.id
    left join lateral (select e.to_state as state, e.reason, e.actor from helix.event e
                       where e.batch = l.batch order by e.version desc limit 1) d on true;
end
$$;
