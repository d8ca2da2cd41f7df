"""Calls about webhooks: sources, secrets, and decisions about deliveries; SQL in webhooks.sql."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from helixqueue.engine.cursors import LAST_ID, after_number, demand_page
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.page import Page
from helixqueue.records.webhook import (
    DeliveryAnswer,
    DeliveryRow,
    StoredDelivery,
    WebhookSourceRow,
)

if TYPE_CHECKING:
    from helixqueue.records.submission import SubmissionRow

_SQL = sql_texts("helixqueue.engine", "webhooks.sql")


class SourceSecrets(NamedTuple):
    """What a receiver needs. The secrets are not part of its `repr`."""

    definition: str
    secrets: list[bytes]

    def __repr__(self) -> str:
        return f"SourceSecrets({len(self.secrets)} secrets)"


def apply_source(
    *, tenant: str, name: str, scheme: str, definition: str, actor: str | None
) -> Call[Literal["created", "changed", "unchanged"]]:
    return Call(_SQL["apply"], (tenant, name, scheme, definition, actor), lambda rows: rows[0][0])


def rotate_secret(
    *, tenant: str, name: str, secret: bytes, overlap_seconds: float, actor: str | None
) -> Call[int | None]:
    """The number of the new secret; None without such a source."""
    args = (tenant, name, _bytes(secret), overlap_seconds, actor)
    return Call(_SQL["rotate"], args, lambda rows: rows[0][0])


def assume_source(*, tenant: str, name: str, milliseconds: str) -> Call[Any]:
    """The first call of a service's transaction for a delivery."""
    return Call(_SQL["assume"], (tenant, name, milliseconds), list)


def find_secrets(*, tenant: str, name: str) -> Call[SourceSecrets | None]:
    """The definition and the valid secrets; None without such a source."""

    def read(rows: list[Row]) -> SourceSecrets | None:
        return SourceSecrets(rows[0][0], [bytes(secret) for secret in rows[0][1]]) if rows else None

    return Call(_SQL["source"], (tenant, name), read)


def begin_delivery(delivery: StoredDelivery, *, actor: str) -> Call[DeliveryAnswer]:
    """Claim a delivery; `granted`: its effect follows in this transaction."""
    return Call(_SQL["begin"], (*_delivery(delivery), actor), _read_answer)


def end_delivery(
    delivery: StoredDelivery, granted: DeliveryAnswer, *, actor: str, effect: str | None
) -> Call[DeliveryAnswer]:
    token = (_bytes(granted.key or b""), granted.epoch, granted.number)
    return Call(_SQL["end"], (*_delivery(delivery), actor, *token, effect), _read_answer)


def submit_delivery(
    delivery: StoredDelivery,
    row: SubmissionRow | None,
    *,
    actor: str,
    profile: str = "",
    reason: str | None = None,
    detail: str | None = None,
) -> Call[DeliveryAnswer]:
    """Decide about a delivery that becomes a batch, or with `reason` a dead letter."""
    batch = (None,) * 4 if row is None else (row.identity, row.payload, row.raw, row.revision)
    return Call(
        _SQL["submit"], (*_delivery(delivery), actor, profile, *batch, reason, detail), _read_answer
    )


def list_sources(*, tenant: str, name: str | None = None) -> Call[Page[WebhookSourceRow]]:
    def read(rows: list[Row]) -> Page[WebhookSourceRow]:
        return Page(tuple(map(_read_source, rows)), None)

    return Call(_SQL["sources"], (tenant, name), read)


def list_deliveries(
    *, tenant: str, name: str, after: str | None, limit: int
) -> Call[Page[DeliveryRow]]:
    """A page of deliveries, newest first."""
    demand_page(limit)

    def read(rows: list[Row]) -> Page[DeliveryRow]:
        shown = tuple(_read_delivery(row) for row in rows[:limit])
        return Page(shown, str(shown[-1].delivery) if len(rows) > limit else None)

    return Call(_SQL["deliveries"], (tenant, name, after_number(after, LAST_ID), limit + 1), read)


def _read_source(row: Row) -> WebhookSourceRow:
    tenant, name, scheme, definition, *rest = row
    return WebhookSourceRow(tenant, name, scheme, json.loads(definition), *rest)


def _read_delivery(row: Row) -> DeliveryRow:
    life, key, identity, *rest = row
    event, version, action = [*identity.split(PART_SEPARATOR), "", ""][:3]
    return DeliveryRow(life, key_text(key), event, version or None, action or None, *rest)


def _read_answer(rows: list[Row]) -> DeliveryAnswer:
    return DeliveryAnswer(*rows[0])


def _delivery(delivery: StoredDelivery) -> tuple[Any, ...]:
    return tuple(_bytes(item) if isinstance(item, bytes) else item for item in delivery)


def _bytes(data: bytes) -> str:
    """In PostgreSQL's text form: every driver can send text."""
    return rf"\x{data.hex()}"
