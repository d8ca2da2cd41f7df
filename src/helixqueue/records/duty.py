"""Background duties, and what the reconciliation found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

START_SERVICE: Final = "start a service with `helixq serve` or `helixq up`"
_LATE_SECONDS: Final = 60.0


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

    @property
    def is_late(self) -> bool:
        """Whether no process runs it, or not often enough."""
        return self.lag_seconds > _LATE_SECONDS


def late_text(duties: Sequence[DutyRow]) -> str:
    """The duties that no process runs, in one line; empty if there is none."""
    never = [row.duty for row in duties if row.is_late and row.last_at is None]
    behind = [
        f"{row.duty} ({row.lag_seconds:.0f} s)" for row in duties if row.is_late and row.last_at
    ]
    parts = [("never ran", never), ("overdue", behind)]
    return "; ".join(f"{words}: {', '.join(names)}" for words, names in parts if names)


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
