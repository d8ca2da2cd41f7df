-- What a replay reads: entries in the order of the ledger, then the stored states. The functions are
-- in engine/sql/88_replay.sql.

-- name: entries
-- A page of the whole ledger, for sessions that see every tenant. Columns in the order of `LedgerEntry`.
select e.* from helix.read_entries_v1(%(id)s::bigint, %(part)s::smallint, %(limit)s::int) e;

-- name: chains
-- The ledger of a page of batches, for sessions of some tenants. Columns in the order of `LedgerEntry`.
select e.* from helix.read_chains_v1(%(after)s::bigint, %(limit)s::int) e;

-- name: stored_states
-- The stored states of a page of batches. Columns in the order of `StoredState`.
select s.* from helix.read_batch_states_v1(%(after)s::bigint, %(limit)s::int) s;

-- name: estimate
-- For the progress bar only, from the statistics of the last ANALYZE or VACUUM: most batches take four steps.
select 4 * greatest(c.reltuples, 0)::bigint from pg_class c where c.oid = 'helix.batch'::regclass;

-- name: sees_every_tenant
-- Row-level security hides the rows of other tenants silently, so a result must say which rows it covers.
select helix.read_every_tenant_v1();
