"""Sources of webhooks and their deliveries, as lists show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

from helixqueue.records.parameter import Param

DeliveryDecision = Literal[
    "granted", "new", "duplicate", "conflict", "superseded", "duplicate_body", "dead_letter",
    "in_progress",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WebhookSourceRow:
    """A source without its secrets."""

    tenant: str
    name: str
    scheme: str
    definition: Mapping[str, Any]
    applied_at: datetime
    applied_by: str
    secrets: int  # how many are valid
    secret_since: datetime | None  # when the newest was added


@dataclass(frozen=True, slots=True)
class AppliedSource:
    name: str
    answer: Literal["created", "changed", "unchanged"]


@dataclass(frozen=True, slots=True)
class RotatedSecret:
    """The number of a secret; the secret itself is never shown."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    """The first delivery of an event, and how often it came again."""

    delivery: Annotated[int, Param("", sealed=True)]
    fence: str  # its key
    event: str
    version: str | None
    action: str | None
    decision: str
    effect: str | None
    first_at: datetime
    sealed_at: datetime | None
    duplicates: int
    conflicts: int
    detail: str | None


class StoredDelivery(NamedTuple):
    """A delivery as the engine decides about it (84_delivery.sql)."""

    tenant: str
    source: str
    event: str
    identity: str
    request: str
    nonce: int
    keep_seconds: float
    body_once: bool
    clock: Literal["version", "time", "none"]
    mapping: str
    entity: str | None
    version: str | None
    digest: bytes
    queue: str | None
    letter: bytes


class DeliveryAnswer(NamedTuple):
    decision: DeliveryDecision
    outcome: str | None  # decision of the first delivery
    effect: str | None
    request: str | None  # conflict: the body of the first delivery
    key: bytes | None
    epoch: int | None
    number: int | None
