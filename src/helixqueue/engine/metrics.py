"""Metrics that the database keeps, what the reconciliation found, and intervals of duties."""

from __future__ import annotations

from collections.abc import Sequence

from helixqueue.postgres.call import Call
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.duty import ReconcileFinding
from helixqueue.records.metric import MetricRow

_SQL = sql_texts("helixqueue.engine", "metrics.sql")
SERIES_MAX = 50_000  # in one response


def read_metrics(*, every_tenant: bool = False) -> Call[list[MetricRow]]:
    """The series of the session's tenants; of all tenants for a login that acts for all.

    One more than SERIES_MAX at most, which shows that there are more.
    """
    return Call(
        _SQL["read_metrics"],
        (every_tenant, SERIES_MAX + 1),
        lambda rows: [MetricRow(*row) for row in rows],
    )


def list_findings(*, open_only: bool = True, limit: int = 100) -> Call[Sequence[ReconcileFinding]]:
    return Call(
        _SQL["list_findings"],
        (open_only, limit),
        lambda rows: [ReconcileFinding(*row) for row in rows],
    )


def set_duty(
    *, duty: str, every_seconds: float, actor: str | None = None, reason: str | None = None
) -> Call[None]:
    """Change how often a duty runs; only an operator's login may."""
    return Call(_SQL["set_duty"], (duty, every_seconds, actor, reason), lambda _: None)
