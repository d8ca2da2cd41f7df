-- Sources: the deliveries that asked for a batch, such as a stream entry or a webhook event. A submission
-- with a source takes the path below; one without does not read this file's table.

create domain helix.source_kind as text check (value ~ '^[a-z][a-z0-9-]{0,30}$');
create domain helix.source_text as text check (octet_length(value) between 1 and 255);

-- One row per source for ever: a source that was seen is recognised after any retention. Retention of its
-- batch empties the texts and leaves the hash.
create table helix.source (
  hash     helix.sha256 primary key,   -- see source_hash
  first_at timestamptz not null,
  last_at  timestamptz not null,
  batch    bigint,                     -- null: refused; of a conflict: the batch that has the identity
  queue    integer not null,
  times    integer not null,           -- number of deliveries
  decision text not null check (decision in ('new', 'duplicate', 'conflict', 'refused')),
  kind     helix.source_kind,
  name     helix.source_text,
  id       helix.source_text,
  actor    text
) with (fillfactor = 90);
-- The deliveries of one batch, for `batch show` and retention.
create index source_batch on helix.source (batch, first_at) where batch is not null;

do $$
begin
  perform helix.protect_table('helix.source'::regclass, 'helix.guard'::regproc);
end
$$;

-- The hash of a source, which outlives its texts.
create function helix.source_hash(p_tenant text, p_kind text, p_name text, p_id text)
returns bytea language sql stable parallel safe as $$
  select sha256(helix.framed(p_tenant) || helix.framed(p_kind) || helix.framed(p_name)
                || helix.framed(p_id))
$$;

-- The key of work without identity that has a source, so that its redelivery is recognised. An identity is
-- framed as a number of parts above zero, so no identity can have this key.
create function helix.source_key(p_scope bytea, p_kind text, p_name text, p_id text)
returns bytea language sql stable parallel safe as $$
  select E'\\x01'::bytea || sha256(p_scope || E'\\x00000000'::bytea || helix.framed(p_kind)
                                 || helix.framed(p_name) || helix.framed(p_id))
$$;

-- Submissions with sources; an element whose kind is null has none. Answers are those of submit_v1, and:
--   * A source that stood for other work before is refused, and `differs` says {source}: its id was used
--     again, for instance by a Redis that was restored from an old copy.
--   * A new source of a FAILED batch reopens it where the queue says so.
-- Sources are locked after keys, in the order of their hashes, as in every other call.
create function helix.submit_from_v1(
  p_tenant text, p_queue text, p_actor text, p_profile text, p_kind text[], p_name text[], p_id text[],
  p_identity text[], p_payload text[], p_raw text[] default null, p_revision text[] default null,
  p_priority smallint[] default null, p_run_at timestamptz[] default null,
  p_expires_at timestamptz[] default null, p_limit_key text[] default null,
  p_requires text[] default null
) returns setof helix.submitted
language plpgsql security definer set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan as $$
declare
  v_tenants text[] := helix.enter_for(p_tenant);
  v_actor   text := helix.actor_of(p_actor);
  v_scope   bytea := helix.framed(p_tenant) || helix.framed(p_queue);
  v_queue   helix.queue;
  v_hash    bytea[];     -- by place; null without a source
  v_key     bytea[];     -- by place; null where submit_many makes a key of its own
  v_reused  integer[];   -- places whose source stands for other work
  v_answers helix.submitted[];
  v_again   bytea[];     -- keys of FAILED batches that a new source asks for
begin
  perform helix.demand_parallel(
    cardinality(p_payload), helix.shape(p_kind), helix.shape(p_name), helix.shape(p_id),
    helix.shape(p_identity), helix.shape(p_payload), helix.shape(p_raw), helix.shape(p_revision),
    helix.shape(p_priority), helix.shape(p_run_at), helix.shape(p_expires_at), helix.shape(p_limit_key),
    helix.shape(p_requires));
  select w.p_identity, w.p_raw into p_identity, p_raw
  from helix.without_placeholders(p_tenant, p_queue, p_identity, p_raw) w;
  select * into v_queue from helix.queue q where q.tenant = p_tenant and q.name = p_queue;
  v_hash := array(
    select case when u.kind is not null then helix.source_hash(p_tenant, u.kind, u.name, u.id) end
    from unnest(p_kind, p_name, p_id) with ordinality as u (kind, name, id, place) order by u.place);
  v_key := array(
    select case when u.identity is not null
                then helix.key_within(v_scope, u.identity, coalesce(u.revision, ''))
                -- A repeat is answered although the queue refuses such work by now.
                when v_queue.unknown = 'accept' or exists (select from helix.batch b where b.key = u.own)
                then u.own end
    from (select g.*, case when g.identity is null and g.kind <> 'http'
                           then helix.source_key(v_scope, g.kind, g.name, g.id) end as own
          from unnest(p_identity, p_revision, p_kind, p_name, p_id)
               with ordinality as g (identity, revision, kind, name, id, place) offset 0) u
    order by u.place);
  v_reused := helix.reused_sources(v_hash, v_key, p_kind);
  v_answers := array(
    select s from helix.submit_many(
      p_tenant, p_queue, v_actor, p_profile, p_identity, p_payload, p_raw, p_revision, p_priority,
      p_run_at, p_expires_at, p_limit_key, p_requires, v_key, v_reused) s);
  if nullif(current_setting('helix.fence', true), '') is not null then
    perform helix.link_submitted(v_answers);
  end if;
  if v_queue.id is not null then
    v_again := helix.record_sources(v_queue, v_actor, v_hash, p_kind, p_name, p_id, v_answers, v_reused);
  end if;
  return query
    select a.place, a.decision, a.key, a.fingerprint,
           case when a.key = any (v_again) then 'PENDING' else a.state end::helix.state, a.payload, a.note,
           case when a.place = any (v_reused) then '{source}'::text[] else a.differs end
    from unnest(v_answers) a;
end
$$;

-- Places whose source led to another batch than this submission's, or stands for two in this call. A source
-- that was refused or in conflict stands for nothing yet. Request keys of HTTP (kind http) may be used again
-- after their time, so they only name a delivery.
create function helix.reused_sources(p_hash bytea[], p_key bytea[], p_kind text[]) returns integer[]
language plpgsql
set enable_seqscan = off set enable_mergejoin = off set enable_hashjoin = off set jit = off as $$
begin
  return array(
    select u.place::integer
    from (select g.key, g.place, first_value(g.key) over (partition by g.hash order by g.place) as first_key,
                 -- Two look-ups, in this order: a join may begin with the table of batches.
                 (select b.key from helix.batch b
                  where b.id = (select s.batch from helix.source s
                                where s.hash = g.hash and s.decision in ('new', 'duplicate'))) as known_key
          from unnest(p_hash, p_key, p_kind) with ordinality as g (hash, key, kind, place)
          where g.hash is not null and g.kind <> 'http') u
    where coalesce(u.known_key, u.first_key) <> u.key
       or u.known_key is not null and u.key is null);
end
$$;

-- Records the sources of one call and reopens FAILED batches of new sources where the queue says so;
-- returns the keys of those.
create function helix.record_sources(
  p_queue helix.queue, p_actor text, p_hash bytea[], p_kind text[], p_name text[], p_id text[],
  p_answers helix.submitted[], p_reused integer[]
) returns bytea[]
language plpgsql
set enable_seqscan = off set enable_nestloop = on set jit = off as $$
declare
  v_now   timestamptz := clock_timestamp();
  v_other text;
  v_asked bigint[];
  v_again bigint[];
begin
  with asked as materialized (
    select distinct on (a.hash) a.hash, a.place, a.decision, b.id as batch,
           count(*) over (partition by a.hash) as times
    from (select p_hash[s.place] as hash, s.place, s.decision, s.key
          from unnest(p_answers) s where p_hash[s.place] is not null offset 0) a
    left join lateral (select b.id from helix.batch b where b.key = a.key limit 1) b on true
    order by a.hash, a.place
  ),
  noted as (
    insert into helix.source as s (hash, first_at, last_at, batch, queue, times, decision, kind, name, id,
                                   actor)
    select a.hash, v_now, v_now, a.batch, p_queue.id, a.times, a.decision, p_kind[a.place],
           p_name[a.place], p_id[a.place], p_actor
    from asked a order by a.hash
    on conflict (hash) do update
    set last_at = excluded.last_at, times = s.times + excluded.times,
        batch = case when s.decision in ('new', 'duplicate') then s.batch else excluded.batch end,
        decision = case when s.decision in ('new', 'duplicate') then s.decision
                        else excluded.decision end
    returning s.hash, s.batch, s.xmax = 0 as is_new
  )
  select min(p_id[a.place]) filter (where n.batch <> a.batch and a.place <> all (p_reused)
                                         and a.decision in ('new', 'duplicate')
                                         and p_kind[a.place] <> 'http'),
         array_agg(a.batch) filter (where n.is_new and a.decision = 'duplicate')
  into v_other, v_asked
  from asked a join noted n on n.hash = a.hash;
  if v_other is not null then
    -- Another call recorded this source for other work after this call had looked.
    raise exception using errcode = 'serialization_failure',
      message = format('source %s was recorded for another submission at the same time', v_other);
  end if;
  if p_queue.resubmit_failed <> 'retry' or v_asked is null then
    return '{}';
  end if;
  v_again := array(select w.batch from helix.work w where w.batch = any (v_asked) and w.state = 'FAILED'
                   order by w.batch for update);
  v_again := array(select w.batch from helix.work w join helix.batch b on b.id = w.batch
                   where w.batch = any (v_again) and w.state = 'FAILED' and b.payload is not null);
  perform helix.reopen(v_again, p_actor, 'a new source asked for it');
  return array(select b.key::bytea from helix.batch b where b.id = any (v_again));
end
$$;
