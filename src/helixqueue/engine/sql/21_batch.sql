-- Batches: what was submitted. Their state is in 22_work.sql.

create sequence helix.batch_id;

-- One row per batch, never deleted. The unique key alone decides G1: any number of submissions of one
-- identity conflict here, also after retention, which empties the row and leaves it as a tombstone.
-- Columns that are never null stand first, by their width because PostgreSQL aligns each, and those that only
-- retention sets last: a column is read faster while no null stands before it.
create table helix.batch (
  id          bigint primary key,  -- internal; the public id is derived from the key
  created_at  timestamptz not null,
  queue       integer not null,
  class       integer not null,
  secret      smallint not null,   -- which secret made the fingerprint
  priority    helix.priority not null,
  key         helix.key not null,
  fingerprint helix.sha256 not null,  -- HMAC-SHA256 of the payload's canonical text
  actor       text not null,
  revision    helix.revision_text not null default '',
  identity    helix.identity_text, -- null: submitted without one, or retired
  payload     helix.document,      -- RFC 8785 text; null: erased or retired
  raw         text,                -- as submitted, where that differs from the canonical form
  limit_key   helix.limit_key,
  limit_print bytea,               -- HMAC-SHA256 of limit_key, made as the fingerprint; it outlives limit_key
  run         bigint,
  run_at      helix.moment,
  expires_at  helix.moment,
  -- The tombstone, written by retention when it deletes the row of helix.work; null before.
  retired_at  timestamptz,
  ended_at    timestamptz,
  entry       bigint,              -- ledger entry of the last step
  version     integer,
  state       helix.state,
  attempt     smallint,
  tombstone   helix.sha256         -- over the tombstone's columns, see tombstone_hash
);
create unique index batch_key on helix.batch (key);
-- The list of batches of a queue, newest first. New batches go to its right edge, so it is cheap. Tombstones
-- are not in it: a list would have to step over all that ever were.
create index batch_arrival on helix.batch (queue, created_at, id) where retired_at is null;
-- All revisions of one identity. The key finds work without a revision, so only the few batches that
-- have one are in this index: an index over all identities cost a bulk submit a tenth of its speed.
create index batch_revision on helix.batch (queue, identity, created_at, id) where revision <> '';
-- The batches of a run, in the order of lists.
create index batch_run on helix.batch (queue, run, created_at, id)
  where run is not null and retired_at is null;
-- Keeps a retired batch from beginning again (31_record.sql).
create index batch_tombstone on helix.batch (id) where retired_at is not null;
-- Finds whether retention removed batches that ended after the cursor of a reader of changes.
create index batch_retired on helix.batch (queue, ended_at) where retired_at is not null;

-- The text form of a key: v1:<hex>.
create function helix.key_text(p_key bytea) returns text
language sql immutable strict parallel safe as $$
  select 'v' || get_byte(p_key, 0) || ':' || encode(substr(p_key, 2), 'hex');
$$;

-- The public id is a view of the key, a version 8 UUID of its first 16 bytes: it survives
-- failovers and moves, and needs no index of its own (see locate).
create function helix.public_id(p_key bytea) returns uuid
language sql immutable strict parallel safe as $$
  select encode(set_byte(set_byte(substr(p_key, 2, 16),
                                  6, get_byte(p_key, 7) & 15 | 128),
                         8, get_byte(p_key, 9) & 63 | 128), 'hex')::uuid;
$$;

-- The next three are written so that PostgreSQL inlines them (one expression, no sub-select, not
-- more constant than convert_to, which is STABLE): called as functions they cost 90 us a batch.

-- Text with its 4-byte big-endian length in front: no two lists of texts encode to the same bytes.
create function helix.framed(p_text text) returns bytea
language sql stable parallel safe as $$
  select int4send(octet_length(p_text)) || convert_to(p_text, 'UTF8')
$$;

-- Several parts are rare enough to be worth a real call.
create function helix.framed_parts(p_parts text[]) returns bytea
language sql stable parallel safe as $$
  select int4send(cardinality(p_parts))
         || string_agg(int4send(octet_length(part)) || convert_to(part, 'UTF8'), ''::bytea
                       order by place)
  from unnest(p_parts) with ordinality as parts (part, place)
$$;

-- The identity's parts, each framed, after their number.
create function helix.framed_identity(p_identity text) returns bytea
language sql stable parallel safe as $$
  select case when strpos(p_identity, E'\x1f') = 0
              then E'\\x00000001'::bytea || int4send(octet_length(p_identity))
                   || convert_to(p_identity, 'UTF8')
              else helix.framed_parts(string_to_array(p_identity, E'\x1f')) end
$$;

-- A key, where tenant and queue have been framed already: once for a thousand rows.
create function helix.key_within(p_scope bytea, p_identity text, p_revision text)
returns bytea language sql stable parallel safe as $$
  select E'\\x01'::bytea
         || sha256(p_scope || helix.framed_identity(p_identity) || helix.framed(p_revision))
$$;

-- The key of G1, made by the database itself, so that no client in any language can get it wrong.
create function helix.derive_key(p_tenant text, p_queue text, p_identity text, p_revision text)
returns bytea language sql stable parallel safe as $$
  select helix.key_within(helix.framed(p_tenant) || helix.framed(p_queue), p_identity, p_revision)
$$;

-- HMAC-SHA256 written out (RFC 2104).
create function helix.fingerprint(p_secret helix.secret, p_text text) returns bytea
language sql stable parallel safe as $$
  select sha256(p_secret.outer_pad || sha256(p_secret.inner_pad || convert_to(p_text, 'UTF8')))
$$;

-- Covers what retention leaves of a batch, so that an edit of a tombstone shows.
create function helix.tombstone_hash(
  p_key bytea, p_fingerprint bytea, p_queue integer, p_entry bigint, p_version integer,
  p_state helix.state, p_attempt smallint, p_ended_at timestamptz, p_retired_at timestamptz,
  p_revision text
) returns bytea language sql stable parallel safe as $$
  select sha256(p_key || p_fingerprint || timestamptz_send(p_ended_at) || timestamptz_send(p_retired_at)
                || convert_to(concat_ws('>', p_queue, p_entry, p_version, p_state, p_attempt, p_revision), 'UTF8'))
$$;

-- From public ids to batches of the session's tenants: a range of the key by the six bytes that the UUID
-- leaves unchanged, then the exact comparison. Calls by public id get their batches only from here.
create function helix.locate(p_ids uuid[])
returns table (public_id uuid, batch bigint, queue integer, key bytea)
language plpgsql stable
set enable_seqscan = off set jit = off as $$
declare
  v_queues integer[] := helix.session_queues();
begin
  return query
    select asked.id, found.id, found.queue, found.key::bytea
    from (select u.id, E'\\x01'::bytea || substr(uuid_send(u.id), 1, 6) as least,
                 E'\\x01'::bytea || substr(uuid_send(u.id), 1, 6)
                 || E'\\xffffffffffffffffffffffffffffffffffffffffffffffffffff'::bytea as most
          from unnest(p_ids) as u (id) offset 0) asked
    -- In the order of the key and at most one: the planner takes the range for a two-hundredth of the
    -- table.
    cross join lateral (
      select b.id, b.queue, b.key from helix.batch b
      where b.key >= asked.least and b.key <= asked.most and helix.public_id(b.key) = asked.id
      order by b.key limit 1) found
    where v_queues is null or found.queue = any (v_queues);
end
$$;
