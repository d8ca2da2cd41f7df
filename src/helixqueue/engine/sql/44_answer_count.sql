-- Answers that changed nothing: duplicates, conflicts, refused submissions, calls of a fence that executed nothing. A
-- client can repeat them without end, so equal answers of one minute are counted in one row, and the duty `answers`
-- makes one decision of them when the minute is over.

-- Rows of the present minute. No call waits here: equal answers of concurrent transactions have a row each, because a
-- row that another transaction holds is passed over. A caller's transaction may stay open for long.
create table helix.answer_count (
  -- The id of the decision that it becomes, so that a cursor of a reader stays right.
  id       bigint not null default nextval('helix.decision_id_seq'),
  subject  helix.sha256 not null,        -- of everything below that equal answers have in common
  minute   timestamptz not null,
  place    integer not null,             -- how much of the tenant's rate is used up with this row; 0: only counted
  tenant   helix.tenant_name not null,
  queue    text not null,                -- of a fence: its name
  kind     text not null,
  batch    bigint,
  life     bigint,                       -- of a fence; 0: of several
  actor    text not null,
  detail   helix.long_text,
  evidence bytea check (octet_length(evidence) <= 65536),
  at       timestamptz not null,
  last_at  timestamptz not null,
  times    integer not null
) with (fillfactor = 50);
create index answer_count_subject on helix.answer_count (subject, minute);
create index answer_count_place on helix.answer_count (tenant, minute, place);
-- For `batch show` and the history of a fence.
create index answer_count_batch on helix.answer_count (batch) where batch is not null;
create index answer_count_life on helix.answer_count (life) where life is not null;

do $$
begin
  perform helix.protect_table('helix.answer_count'::regclass, 'helix.guard'::regproc);
end
$$;

-- Different answers that a tenant may add per minute; each further KiB of their texts counts as another. What is above
-- is counted by queue and kind, without its texts.
create function helix.answer_rate() returns integer
language sql immutable as $$ select 600 $$;

-- What equal answers of a minute have in common.
create function helix.answer_subject(
  p_tenant text, p_queue text, p_actor text, p_kind text, p_batch bigint, p_detail text, p_life bigint, p_evidence bytea
) returns bytea
language sql stable as $$
  select sha256(convert_to(jsonb_build_array(p_tenant, p_queue, p_actor, p_kind, p_batch, p_detail, p_life,
                                             encode(sha256(p_evidence), 'hex'))::text, 'UTF8'))
$$;

-- Counts answers to one caller about one queue or fence. Arrays run in parallel.
-- Generic plans: PostgreSQL expects ten elements of an unknown array and one of this call's, finds its own plan for the
-- call cheaper each time, and would spend half of a repeated fence call on planning.
create function helix.count_answers(
  p_tenant text, p_queue text, p_actor text, p_kind text[], p_batch bigint[], p_detail text[],
  p_life bigint default null, p_evidence bytea default null, p_times bigint[] default null
) returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_nestloop = on set jit = off as $$
declare
  v_now     timestamptz := clock_timestamp();
  v_minute  timestamptz := date_bin('1 minute', v_now, 'epoch');
  v_bounded boolean := p_times is null;
  v_subject bytea[];
  v_first   integer[];
  v_times   bigint[];
  v_row     tid[];       -- the rows of these answers, as far as there are any
  v_held    integer;
  v_used    integer;
  v_over    integer[];
begin
  if cardinality(p_kind) = 1 then  -- the usual call, without a query
    v_subject := array[helix.answer_subject(p_tenant, p_queue, p_actor, p_kind[1], p_batch[1], p_detail[1], p_life,
                                            p_evidence)];
    v_first := '{1}';
    v_times := array[coalesce(p_times[1], 1)];
  else
    select array_agg(u.subject order by u.first), array_agg(u.first order by u.first), array_agg(u.times order by u.first)
    into v_subject, v_first, v_times
    from (select s.subject, min(s.place)::integer as first, sum(coalesce(p_times[s.place], 1)) as times
          from (select helix.answer_subject(p_tenant, p_queue, p_actor, p_kind[n.place], p_batch[n.place],
                                            p_detail[n.place], p_life, p_evidence) as subject, n.place
                from generate_subscripts(p_kind, 1) as n (place)) s
          group by s.subject) u;
  end if;
  -- With an older snapshot the lock fails instead: such a transaction adds rows.
  if current_setting('transaction_isolation') = 'read committed' then
    v_row := array(select (select r.ctid from helix.answer_count r
                           where r.subject = u.subject and r.minute = v_minute limit 1 for update skip locked)
                   from unnest(v_subject) with ordinality as u (subject, place) order by u.place);
    v_held := cardinality(array_remove(v_row, null));
    if v_held > 0 then
      update helix.answer_count r set times = r.times + u.times, last_at = v_now
      from unnest(v_row, v_times) as u (place, times) where r.ctid = u.place;
    end if;
    if v_held = cardinality(v_subject) then
      return;
    end if;
  end if;
  if v_bounded then
    v_used := (select r.place from helix.answer_count r where r.tenant = p_tenant and r.minute = v_minute
               order by r.place desc limit 1);
  end if;
  if v_used >= helix.answer_rate() then  -- as the insert below would find, at the cost of one look
    v_over := array(select u.first from unnest(v_first, v_row) as u (first, held) where u.held is null);
  else
    with added as materialized (
      select u.*, coalesce(v_used, 0) + sum(
               1 + (coalesce(octet_length(p_detail[u.first]), 0) + coalesce(octet_length(p_evidence), 0)) / 1024
             ) over (order by u.first) as place
      from unnest(v_subject, v_first, v_times, v_row) as u (subject, first, times, held) where u.held is null
    ),
    noted as (
      insert into helix.answer_count (subject, minute, place, tenant, queue, kind, batch, life, actor, detail, evidence,
                                      at, last_at, times)
      select a.subject, v_minute, case when v_bounded then a.place else 0 end, p_tenant, p_queue, p_kind[a.first],
             p_batch[a.first], p_life, p_actor, p_detail[a.first], p_evidence, v_now, v_now, a.times
      from added a where not v_bounded or a.place <= helix.answer_rate()
    )
    select array_agg(a.first) into v_over from added a where v_bounded and a.place > helix.answer_rate();
  end if;
  if v_over is not null then
    perform helix.count_answers(
      p_tenant, case when p_life is null then p_queue else 'other' end, '*', array_agg(o.kind), null,
      array_agg(o.detail), case when p_life is not null then 0 end, null, array_agg(o.times))
    from (select p_kind[u.first] as kind, sum(u.times)::bigint as times,
                 case when p_detail[u.first] like '{"why": %"raw_hex": "%'
                      then '{"why": "too many in this minute: only counted", "raw_hex": ""}'
                      else 'too many in this minute: only counted' end as detail
          from unnest(v_first, v_times) as u (first, times) where u.first = any (v_over) group by 1, 3) o;
  end if;
end
$$;

-- The duty: makes decisions of the counts of minutes that are over, or of some fences that are about to be deleted.
-- Counts of a transaction that is still open become a decision of their own later.
create function helix.fold_answers(p_limit integer, p_lives bigint[] default null) returns integer
language plpgsql
set enable_seqscan = off set enable_nestloop = on set jit = off as $$
declare
  v_minute timestamptz := date_bin('1 minute', clock_timestamp(), 'epoch');
  v_row    tid[];
begin
  if p_lives is null then
    v_row := array(select r.ctid from helix.answer_count r where r.minute < v_minute
                   limit p_limit for update skip locked);
  else
    v_row := array(select r.ctid from helix.answer_count r where r.life = any (p_lives) for update skip locked);
  end if;
  with gone as (
    delete from helix.answer_count r where r.ctid = any (v_row) returning r.*
  ),
  final as (
    select g.subject, g.minute, g.tenant, g.queue, g.kind, g.batch, g.life, g.actor, g.detail, g.evidence,
           min(g.id) as id, min(g.at) as at, max(g.last_at) as last_at, sum(g.times)::integer as times
    from gone g
    group by g.subject, g.minute, g.tenant, g.queue, g.kind, g.batch, g.life, g.actor, g.detail, g.evidence
  ),
  of_fences as (
    insert into helix.fence_decision (life, at, last_at, times, tenant, name, kind, actor, detail, evidence)
    select f.life, f.at, f.last_at, f.times, f.tenant, f.queue, f.kind::helix.fence_decision_kind, f.actor, f.detail,
           f.evidence
    from final f where f.life is not null order by f.id
  )
  insert into helix.decision (id, at, last_at, times, batch, kind, tenant, queue, actor, detail)
  overriding system value
  select f.id, f.at, f.last_at, f.times, f.batch, f.kind, f.tenant, f.queue, f.actor, f.detail
  from final f where f.life is null order by f.id;
  return cardinality(v_row);
end
$$;
