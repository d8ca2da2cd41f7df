-- Sources of webhooks and their deliveries, as `helixqueue.engine.webhooks` calls them.

-- name: apply
-- Creates or replaces a definition: created, changed or unchanged.
select helix.apply_webhook_v1(%s::text, %s::text, %s::text, %s::text, %s::text);

-- name: rotate
-- Adds a secret; null without such a source.
select helix.rotate_webhook_v1(%s::text, %s::text, %s::bytea, %s::float8, %s::text);

-- name: assume
-- Sets the tenant of a path for this transaction, and limits its statements.
select helix.assume_webhook_v1(%s::text, %s::text), set_config('statement_timeout', %s::text, true);

-- name: source
-- The definition and the valid secrets, for the receiver of a delivery.
select w.definition, w.secrets from helix.webhook_v1(%s::text, %s::text) w;

-- name: begin
-- Claims a delivery whose effect follows in this transaction.
select d.decision, d.outcome, d.effect, d.request, d.key, d.epoch, d.number
from helix.begin_delivery_v1(
  row(%s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::float8, %s::boolean, %s::text, %s::text,
      %s::text, %s::numeric, %s::bytea, %s::text, %s::bytea)::helix.delivery, %s::text) d;

-- name: end
-- Ends it after the effect.
select d.decision, d.outcome, d.effect, d.request, d.key, d.epoch, d.number
from helix.end_delivery_v1(
  row(%s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::float8, %s::boolean, %s::text, %s::text,
      %s::text, %s::numeric, %s::bytea, %s::text, %s::bytea)::helix.delivery, %s::text, %s::bytea, %s::int, %s::bigint,
  %s::text) d;

-- name: submit
-- Decides about a delivery that becomes a batch.
select d.decision, d.outcome, d.effect, d.request, d.key, d.epoch, d.number
from helix.submit_delivery_v1(
  row(%s::text, %s::text, %s::text, %s::text, %s::text, %s::bigint, %s::float8, %s::boolean, %s::text, %s::text,
      %s::text, %s::numeric, %s::bytea, %s::text, %s::bytea)::helix.delivery, %s::text, %s::text, %s::text, %s::text,
  %s::text, %s::text, %s::text, %s::text) d;

-- name: sources
-- The sources of a tenant, or the one of a name.
select w.tenant, w.name, w.scheme, w.definition, w.applied_at, w.applied_by, w.secrets, w.secret_since
from helix.read_webhooks_v1(%s::text, %s::text) w;

-- name: deliveries
-- Deliveries of a source, newest first.
select d.life, d.key, d.identity, d.decision, d.effect, d.at, d.sealed_at, d.duplicates, d.conflicts, d.detail
from helix.read_deliveries_v1(%s::text, %s::text, %s::bigint, %s::int) d;
