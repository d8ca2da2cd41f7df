-- Seals: what the ledger said, kept outside of the database and signed (operate/seal.py). A seal has digests of
-- the records of all transactions that were over when it was made, in pages. It takes no lock and reads only
-- what came after the seal before it. A superuser can rewrite every row and recompute every hash in here, but
-- not a file elsewhere.

-- One page of up to 1,000 records, in the order of their keys.
create type helix.seal_page as (
  kind   text,     -- what the records are
  first  text,     -- keys of the first and of the last record
  last   text,
  rows   integer,
  digest bytea,    -- SHA-256 of the digests of the records
  marks  bytea,    -- the first bytes of each of these, by which the first record that differs is found
  asked  bytea     -- entries: SHA-256 of what the submitted batches asked; null: none, or archived
);

-- What was asked, without the columns that erasing and retention empty; key, fingerprint and limit_print cover those.
create function helix.asked_bytes(p_batch helix.batch) returns bytea
language sql stable parallel safe as $$
  select p_batch.key || p_batch.fingerprint || timestamptz_send(p_batch.created_at)
         || convert_to(concat_ws('>', p_batch.id, p_batch.queue, p_batch.class, p_batch.secret, p_batch.priority,
              coalesce(p_batch.run::text, ''), coalesce(extract(epoch from p_batch.run_at)::text, ''),
              coalesce(extract(epoch from p_batch.expires_at)::text, ''),
              coalesce(encode(p_batch.limit_print, 'hex'), ''), octet_length(p_batch.actor), p_batch.actor), 'UTF8')
$$;

-- The position up to which a seal can be made now: every transaction below it is over.
create function helix.seal_position_v1()
returns table (reached bigint, timeline text, database_created timestamptz, entry bigint, batches bigint)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  perform helix.demand_every_tenant();
  return query
    select helix.reached_position(), e.timeline,
           (select min(f.started_at) from helix.epoch f),
           (select max(x.id) from helix.entry x), (select n.last_value from helix.batch_id n)
    from helix.epoch e order by e.number desc limit 1;
end
$$;

-- For logins that act for all tenants, also one per transaction, like run_duty_v1: they learn digests and counts.
create function helix.demand_every_tenant() returns void
language plpgsql as $$
begin
  if not pg_has_role(session_user, 'helix_operator', 'usage')
     and not exists (select from helix.role_tenant b where b.role = session_user and b.tenant = '*')
  then
    raise exception using errcode = 'insufficient_privilege',
      message = format('expected a role that acts for all tenants, got %s: a seal covers all tenants',
                       session_user),
      hint = 'An operator binds it with helix.bind_v1(role, ''*'', true).';
  end if;
  perform set_config('helix.scope', '*', true);
end
$$;

-- The pages of the records of the transactions from p_from to before p_to. Records that retention deletes
-- ('answer', 'refusal', 'fence', 'call') have longer marks: those that are left are compared one by one.
create function helix.seal_pages_v1(p_from bigint, p_to bigint) returns setof helix.seal_page
language plpgsql security definer set search_path = pg_catalog, pg_temp
set work_mem = '64MB' set jit = off
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
begin
  perform helix.enter();
  perform helix.demand_every_tenant();
  return query
    select 'entry', min(e.id)::text, max(e.id)::text, count(*)::integer,
           sha256(string_agg(e.digest, ''::bytea order by e.place)),
           string_agg(substr(e.digest, 1, 1), ''::bytea order by e.place),
           case when not bool_or(e.archived) then sha256(string_agg(e.asked, ''::bytea order by e.place)) end
    from (select x.id, row_number() over (order by x.id, x.part) - 1 as place,
                 x.from_state is null and x.batch is null as archived,
                 -- The header, which archiving keeps, and the hash, which covers the arrays.
                 sha256(x.hash || timestamptz_send(x.at) || convert_to(concat_ws('>',
                   x.id, x.part, x.position, coalesce(x.epoch::text, ''), coalesce(x.from_state::text, ''), x.to_state,
                   x.reason, x.late, x.actor), 'UTF8')) as digest,
                 case when x.from_state is null then (
                   select sha256(string_agg(helix.asked_bytes(b), ''::bytea order by b.id))
                   from helix.batch b where b.id = any (x.batch)) end as asked
          from helix.entry x where x.position >= p_from and x.position < p_to) e
    group by e.place / 1000 order by e.place / 1000;
  return query
    -- Of the keys, only the number: they may contain names of workers.
    select r.kind, min(split_part(r.key, ' ', 1)), max(split_part(r.key, ' ', 1)), count(*)::integer,
           sha256(string_agg(r.digest, ''::bytea order by r.place)),
           string_agg(substr(r.digest, 1, case when r.kind in ('decision', 'event') then 1 else 8 end), ''::bytea
                      order by r.place), null::bytea
    from (select u.*, row_number() over (partition by u.kind order by u.key collate "C") - 1 as place
          from (select case when d.kind in ('duplicate', 'conflict', 'refused') then 'answer'
                            else 'decision' end as kind,
                       lpad(d.id::text, 20, '0') as key, d.hash::bytea as digest
                from helix.decision d where d.position >= p_from and d.position < p_to
                union all
                -- Its hash does not cover these columns.
                select 'event', lpad(l.id::text, 20, '0'),
                       sha256(l.hash || int8send(l.id) || int2send(l.secret) || boolsend(l.is_strict))
                from helix.ledger_event l where l.position >= p_from and l.position < p_to
                union all
                -- Without the columns that a repeated refusal changes.
                select 'refusal', concat_ws(' ', lpad(f.batch::text, 20, '0'), f.number, f.epoch, f.operation, f.worker),
                       helix.row_hash(to_jsonb(f) - '{times,last_at}'::text[])
                from helix.refusal f where f.position >= p_from and f.position < p_to
                union all
                select 'fence', lpad(v.life::text, 20, '0') || ' ' || lpad(v.version::text, 10, '0'), v.hash::bytea
                from helix.fence_event v where v.position >= p_from and v.position < p_to
                union all
                select 'call', lpad(c.life::text, 20, '0') || ' ' || lpad(c.id::text, 20, '0'), c.hash::bytea
                from helix.fence_decision c where c.position >= p_from and c.position < p_to) u) r
    group by r.kind, r.place / 1000 order by r.kind, r.place / 1000;
end
$$;

-- The record at a place (from 0) of a range of transactions, for the report of a record that differs. Shows
-- names of all tenants, so only operators may call it (99_grants.sql).
create function helix.seal_witness_v1(p_kind text, p_from bigint, p_to bigint, p_place bigint) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp
set jit = off set timezone = 'UTC' as $$
begin
  perform helix.enter();
  perform helix.demand_every_tenant();
  return case p_kind
    when 'entry' then (
      select jsonb_build_object('entry', e.id, 'part', e.part, 'at', e.at, 'reason', e.reason, 'actor', e.actor,
                                'batch', e.batch[1], 'batches', cardinality(e.batch))
      from helix.entry e where e.position >= p_from and e.position < p_to order by e.id, e.part offset p_place limit 1)
    when 'decision' then (
      select jsonb_build_object('decision', d.id, 'at', d.at, 'kind', d.kind, 'batch', d.batch, 'actor', d.actor)
      from helix.decision d
      where d.position >= p_from and d.position < p_to and d.kind not in ('duplicate', 'conflict', 'refused')
      order by d.id offset p_place limit 1)
    when 'event' then (
      select jsonb_build_object('event', l.id, 'at', l.at, 'ledger', l.ledger, 'version', l.version,
                                'actor', l.actor)
      from helix.ledger_event l where l.position >= p_from and l.position < p_to order by l.id offset p_place limit 1)
    when 'answer' then (
      select jsonb_build_object('decision', d.id, 'at', d.at, 'kind', d.kind, 'batch', d.batch, 'actor', d.actor)
      from helix.decision d
      where d.position >= p_from and d.position < p_to and d.kind in ('duplicate', 'conflict', 'refused')
      order by d.id offset p_place limit 1)
    when 'refusal' then (
      select jsonb_build_object('batch', f.batch, 'worker', f.worker, 'number', f.number, 'first_at', f.first_at)
      from helix.refusal f where f.position >= p_from and f.position < p_to
      order by concat_ws(' ', lpad(f.batch::text, 20, '0'), f.number, f.epoch, f.operation, f.worker) collate "C"
      offset p_place limit 1)
    when 'fence' then (
      select jsonb_build_object('life', v.life, 'version', v.version, 'to_state', v.to_state, 'actor', v.actor)
      from helix.fence_event v where v.position >= p_from and v.position < p_to
      order by v.life, v.version offset p_place limit 1)
    when 'call' then (
      select jsonb_build_object('life', c.life, 'decision', c.id, 'kind', c.kind, 'actor', c.actor)
      from helix.fence_decision c where c.position >= p_from and c.position < p_to
      order by c.life, c.id offset p_place limit 1)
  end;
end
$$;

-- The seals that services made, in one series: the next one continues the last, whichever replica and caller makes it.
-- Copies for callers that keep them elsewhere; their signatures say whether they were edited here.
create table helix.seal (
  number      bigint primary key,
  at          timestamptz not null default clock_timestamp(),
  actor       text not null,      -- the token or process that asked for it
  digest      helix.sha256 not null,  -- of the document, by which the next one names it
  to_position bigint not null,
  document    json not null
);
do $$
begin
  perform helix.protect_table('helix.seal'::regclass, 'helix.guard'::regproc);
end
$$;

-- The seals before a number, newest first; their documents with p_documents.
create function helix.seals_v1(
  p_before bigint default 9223372036854775807, p_limit integer default 50, p_documents boolean default false
) returns table (number bigint, at timestamptz, actor text, digest bytea, to_position bigint, document text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  perform helix.enter();
  perform helix.demand_every_tenant();
  return query
    select s.number, s.at, s.actor, s.digest::bytea, s.to_position, case when p_documents then s.document::text end
    from helix.seal s where s.number < p_before order by s.number desc limit least(p_limit, 1001);
end
$$;

-- Keeps the next seal. Of two that continue the same one, the first counts.
create function helix.add_seal_v1(
  p_number bigint, p_actor text, p_digest bytea, p_to_position bigint, p_document text
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter();
  perform helix.demand_every_tenant();
  if p_number <> (select coalesce(max(s.number), 0) + 1 from helix.seal s) then
    raise exception using errcode = 'serialization_failure',
      message = format('seal %s was made by another call', p_number), hint = 'Seal again.';
  end if;
  insert into helix.seal (number, actor, digest, to_position, document)
  values (p_number, helix.actor_of(p_actor), p_digest, p_to_position, p_document::json);
exception when unique_violation then
  raise exception using errcode = 'serialization_failure',
    message = format('seal %s was made by another call', p_number), hint = 'Seal again.';
end
$$;
