"""Background duties, and what the reconciliation found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class DutyRow:
    """The status of a duty, over all processes that run it."""

    duty: str
    every_seconds: float
    last_at: datetime | None
    actor: str | None
    did: int
    total: int
    seconds: float
    failures: int
    failed: str | None  # SQLSTATE of the last run, if that failed
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class ReconcileFinding:
    """What the reconciliation found about a batch; `cleared_at` is when it no longer held."""

    kind: str
    queue: str | None
    tenant: str | None
    batch_id: UUID | None
    found_at: datetime
    seen_at: datetime
    cleared_at: datetime | None
    detail: str | None
