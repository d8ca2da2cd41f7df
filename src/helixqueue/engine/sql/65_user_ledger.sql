-- User ledgers: append-only histories of a tenant's own entities (a dispatch, an order). The kind of an event is
-- the state that its entity reaches. A machine, declared once per ledger, lists the kinds and the arrows.
--
-- The identity of an event is (tenant, ledger, entity, seq, kind). There is no row per entity that appends would
-- lock and update: an append reads the last event, decides, and inserts the next version. Two concurrent appends
-- choose the same version; the unique index lets one in, and the other reads and decides again.

create domain helix.ledger_name as text check (value ~ '^[a-z0-9][a-z0-9_.-]{0,62}$');
-- The length is a condition of its own: with {0,62} in it, the regular expression makes a state per character.
create domain helix.event_kind as text
  check (octet_length(value) <= 63 and value ~ '^[A-Za-z][A-Za-z0-9_.-]*$');
create domain helix.event_seq as bigint check (value >= 1);

-- One ledger of a tenant.
create table helix.ledger (
  id         integer generated always as identity primary key,
  tenant     helix.tenant_name not null,
  name       helix.ledger_name not null,
  -- The kinds that may follow each kind: {"REQUESTED": ["CONFIRMED"], "CONFIRMED": []}. None: terminal.
  machine    jsonb not null,
  initial    text[] not null,         -- the kinds that may be an entity's first
  -- Strict: an event that violates the machine or is older than the last one is not written. Otherwise it is written
  -- with the rules that it violates.
  is_strict  boolean not null,
  -- An event whose seq does not follow the greatest one is not written, written with the rule `gap`, or written.
  gaps       text not null check (gaps in ('refuse', 'warn', 'allow')),
  bound      boolean not null,        -- the payload is part of an event's identity
  ignored    text[] not null,         -- JSON Pointers that do not count when payloads are compared
  created_at timestamptz not null default clock_timestamp(),
  created_by text not null,
  unique (tenant, name),
  check (jsonb_typeof(machine) = 'object')
);

create sequence helix.ledger_event_id;

-- The events, append-only for every role. Columns stand by width.
create table helix.ledger_event (
  id          bigint not null default nextval('helix.ledger_event_id'),
  seq         helix.event_seq not null,
  at          timestamptz not null,
  position    bigint not null,        -- of its transaction; see 25_position.sql
  -- The order in which feeds read: the position, or that of the event before if it is greater. A transaction may get
  -- its number early and append after others; by its own position alone, feeds would return the events of an entity
  -- in the wrong order. It is never below `position`, so below the oldest running transaction every event is visible.
  feed_position bigint not null,
  ledger      integer not null,
  version     integer not null,       -- number of the event within its entity, from 1
  secret      smallint not null,      -- of the fingerprint
  is_strict   boolean not null,       -- of a strict ledger that refuses gaps
  tenant      helix.tenant_name not null,
  entity      helix.identity_text not null,
  kind        helix.event_kind not null,
  bound       bytea not null,         -- SHA-256 of the payload where it is part of the identity, else empty
  key         helix.key not null,     -- v2: hash of the identity; v3: with the payload
  fingerprint helix.sha256 not null,  -- HMAC of the payload without the ignored fields
  hash        helix.sha256 not null,  -- over the hash of the version before and this event
  node        helix.short_text,       -- where the event was observed
  actor       text not null,
  violations  text[],                 -- the rules that it violates; null: none
  payload     helix.document not null,
  -- The identity.
  primary key (ledger, entity, seq, kind, bound),
  -- The identity again, as every consumer can derive it.
  unique (key),
  -- One successor per version: the chain of an entity does not fork. In a strict ledger without gaps seq and version are
  -- equal, so this also refuses another kind at the same seq.
  unique (ledger, entity, version),
  -- One condition: PostgreSQL reads each from the catalog's text again in every statement.
  check (not is_strict or version = seq and violations is null)
);
-- Feeds read the events of a ledger in this order. The cast keeps the index out of look-ups by entity: in a new
-- table, without statistics, the planner took it for as good as the primary key, and an append read every event.
create index ledger_event_feed on helix.ledger_event ((ledger::bigint), feed_position, id);
-- A seal reads the events of a range of transactions, which arrive nearly in that order.
create index ledger_event_position on helix.ledger_event using brin (position) with (autosummarize = on);

-- Append-only: the functions insert, and nothing changes or removes an event.
create function helix.guard_append_only() returns trigger
language plpgsql as $$
begin
  if tg_op operator(pg_catalog.=) 'INSERT'
     and current_user operator(pg_catalog.=) 'helix_engine'
     and session_user operator(pg_catalog.<>) 'helix_engine'
     and pg_catalog.current_setting('role') operator(pg_catalog.<>) 'helix_engine'
  then
    return null;
  end if;
  raise exception using errcode = 'QH003',
    message = pg_catalog.format('%s on %I.%I by %s: a ledger is append-only and written by append_v1',
                                tg_op, tg_table_schema, tg_table_name, current_user),
    hint = 'A correction is a new event.';
end
$$;

do $$
begin
  perform helix.protect_table('helix.ledger'::regclass, 'helix.guard'::regproc);
  perform helix.protect_table('helix.ledger_event'::regclass, 'helix.guard_append_only'::regproc);
end
$$;

-- The key of an event: version 2 over the framed identity; version 3 also over the payload's hash.
create function helix.event_key(
  p_tenant text, p_ledger text, p_entity text, p_seq bigint, p_kind text, p_bound bytea
) returns bytea language sql stable parallel safe as $$
  select case when p_bound = '' then E'\\x02'::bytea else E'\\x03'::bytea end
         || sha256(helix.framed(p_tenant) || helix.framed(p_ledger) || helix.framed_identity(p_entity)
                   || int8send(p_seq) || helix.framed(p_kind) || p_bound)
$$;

-- The hash of an event, with the payload in UTF-8. The key covers the identity; this byte encoding never changes.
create function helix.event_hash(
  p_before bytea, p_key bytea, p_version integer, p_at timestamptz, p_position bigint, p_feed_position bigint,
  p_fingerprint bytea, p_node text, p_actor text, p_violations text[], p_payload bytea
) returns bytea language sql stable parallel safe as $$
  select sha256(coalesce(p_before, ''::bytea) || p_key || int4send(p_version) || timestamptz_send(p_at)
                || int8send(p_position) || int8send(p_feed_position) || p_fingerprint
                || helix.framed(coalesce(p_node, '')) || helix.framed(p_actor)
                || helix.framed(coalesce(array_to_string(p_violations, ','), ''))
                || sha256(p_payload))
$$;

-- What is compared of a payload: the text itself or, with ignored fields, the rest as jsonb writes it.
create function helix.compared(p_payload text, p_ignored text[]) returns text
language plpgsql stable as $$
declare
  v_rest    jsonb;
  v_pointer text;
begin
  if p_ignored = '{}' then
    return p_payload;
  end if;
  v_rest := p_payload::jsonb;
  foreach v_pointer in array p_ignored loop
    if jsonb_typeof(v_rest) in ('object', 'array') then
      v_rest := v_rest #- (select array_agg(replace(replace(p.part, '~1', '/'), '~0', '~') order by p.place)
                           from unnest(string_to_array(substr(v_pointer, 2), '/')) with ordinality
                             as p (part, place));
    end if;
  end loop;
  return v_rest::text;
end
$$;

-- Declares a ledger. Declaring it again may add kinds and arrows; what was legal stays legal, and a terminal kind
-- stays terminal, because the events that exist were accepted by it.
create function helix.declare_ledger_v1(
  p_tenant text, p_ledger text, p_actor text, p_machine jsonb, p_initial text[], p_strict boolean,
  p_bound boolean, p_ignored text[], p_gaps text default null  -- null: refuse if strict, else warn
) returns helix.ledger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  v_actor  text := helix.actor_of(p_actor);
  v_gaps   text := coalesce(p_gaps, case when p_strict then 'refuse' else 'warn' end);
  v_ledger helix.ledger;
begin
  perform helix.enter_for(p_tenant);
  insert into helix.ledger (tenant, name, machine, initial, is_strict, gaps, bound, ignored, created_by)
  values (p_tenant, p_ledger, p_machine, p_initial, p_strict, v_gaps, p_bound, p_ignored, v_actor)
  on conflict do nothing
  returning * into v_ledger;
  if found then
    return v_ledger;
  end if;
  select * into v_ledger from helix.ledger l where l.tenant = p_tenant and l.name = p_ledger for update;
  if (v_ledger.is_strict, v_ledger.gaps, v_ledger.bound) <> (p_strict, v_gaps, p_bound) or v_ledger.ignored <> p_ignored
     or not (p_machine @> v_ledger.machine and p_initial @> v_ledger.initial)
     or exists (select from jsonb_each(v_ledger.machine) k
                where k.value = '[]' and p_machine -> k.key <> '[]')
  then
    raise exception using errcode = 'invalid_parameter_value',
      message = format('ledger %s is declared otherwise: strict=%s, gaps=%s, bind_payload=%s, ignore=%s, initial=%s, '
                       'machine=%s', p_ledger, v_ledger.is_strict, v_ledger.gaps, v_ledger.bound, v_ledger.ignored,
                       v_ledger.initial, v_ledger.machine),
      hint = 'A declaration may add kinds and arrows. For other rules declare a new ledger.';
  end if;
  if v_ledger.machine <> p_machine or not (v_ledger.initial @> p_initial) then
    update helix.ledger l set machine = p_machine, initial = p_initial
    where l.id = v_ledger.id returning * into v_ledger;
    insert into helix.decision (tenant, queue, kind, actor, detail)
    values (p_tenant, 'ledger/' || p_ledger, 'setting', v_actor,
            jsonb_build_object('machine', p_machine, 'initial', p_initial)::text);
  end if;
  return v_ledger;
end
$$;
