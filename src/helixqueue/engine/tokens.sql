-- API tokens of the HTTP service. Only the hash of a token is sent to the database.

-- name: authenticate
-- What tokens allow; no row for an invalid token. Takes many hashes, so that a flood of guesses does not
-- become one statement per guess.
select given.hash, g.tenant, g.name, g.generation, g.scopes, g.queues, g.expires_at
from unnest(%s::bytea[]) given (hash), helix.authenticate_v1(given.hash) g;

-- name: create_token
-- Stores the first generation of a name.
select helix.create_token_v1(%s::text, %s::text, %s::bytea, %s::text[], %s::text[], %s::timestamptz,
                             %s::text);

-- name: rotate_token
-- Stores the next generation of a name.
select helix.rotate_token_v1(%s::text, %s::text, %s::bytea, %s::timestamptz, %s::real, %s::text);

-- name: revoke_token
-- Revokes every generation of a name.
select helix.revoke_token_v1(%s::text, %s::text, %s::text, %s::text);

-- name: tokens
-- All tokens that ever existed, or the generations of one name; the database's clock decides which are
-- valid.
select t.tenant, t.name, t.generation, t.scopes, t.queues, t.created_at, t.created_by, t.expires_at,
       t.revoked_at, t.revoked_by, t.reason, t.last_used_at, t.valid
from helix.read_tokens_v1(%(tenant)s::text, %(name)s::text, %(after_tenant)s::text,
                          %(after_name)s::text, %(after)s::int, %(limit)s::int) t;

-- name: offer_login
-- Stores the code of a login link; returns when it expires, null if the name belongs to a program.
select helix.offer_login_v1(%s::text, %s::bytea, %s::text[], %s::float8, %s::float8, %s::text, %s::text);

-- name: end_session
-- Ends a session: signing out.
select helix.end_session_v1(%s::bytea);

-- name: redeem_login
-- Exchanges a login code for a token; no row if it is unknown, used or expired.
select tenant, name, scopes, expires_at from helix.redeem_login_v1(%s::bytea, %s::bytea);
