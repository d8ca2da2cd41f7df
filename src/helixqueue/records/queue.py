"""A queue: its settings and its counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

# Answer to the deletion of a queue: a queue that has or had batches stays.
QueueDeletion = Literal["deleted", "absent", "not_empty"]


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Settings of a queue."""

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
    # How long finished batches are kept, by state; 0: forever. Their keys are always kept.
    keep_completed_seconds: float = 0
    keep_failed_seconds: float = 0
    keep_cancelled_seconds: float = 0
    keep_decisions_seconds: float = 0  # of submissions without a new batch
    stalled_after_seconds: float = 900  # claimable batches that wait for longer are reported
    # What a new source does to a FAILED batch: nothing, or a retry.
    resubmit_failed: Literal["answer", "retry"] = "answer"


class QueueSettings(TypedDict, total=False):
    """Settings that can be changed, in the order of the parameters of the SQL function."""

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
    stalled_after_seconds: float | None
    resubmit_failed: str | None


@dataclass(frozen=True, slots=True)
class BoundedCount:
    """A count; with `more`, a lower bound: counting stops at a limit."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.number}+" if self.more else str(self.number)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Settings of a queue, and counts of its batches by state."""

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
