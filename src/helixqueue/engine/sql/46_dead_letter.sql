-- Dead letters: messages of an intake that could not become a batch, with their bytes and the reason. The
-- intake writes them in the transaction that decides about the message, and acknowledges it afterwards.

create table helix.dead_letter (
  id         bigint generated always as identity primary key,
  first_at   timestamptz not null,
  last_at    timestamptz not null,
  until      timestamptz,          -- retention empties it then; null: never
  closed_at  timestamptz,
  batch      bigint,               -- the batch that it conflicts with, or that a redrive made of it
  size       bigint not null check (size >= 0),   -- bytes of the whole message
  deliveries integer not null check (deliveries >= 1),
  complete   boolean not null,     -- the body is the whole message; only then it can be redriven
  tenant     helix.tenant_name not null,
  queue      helix.short_text,     -- as the message named it
  kind       helix.source_kind not null,
  name       helix.source_text not null,
  source     helix.source_text not null,  -- the id of the delivery
  digest     helix.sha256 not null,       -- SHA-256 of the whole message
  status     text not null default 'open' check (status in ('open', 'redriven', 'discarded', 'expired')),
  reason     text not null check (reason in (
    'encoding',   -- a field is not UTF-8
    'json',       -- the payload is not strict JSON
    'identity',   -- missing where the queue wants one, or refused by the profile
    'payload',    -- the payload does not match the schema of the queue
    'too_large',  -- larger than a batch may be
    'queue',      -- the queue does not exist or the intake may not submit to it
    'field',      -- an option such as revision or priority is invalid
    'conflict',   -- the identity has another payload
    'reused',     -- the source stood for other content before
    'refused',    -- the engine refused it, for instance because the queue is closed
    'failures',   -- it failed too often while the database answered
    'vanished')), -- the entry was deleted while it was pending: only its id is known
  detail     helix.long_text,
  actor      text not null,
  closed_by  text,
  closed_for helix.long_text,      -- the reason that the operator gave
  body       bytea check (octet_length(body) <= 16777216),
  hash       helix.sha256 not null,       -- over this row without its body, which the digest covers
  -- A redelivery has the same source and the same content: it adds to the count.
  unique (tenant, kind, name, source, digest)
);
-- As helix.row_hash, without the text of a large body.
create function helix.letter_hash(p_letter helix.dead_letter) returns bytea
language plpgsql stable
set extra_float_digits = 1 set timezone = 'UTC' set intervalstyle = 'postgres' set bytea_output = 'hex' as $$
begin
  p_letter.body := null;
  return helix.row_hash(to_jsonb(p_letter));
end
$$;
create function helix.hash_letter() returns trigger
language plpgsql as $$
begin
  new.hash := helix.letter_hash(new);
  return new;
end
$$;
create trigger hash_row before insert or update on helix.dead_letter
  for each row execute function helix.hash_letter();
-- Lists by tenant, newest first.
create index dead_letter_list on helix.dead_letter (tenant, id);
-- What operators did with them, newest first.
create index dead_letter_action on helix.dead_letter (tenant, closed_at, id) where status in ('redriven', 'discarded');
create index dead_letter_batch on helix.dead_letter (batch) where batch is not null;
create index dead_letter_until on helix.dead_letter (until) where body is not null and until is not null;

-- Entries that failed while they were processed alone. A count is committed before each try, so that an
-- entry that ends the process is counted as well; while the database is away nothing is.
create table helix.intake_failure (
  hash     helix.sha256 primary key,   -- see source_hash
  tenant   helix.tenant_name not null,
  tries    integer not null,
  last_at  timestamptz not null
);

-- What each intake process last reported; for display and metrics.
create table helix.intake (
  tenant      helix.tenant_name not null,
  stream      helix.source_text not null,
  consumer    helix.source_text not null,
  group_name  helix.source_text not null,
  started_at  timestamptz not null,
  seen_at     timestamptz not null,
  ended_at    timestamptz,                 -- it was stopped; null: it runs, froze or was killed
  problem     helix.long_text,             -- why it does not read now; null: it does
  figures     jsonb not null check (octet_length(figures::text) <= 65536),
  primary key (tenant, stream, group_name, consumer)
) with (fillfactor = 50);

do $$
begin
  perform helix.protect_table('helix.dead_letter'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.intake_failure'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.intake'::regclass, 'helix.guard'::regproc);
end
$$;

-- Writes dead letters of one source; returns the id of each, in order. A vanished entry whose source led to
-- a decision is no loss: it was processed and not yet acknowledged, so it gets no letter and id null.
create function helix.write_letters_v1(
  p_tenant text, p_actor text, p_kind text, p_name text, p_source text[], p_queue text[], p_reason text[],
  p_detail text[], p_body bytea[], p_size bigint[], p_digest bytea[], p_key bytea[],
  p_keep_seconds double precision default 0
) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform helix.enter_for(p_tenant);
  perform helix.demand_parallel(
    cardinality(p_source), helix.shape(p_source), helix.shape(p_queue), helix.shape(p_reason),
    helix.shape(p_detail), helix.shape(p_body), helix.shape(p_size), helix.shape(p_digest),
    helix.shape(p_key));
  return query
    with given as materialized (
      select u.*, octet_length(u.body) = u.size as complete,
             u.reason = 'vanished'
             and (exists (select from helix.source s
                          where s.hash = helix.source_hash(p_tenant, p_kind, p_name, u.source))
                  or exists (select from helix.dead_letter l
                             where l.tenant = p_tenant and l.kind = p_kind and l.name = p_name
                               and l.source = u.source)) as known
      from unnest(p_source, p_queue, p_reason, p_detail, p_body, p_size, p_digest, p_key)
           with ordinality as u (source, queue, reason, detail, body, size, digest, key, place)
    ),
    written as (
      insert into helix.dead_letter as l (first_at, last_at, until, batch, size, deliveries, complete,
                                          tenant, queue, kind, name, source, digest, reason, detail, actor,
                                          body)
      select distinct on (g.source, d.digest) v_now, v_now,
             case when p_keep_seconds > 0 then v_now + make_interval(secs => p_keep_seconds) end,
             (select b.id from helix.batch b where b.key = g.key), g.size, 1, coalesce(g.complete, false),
             p_tenant, g.queue, p_kind, p_name, g.source, d.digest, g.reason, g.detail,
             helix.actor_of(p_actor), g.body
      from given g
      -- The digest of a whole message is not left to the caller.
      cross join lateral (select case when g.complete then sha256(g.body) else g.digest end as digest) d
      where not g.known
      order by g.source, d.digest, g.place
      on conflict (tenant, kind, name, source, digest) do update
      set deliveries = l.deliveries + 1, last_at = v_now
      returning l.id, l.source
    )
    select (select max(w.id) from written w where w.source = g.source) from given g order by g.place;
end
$$;

-- Counts one more try of an entry that is processed alone; the intake commits it before the try.
create function helix.count_try_v1(p_tenant text, p_kind text, p_name text, p_source text) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_tries integer;
begin
  perform helix.enter_for(p_tenant);
  insert into helix.intake_failure as f (hash, tenant, tries, last_at)
  values (helix.source_hash(p_tenant, p_kind, p_name, p_source), p_tenant, 1, clock_timestamp())
  on conflict (hash) do update set tries = f.tries + 1, last_at = clock_timestamp()
  returning f.tries into v_tries;
  return v_tries;
end
$$;

-- Ends the count, in the transaction that decided about the entry.
create function helix.clear_tries_v1(p_tenant text, p_kind text, p_name text, p_source text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  delete from helix.intake_failure f
  where f.hash = helix.source_hash(p_tenant, p_kind, p_name, p_source);
end
$$;

-- Stores what an intake reports.
create function helix.report_stream_v1(
  p_tenant text, p_stream text, p_group text, p_consumer text, p_started_at timestamptz, p_problem text,
  p_figures jsonb, p_ended boolean default false
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  insert into helix.intake as i (tenant, stream, group_name, consumer, started_at, seen_at, ended_at, problem,
                                 figures)
  values (p_tenant, p_stream, p_group, p_consumer, p_started_at, clock_timestamp(),
          case when p_ended then clock_timestamp() end, p_problem, p_figures)
  on conflict (tenant, stream, group_name, consumer) do update
  set started_at = excluded.started_at, seen_at = excluded.seen_at, ended_at = excluded.ended_at,
      problem = excluded.problem, figures = excluded.figures;
end
$$;

-- Submits the message of an open letter, which the caller has parsed and perhaps corrected, and closes the
-- letter in the same transaction. The batch has the source of the letter; where that source stands for other
-- work, the id gets the beginning of the digest as a suffix.
create function helix.redrive_letter_v1(
  p_letter bigint, p_actor text, p_reason text, p_queue text, p_profile text, p_identity text,
  p_payload text, p_raw text, p_revision text, p_priority smallint
) returns setof helix.submitted
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_actor  text := helix.actor_of(p_actor);
  v_letter helix.dead_letter;
  v_answer helix.submitted;
begin
  perform helix.enter();
  select * into v_letter from helix.dead_letter l where l.id = p_letter for update;
  if not found or v_letter.status <> 'open' or not v_letter.complete then
    return query select 1, 'refused', null::helix.key, null::bytea, null::helix.state, null,
      case when v_letter.id is null then 'no such letter'
           when v_letter.status <> 'open' then format('the letter is %s', v_letter.status)
           else 'the letter has not the whole message' end, null::text[];
    return;
  end if;
  select * into v_answer from helix.submit_from_v1(
    v_letter.tenant, p_queue, v_actor, p_profile, array[v_letter.kind::text], array[v_letter.name::text],
    array[case when v_letter.reason = 'reused'
               then left(v_letter.source, 240) || '#' || encode(substr(v_letter.digest, 1, 6), 'hex')
               else v_letter.source end],
    array[p_identity], array[p_payload], array[p_raw], array[coalesce(p_revision, '')],
    array[coalesce(p_priority, 5::smallint)]);
  if v_answer.decision in ('new', 'duplicate') then
    update helix.dead_letter l
    set status = 'redriven', closed_at = clock_timestamp(), closed_by = v_actor, closed_for = p_reason,
        batch = (select b.id from helix.batch b where b.key = v_answer.key)
    where l.id = p_letter;
  end if;
  return next v_answer;
end
$$;

-- Discards open letters: the bytes are deleted, the record stays. One answer per id: ok | repeat | refused.
create function helix.discard_letters_v1(p_ids bigint[], p_actor text, p_reason text)
returns table (letter bigint, answer text)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
  v_done bigint[];
begin
  perform helix.enter();
  with done as (
    update helix.dead_letter l
    set status = 'discarded', closed_at = clock_timestamp(),
        closed_by = helix.actor_of(p_actor), closed_for = p_reason, body = null, complete = false
    where l.id = any (p_ids) and l.status = 'open' returning l.id
  )
  select array_agg(d.id) into v_done from done d;
  return query
    select u.id, case when u.id = any (v_done) then 'ok'
                      when exists (select from helix.dead_letter l
                                   where l.id = u.id and l.status = 'discarded') then 'repeat'
                      else 'refused' end
    from unnest(p_ids) with ordinality as u (id, place) order by u.place;
end
$$;

-- Erasure and retention of a batch reach the letters that carry its content or conflict with it.
create function helix.empty_letters(p_batch bigint[]) returns void
language plpgsql as $$
begin
  update helix.dead_letter l
  set body = null, complete = false, detail = null,
      status = case when l.status = 'open' then 'expired' else l.status end,
      closed_at = coalesce(l.closed_at, clock_timestamp())
  where l.batch = any (p_batch) and l.body is not null;
end
$$;

-- Retention of letters, as part of the duty 'retire'. The record stays, so that a redelivery is counted.
create function helix.expire_letters(p_limit integer) returns integer
language plpgsql as $$
declare
  v_now  timestamptz := clock_timestamp();
  v_gone integer;
begin
  update helix.dead_letter l
  set body = null, complete = false, detail = null,
      status = case when l.status = 'open' then 'expired' else l.status end,
      closed_at = coalesce(l.closed_at, v_now)
  where l.id = any (array(select o.id from helix.dead_letter o
                          where o.until < v_now and o.body is not null
                          order by o.until limit p_limit for update skip locked));
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;

-- Deletes reports of intakes that ended long ago, as part of the duty 'sweep'.
create function helix.delete_old_intakes(p_limit integer) returns integer
language plpgsql as $$
declare
  v_gone integer;
begin
  delete from helix.intake i
  where (i.tenant, i.stream, i.group_name, i.consumer) in (
    select o.tenant, o.stream, o.group_name, o.consumer from helix.intake o
    where o.seen_at < statement_timestamp() - interval '30 days' limit p_limit for update skip locked);
  get diagnostics v_gone = row_count;
  return v_gone;
end
$$;
