"""Background duties: run one that is due, list their status."""

from __future__ import annotations

from dataclasses import dataclass

from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.duty import DutyRow

_SQL = sql_texts("helixqueue.engine", "duties.sql")


@dataclass(frozen=True, slots=True)
class DutyResult:
    """The result of one run of a duty."""

    duty: str
    did: int | None  # rows; None when it failed
    seconds: float
    error: str | None


def run_duty(*, actor: str, limit: int) -> Call[DutyResult | None]:
    """Run one duty that is due; None if none is due or other processes run them."""
    return Call(
        _SQL["run_duty"], (actor, limit), lambda rows: DutyResult(*rows[0]) if rows else None
    )


def list_duties() -> Call[list[DutyRow]]:
    return Call(_SQL["duties"], (), lambda rows: [DutyRow(*row) for row in rows])
