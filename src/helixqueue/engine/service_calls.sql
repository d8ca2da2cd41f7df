-- Statements that only the HTTP service runs, besides calls.sql and reads.sql.

-- name: can_serve
-- Whether this login is bound as a service must be. The schema's revision is checked separately.
select helix.read_can_serve_v1();

-- name: schema_revision
-- The revision of the schema, and the oldest release it works with; every role may read it.
select r.version_num, o.oldest from helix_migration.revision r, helix_migration.reach o;

-- name: tenant_key
-- The key with which the service hides numbers from the tokens of a tenant.
select helix.tenant_key_v1(%s::text);
