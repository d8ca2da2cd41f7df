"""Calls about runs of `check`, described like those of calls.py; SQL in check_runs.sql."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from helixqueue.engine.cursors import after_number, demand_page
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.check import CheckOutcome, CheckRun
from helixqueue.records.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

_SQL = sql_texts("helixqueue.engine", "check_runs.sql")


def note_check(
    *, tenant: str, actor: str, seconds: float, results: Sequence[CheckOutcome]
) -> Call[None]:
    """Record a run."""
    rows = [(row.name, row.count, row.witnesses, row.skipped) for row in results]
    text = json.dumps(rows, ensure_ascii=False, default=str)
    args = {"tenant": tenant, "actor": actor, "seconds": seconds, "results": text}
    return Call(_SQL["note_check"], args, lambda _: None)


def check_runs(*, tenant: str, after: str | None, limit: int) -> Call[Page[CheckRun]]:
    """Read a page of runs, newest first."""
    demand_page(limit)
    args = {"tenant": tenant, "before": after_number(after, 2**63 - 1), "limit": limit + 1}

    def read(rows: list[Row]) -> Page[CheckRun]:
        found = tuple(_read_run(row) for row in rows[:limit])
        return Page(found, str(found[-1].number) if len(rows) > limit else None)

    return Call(_SQL["check_runs"], args, read)


def _read_run(row: Row) -> CheckRun:
    number, at, seconds, actor, results = row
    outcomes = (
        CheckOutcome(name, count, tuple(witnesses), skipped)
        for name, count, witnesses, skipped in json.loads(results)
    )
    return CheckRun(number, at, seconds, actor, tuple(outcomes))
