-- Tokens of the HTTP service, as the service and the command line ask for them. A token goes over
-- as its hash alone.

-- name: authenticate
-- What tokens allow; no row for one that is not good. Many at once, so that a flood of guesses is one
-- question after another and not one each.
select asked.hash, g.tenant, g.name, g.generation, g.scopes, g.queues, g.expires_at
from unnest(%s::bytea[]) asked (hash), helix.authenticate_v1(asked.hash) g;

-- name: create_token
-- The first of its name.
select helix.create_token_v1(%s::text, %s::text, %s::bytea, %s::text[], %s::text[], %s::timestamptz,
                             %s::text);

-- name: rotate_token
-- The next of its name.
select helix.rotate_token_v1(%s::text, %s::text, %s::bytea, %s::timestamptz, %s::real, %s::text);

-- name: revoke_token
-- All of a name.
select helix.revoke_token_v1(%s::text, %s::text, %s::text, %s::text);

-- name: tokens
-- All that ever existed, or the generations of one; the database's clock decides which are valid.
select t.tenant, t.name, t.generation, t.scopes, t.queues, t.created_at, t.created_by, t.expires_at,
       t.revoked_at, t.revoked_by, t.reason, t.last_used_at, t.valid
from helix.read_tokens_v1(%(tenant)s::text, %(name)s::text, %(after_tenant)s::text,
                          %(after_name)s::text, %(after)s::int, %(limit)s::int) t;

-- name: offer_login
-- A code for a link, until when it is good.
select helix.offer_login_v1(%s::text, %s::bytea, %s::text[], %s::float8, %s::float8, %s::text);

-- name: redeem_login
-- The code for a token; no row when it is unknown, used or too old.
select tenant, name, scopes, expires_at from helix.redeem_login_v1(%s::bytea, %s::bytea);
