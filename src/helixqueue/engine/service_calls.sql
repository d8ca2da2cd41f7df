-- Statements that only the HTTP service runs, besides calls.sql and reads.sql.

-- name: tenant_workers
-- A page of a tenant's workers by name, with the number of leases that each holds. The first column is the
-- cursor of the next page.
select w.edge, w.name, w.role, w.free::text, w.first_seen, w.last_seen, w.leases
from helix.read_tenant_workers_v1(%(tenant)s::text, %(after)s::text, %(since)s::timestamptz,
                                  %(look)s::int, %(limit)s::int) w;

-- name: can_serve
-- Whether this login is bound as a service must be. The schema's revision is checked separately.
select helix.read_can_serve_v1();

-- name: schema_revision
-- The revision of the schema, and the oldest release it works with; every role may read it.
select r.version_num, o.oldest from helix_migration.revision r, helix_migration.reach o;

-- name: tenant_key
-- The key with which the service hides numbers from the tokens of a tenant.
select helix.tenant_key_v1(%s::text);
