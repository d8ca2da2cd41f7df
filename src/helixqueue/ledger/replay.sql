-- What a replay reads: entries in the order of the ledger, then where the batches stand. The functions are
-- in engine/sql/88_replay.sql.

-- name: entries
-- A page of the whole ledger, for sessions that see every tenant. Columns in the order of `Entry`.
select e.* from helix.read_entries_v1(%(id)s::bigint, %(part)s::smallint, %(limit)s::int) e;

-- name: chains
-- The ledger of a page of batches, for sessions of some tenants. Columns in the order of `Entry`.
select e.* from helix.read_chains_v1(%(after)s::bigint, %(limit)s::int) e;

-- name: standing
-- Where a page of batches stands. Columns in the order of `Standing`.
select s.* from helix.read_batch_states_v1(%(after)s::bigint, %(limit)s::int) s;

-- name: estimate
-- For the progress bar only, from what the last ANALYZE or VACUUM counted: most batches take four steps.
select 4 * greatest(c.reltuples, 0)::bigint from pg_class c where c.oid = 'helix.batch'::regclass;

-- name: sees_every_tenant
-- Row-level security hides the rows of other tenants without a message, so a verdict must say which rows
-- it is about.
select helix.read_every_tenant_v1();
