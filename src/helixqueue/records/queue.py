"""A queue: its settings and its counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue's settings."""

    tenant: str
    name: str
    profile: str
    lease_seconds: float
    max_attempts: int
    backoff_seconds: float
    backoff_max_seconds: float
    key_limit: int
    unknown: Literal["refuse", "accept"]
    paused: bool
    closed: bool
    requires: Mapping[str, object]
    payload_schema: Mapping[str, object] | None
    result_schema: Mapping[str, object] | None
    # How long finished batches stay, by state; 0: for ever. Their keys stay anyway.
    keep_completed_seconds: float = 0
    keep_failed_seconds: float = 0
    keep_cancelled_seconds: float = 0
    keep_decisions_seconds: float = 0  # of submissions that made no batch


class QueueSettings(TypedDict, total=False):
    """What can be set on a queue; the order is that of the function's parameters."""

    profile: str | None
    lease_seconds: float | None
    max_attempts: int | None
    backoff_seconds: float | None
    backoff_max_seconds: float | None
    key_limit: int | None
    unknown: str | None
    paused: bool | None
    closed: bool | None
    requires: Mapping[str, Any] | None
    payload_schema: Mapping[str, Any] | None
    result_schema: Mapping[str, Any] | None
    keep_completed_seconds: float | None
    keep_failed_seconds: float | None
    keep_cancelled_seconds: float | None
    keep_decisions_seconds: float | None


class BoundedCount(NamedTuple):
    """How many; with `more`, at least so many: counting stops at a bound."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.more else str(self.number)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue's settings, and how much stands where."""

    settings: QueueRow
    ready: BoundedCount
    waiting: BoundedCount
    assigned: BoundedCount
    running: BoundedCount
    completed: BoundedCount
    failed: BoundedCount
    cancelled: BoundedCount


@dataclass(frozen=True, slots=True)
class QueuePage:
    rows: tuple[QueueSummary, ...]
    next: str | None
