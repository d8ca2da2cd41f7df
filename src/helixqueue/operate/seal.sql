-- What a seal reads. The functions are in engine/sql/89_seal.sql.

-- name: position
select p.reached, p.timeline, p.database_created, p.entry, p.batches from helix.seal_position_v1() p;

-- name: pages
select p.kind, p.first, p.last, p.rows, p.digest, p.marks, p.asked
from helix.seal_pages_v1(%(from_position)s::bigint, %(to_position)s::bigint) p;

-- name: witness
select helix.seal_witness_v1(%(kind)s::text, %(from_position)s::bigint, %(to_position)s::bigint, %(place)s::bigint);

-- name: entries
-- The entries that a seal covers, as lines of an export: times in microseconds since 2000, hashes in hex.
-- Those that submitted batches have their requests, which name the key of each batch number. By primary key.
select jsonb_build_object(
         'id', e.id, 'part', e.part,
         'at', (extract(epoch from e.at) * 1000000)::bigint - 946684800000000, 'position', e.position, 'epoch', e.epoch,
         'from_state', e.from_state, 'to_state', e.to_state, 'reason', e.reason, 'late', e.late,
         'hash', encode(e.hash, 'hex'), 'actor', e.actor, 'batch', to_jsonb(e.batch), 'queue', to_jsonb(e.queue),
         'version', to_jsonb(e.version), 'attempt', to_jsonb(e.attempt), 'before', to_jsonb(e.before),
         'content', (select jsonb_agg(encode(c.hash, 'hex') order by c.place)
                     from unnest(e.content) with ordinality as c (hash, place)))
       || case when e.from_state is null and e.batch is not null then jsonb_build_object(
            'asked', (select jsonb_agg(encode(helix.asked_bytes(b), 'hex') order by b.id)
                      from helix.batch b where b.id = any (e.batch))) else '{}' end
from helix.entry e where e.position >= %(from_position)s::bigint and e.position < %(to_position)s::bigint
order by e.id, e.part;
