"""Background duties: asking for one that is due, and how they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helixqueue.engine.statements import statements
from helixqueue.postgres.call import Call

if TYPE_CHECKING:
    from datetime import datetime

_SQL = {name: one.sql for name, one in statements("helixqueue.engine", "duties.sql").items()}


@dataclass(frozen=True, slots=True)
class DutyResult:
    """What a run of a duty came to."""

    duty: str
    did: int | None  # rows; None when it failed
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True)
class DutyRow:
    """How a duty stands, whoever does it."""

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


def tend(*, actor: str, limit: int) -> Call[DutyResult | None]:
    """Do one duty that is due; None when none is, or others are at them."""
    return Call(_SQL["tend"], (actor, limit), lambda rows: DutyResult(*rows[0]) if rows else None)


def listed() -> Call[list[DutyRow]]:
    return Call(_SQL["duties"], (), lambda rows: [DutyRow(*row) for row in rows])
