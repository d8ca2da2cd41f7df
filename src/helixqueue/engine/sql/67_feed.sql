-- Feeds: named cursors over a user ledger or over the steps of batches. The position of a feed commits in the
-- consumer's transaction together with the consumer's effect.
--
-- A feed reads in the order of transactions and stops before the oldest one that is still running: that one may
-- yet commit events that belong before later ones.

-- One feed. Its position is after (position, number, version): of a ledger's event feed_position, id and 0; of a batch's
-- step position, batch and version.
create table helix.feed (
  tenant     helix.tenant_name not null,
  name       helix.ledger_name not null,
  ledger     integer,                  -- null: the steps of batches
  queue      text,                     -- of batches: only those of this queue; null: of all queues
  position   bigint not null,
  number     bigint not null,
  version    integer not null,
  paused     boolean not null default false,
  delivered  bigint not null default 0,
  -- Only one process executes a program for a feed. This saves work; the fence of each event decides.
  holder     helix.short_text,
  held_until timestamptz,
  moved_at   timestamptz,
  request    uuid,                     -- the call of advance_feed_v1 that moved it last
  lost       bigint not null default 0,   -- up to which position it has reported what retention removed
  created_at timestamptz not null default clock_timestamp(),
  created_by text not null,
  primary key (tenant, name),
  check (ledger is null or queue is null)
) with (fillfactor = 50);

do $$
begin
  perform helix.protect_table('helix.feed'::regclass, 'helix.guard'::regproc);
end
$$;

-- What a feed returns: an event of a user ledger, or a step of a batch.
create type helix.feed_event as (
  position bigint, number bigint, version integer,   -- the position after it
  key text,            -- equal for equal events, for a fence around the effect
  entity text,         -- of a step: the batch's public id
  seq bigint,          -- of a step: its version
  kind text,           -- of a step: the state reached
  payload text,
  node text,
  actor text,
  at timestamptz,
  violations text[]
);

-- A step of a batch, as a feed reads it.
create type helix.feed_step as (
  batch bigint, version integer, position bigint, queue integer, from_state helix.state, to_state helix.state,
  reason helix.reason, actor text, attempt smallint, late boolean, at timestamptz
);

-- The events after a feed's position, oldest first; with p_bytes, until their payloads have more bytes than that.
create function helix.feed_events(p_feed helix.feed, p_limit integer, p_bytes bigint default null)
returns setof helix.feed_event
language plpgsql stable
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  v_reached bigint := helix.reached_position();
  v_event   helix.feed_event;
  v_bytes   bigint := 0;
begin
  if p_feed.ledger is null then
    return query select * from helix.feed_steps(p_feed, p_limit);
    return;
  end if;
  for v_event in
    select e.feed_position, e.id, 0, helix.key_text(e.key), e.entity::text, e.seq::bigint, e.kind::text,
           e.payload::text, e.node::text, e.actor, e.at, e.violations
    from helix.ledger_event e
    where e.ledger::bigint = p_feed.ledger and (e.feed_position, e.id) > (p_feed.position, p_feed.number)
      and e.feed_position < v_reached
    order by e.ledger::bigint, e.feed_position, e.id limit p_limit
  loop
    return next v_event;
    v_bytes := v_bytes + octet_length(v_event.payload);
    exit when v_bytes > p_bytes;
  end loop;
end
$$;

-- The steps of batches after a feed's position. A look covers a range of transactions, and ranges without a
-- step grow: a feed far behind must not sort everything since its position.
--
-- A step is placed at the smallest transaction of it and of the later steps of its batch. A transaction may get its
-- number early and settle a batch that others claimed since; by their own numbers alone, the feed would return that
-- end before the claim. The claim was committed before the end could be written, so it is visible there.
create function helix.feed_steps(p_feed helix.feed, p_limit integer) returns setof helix.feed_event
language plpgsql stable as $$
declare
  v_reached bigint := helix.reached_position();
  v_queues  integer[] := array(select q.id from helix.queue q where q.tenant = p_feed.tenant
                               and (p_feed.queue is null or q.name = p_feed.queue));
  v_span    bigint := 256;
  v_left    bigint := p_limit;
  v_rows    bigint;
  v_seen    helix.feed_step[];
begin
  while p_feed.position < v_reached and v_left > 0 loop
    v_seen := array(
      select (s.batch, s.version, s.position, s.queue, s.from_state, s.to_state, s.reason, s.actor, s.attempt, s.late,
              s.at)::helix.feed_step
      from (select e.id, e.part from helix.entry e
            where e.position >= p_feed.position and e.position < least(v_reached, p_feed.position + v_span) and e.queue && v_queues
            offset 0) n
      cross join lateral (select * from helix.event v where v.entry = n.id and v.part = n.part) s
      where s.queue = any (v_queues)
        and (s.position, s.batch, s.version) > (p_feed.position, p_feed.number, p_feed.version)
      order by s.position, s.batch, s.version limit v_left);
    return query
      with seen as materialized (select * from unnest(v_seen)),
      known as materialized (
        select distinct on (k.batch, k.version) k.*
        from (select h.batch, h.version, h.position, q.queue, h.from_state, h.to_state, h.reason, h.actor, h.attempt,
                     h.late, h.at
              from helix.history_of(array(select distinct s.batch from seen s)) h
              join (select distinct s.batch, s.queue from seen s) q on q.batch = h.batch
              union all
              select * from seen) k
        order by k.batch, k.version
      ),
      placed as (
        select k.*, min(k.position) over (partition by k.batch order by k.version desc) as place from known k
      )
      select p.place, p.batch, p.version, helix.public_id(b.key) || '/' || p.version,
             helix.public_id(b.key)::text, p.version::bigint, p.to_state::text,
             jsonb_build_object('queue', q.name, 'from', p.from_state, 'reason', p.reason,
                                'attempt', p.attempt, 'late', p.late)::text,
             null::text, p.actor, p.at, null::text[]
      from placed p
      cross join lateral (select b.key from helix.batch b where b.id = p.batch limit 1) b
      cross join lateral (select q.name from helix.queue q where q.id = p.queue limit 1) q
      where (p.place, p.batch, p.version) > (p_feed.position, p_feed.number, p_feed.version)
        and (p.place, p.batch, p.version)
            <= (select s.position, s.batch, s.version from seen s order by s.position desc, s.batch desc, s.version desc limit 1)
      order by p.place, p.batch, p.version;
    get diagnostics v_rows = row_count;
    v_left := v_left - v_rows;
    if cardinality(v_seen) = 0 then
      p_feed.position := p_feed.position + v_span;
      p_feed.number := 0;
      p_feed.version := 0;
      v_span := least(v_span * 4, 1::bigint << 60);
    else
      p_feed.position := v_seen[cardinality(v_seen)].position;
      p_feed.number := v_seen[cardinality(v_seen)].batch;
      p_feed.version := v_seen[cardinality(v_seen)].version;
    end if;
  end loop;
end
$$;

-- What a consumer gets: the events after the feed's position, and before them a gap, if retention has removed steps
-- that the feed had not delivered. A gap is reported once. Its key ends with the position up to which steps are lost.
create function helix.feed_page(p_feed helix.feed, p_limit integer, p_bytes bigint default null)
returns setof helix.feed_event
language plpgsql stable as $$
declare
  v_lost bigint;
begin
  if p_feed.ledger is null then
    select max(q.lost_position) into v_lost from helix.queue q
    where q.tenant = p_feed.tenant and (p_feed.queue is null or q.name = p_feed.queue)
      and (q.lost_position, q.lost_batch, q.lost_version) > (p_feed.position, p_feed.number, p_feed.version)
      and q.lost_position > p_feed.lost;
  end if;
  if v_lost is not null then
    return next (p_feed.position, p_feed.number, p_feed.version, 'gap/' || v_lost, '', 0, 'GAP',
                 '{"detail":"retention removed steps that this feed had not delivered",'
                 '"remedy":"the remaining steps follow; read the batches again if you keep a copy"}',
                 null, '', clock_timestamp(), null)::helix.feed_event;
    p_limit := p_limit - 1;
  end if;
  return query select * from helix.feed_events(p_feed, p_limit, p_bytes);
end
$$;

-- The greatest position up to which a page reports losses; 0: it reports none.
create function helix.reported_gap(p_events helix.feed_event[]) returns bigint
language sql immutable as $$
  select coalesce(max(substr(e.key, 5)::bigint), 0) from unnest(p_events) e where e.kind = 'GAP'
$$;

-- The number of events after a feed's position, at most 10,000, and the time of the oldest. Reads no payload.
create function helix.feed_lag(p_feed helix.feed, out lag bigint, out oldest_at timestamptz)
language plpgsql stable set enable_seqscan = off set jit = off as $$
declare
  v_reached bigint := helix.reached_position();
begin
  if p_feed.ledger is null then
    select count(*), min(s.at) into lag, oldest_at from helix.feed_steps(p_feed, 10000) s;
  else
    select count(*), min(e.at) into lag, oldest_at
    from (select n.at from helix.ledger_event n
          where n.ledger::bigint = p_feed.ledger and (n.feed_position, n.id) > (p_feed.position, p_feed.number)
            and n.feed_position < v_reached
          order by n.ledger::bigint, n.feed_position, n.id limit 10000) e;
  end if;
end
$$;

-- The feed of this name; a clear error if there is none.
create function helix.find_feed(p_tenant text, p_feed text) returns helix.feed
language plpgsql stable as $$
declare
  v_feed helix.feed;
begin
  select * into v_feed from helix.feed f where f.tenant = p_tenant and f.name = p_feed;
  if not found then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('tenant %s has no feed %s', p_tenant, p_feed),
      hint = 'Declare it with helix.feed(...) or list the feeds with `helixq feed list`.';
  end if;
  return v_feed;
end
$$;

-- Declares a feed over a ledger, or over the batches of one queue or of all. A new feed starts with the first
-- event or, with p_now, after the last one.
create function helix.declare_feed_v1(
  p_tenant text, p_feed text, p_actor text, p_ledger text, p_queue text, p_now boolean
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_feed   helix.feed;
  v_ledger integer;
begin
  perform helix.enter_for(p_tenant);
  v_ledger := (select l.id from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger);
  if p_ledger is not null and v_ledger is null then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('tenant %s has no ledger %s', p_tenant, p_ledger);
  end if;
  insert into helix.feed (tenant, name, ledger, queue, position, number, version, lost, created_by)
  values (p_tenant, p_feed, v_ledger, p_queue,
          -- Transactions that run now are not behind the new feed.
          case when p_now then helix.reached_position() else 0 end, 0, 0,
          -- A new feed starts with what retention has left.
          coalesce((select max(q.lost_position) from helix.queue q
                    where q.tenant = p_tenant and (p_queue is null or q.name = p_queue)), 0),
          helix.actor_of(p_actor))
  on conflict do nothing;
  v_feed := helix.find_feed(p_tenant, p_feed);
  if (v_feed.ledger, v_feed.queue) is distinct from (v_ledger, p_queue) then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('feed %s follows another ledger or queue', p_feed),
      hint = 'Choose another name: the position of a feed belongs to what it follows.';
  end if;
end
$$;

-- The next events, and the feed's position moved behind them, in the caller's transaction: both become
-- permanent with the caller's effect, or not at all. No row: there is no event, the feed is paused, or another
-- consumer has it now.
create function helix.take_feed_v1(p_tenant text, p_feed text, p_limit integer)
returns setof helix.feed_event
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_feed   helix.feed;
  v_events helix.feed_event[];
  v_last   helix.feed_event;
begin
  perform helix.enter_for(p_tenant);
  v_feed := helix.find_feed(p_tenant, p_feed);
  -- A lock takes a transaction number, which feeds of others would wait for; an idle consumer takes none.
  if v_feed.paused or not exists (select from helix.feed_page(v_feed, 1)) then
    return;
  end if;
  select * into v_feed from helix.feed f where f.tenant = p_tenant and f.name = p_feed
  for update skip locked;
  if not found then
    return;
  end if;
  v_events := array(select e from helix.feed_page(v_feed, least(p_limit, 10000), 16777216) e);
  if v_events = '{}' then
    return;
  end if;
  v_last := v_events[cardinality(v_events)];
  update helix.feed f
  set position = v_last.position, number = v_last.number, version = v_last.version, moved_at = clock_timestamp(),
      delivered = f.delivered + cardinality(v_events), lost = greatest(f.lost, helix.reported_gap(v_events))
  where f.tenant = p_tenant and f.name = p_feed;
  return query select * from unnest(v_events);
end
$$;

-- Moves the position behind p_count events whose effects are elsewhere, if it is still where they were read and
-- they are still the next ones. A repeat of the call that moved it, whose answer was lost, is true again. After a failover or a restore they may belong to a history that this database has
-- lost; events written since would stand before their end, and would be skipped.
create function helix.advance_feed_v1(
  p_tenant text, p_feed text, p_position bigint, p_number bigint, p_version integer, p_to_position bigint,
  p_to_number bigint, p_to_version integer, p_count integer, p_request uuid default null
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_feed   helix.feed;
  v_events helix.feed_event[];
  v_last   helix.feed_event;
begin
  perform helix.enter_for(p_tenant);
  select * into v_feed from helix.feed f
  where f.tenant = p_tenant and f.name = p_feed
  for update;
  if v_feed.request = p_request then
    return true;
  elsif v_feed.paused is not false
        or (v_feed.position, v_feed.number, v_feed.version) <> (p_position, p_number, p_version)
  then
    return false;
  end if;
  v_events := array(select e from helix.feed_page(v_feed, least(p_count, 10000)) e);
  v_last := v_events[cardinality(v_events)];
  if v_events = '{}'
     or (v_last.position, v_last.number, v_last.version) <> (p_to_position, p_to_number, p_to_version)
  then
    return false;
  end if;
  update helix.feed f
  set position = p_to_position, number = p_to_number, version = p_to_version, moved_at = clock_timestamp(),
      request = p_request,
      delivered = f.delivered + p_count, lost = greatest(f.lost, helix.reported_gap(v_events))
  where f.tenant = p_tenant and f.name = p_feed;
  return true;
end
$$;

-- Holds a feed for one process that executes a program, until p_seconds after the last call.
create function helix.hold_feed_v1(p_tenant text, p_feed text, p_holder text, p_seconds real)
returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform helix.enter_for(p_tenant);
  update helix.feed f
  set holder = p_holder, held_until = clock_timestamp() + make_interval(secs => p_seconds::helix.lease_seconds)
  where f.tenant = p_tenant and f.name = p_feed
    and (f.holder is null or f.holder = p_holder or f.held_until < clock_timestamp());
  return found;
end
$$;

-- An operator pauses a feed, resumes it, or rewinds it to the first event at or after a time (null: to the
-- first event of all). Consumers see the events after that again.
create function helix.set_feed_v1(
  p_tenant text, p_feed text, p_actor text, p_reason text, p_paused boolean default null,
  p_rewind boolean default false, p_since timestamptz default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_feed helix.feed;
  v_position bigint := 0;
begin
  perform helix.enter_for(p_tenant);
  v_feed := helix.find_feed(p_tenant, p_feed);
  if p_rewind and p_since is not null then
    -- The first transaction that recorded anything at or after that time; none: everything is older.
    if v_feed.ledger is null then
      select min(e.position) into v_position from helix.entry e where e.at >= p_since;
    else
      select min(e.feed_position) into v_position from helix.ledger_event e
      where e.ledger = v_feed.ledger and e.at >= p_since;
    end if;
    v_position := coalesce(v_position, helix.reached_position());
  end if;
  update helix.feed f
  set paused = coalesce(p_paused, f.paused),
      position = case when p_rewind then v_position else f.position end,
      number = case when p_rewind then 0 else f.number end,
      version = case when p_rewind then 0 else f.version end
  where f.tenant = p_tenant and f.name = p_feed;
  insert into helix.decision (tenant, queue, kind, actor, detail)
  values (p_tenant, 'feed/' || p_feed, 'setting', helix.actor_of(p_actor),
          jsonb_build_object('paused', p_paused, 'rewind', p_rewind, 'since', p_since,
                             'was', jsonb_build_array(v_feed.position, v_feed.number, v_feed.version),
                             'reason', p_reason)::text);
end
$$;
