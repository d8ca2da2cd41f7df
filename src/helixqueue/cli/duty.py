"""`helixq duty list | set | findings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from helixqueue.cli import connection, options, show, times
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import argument, option
from helixqueue.engine import metrics
from helixqueue.operations import duties
from helixqueue.records.duty import START_SERVICE, late_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from helixqueue.cli.operation import Runner
    from helixqueue.records.duty import DutyRow, ReconcileFinding
    from helixqueue.records.page import Page

app = typer.Typer(no_args_is_help=True, help="Background duties: list, set, findings.")

NO_SERVICE = "a duty is for all tenants, and a token is of one; run it with --dsn or --data"


def _interval(text: str) -> float:
    seconds = times.span(text)
    if not seconds:
        raise typer.BadParameter(f"expected a duration such as 30s or 5m, got {text[:80]!a}")
    return seconds


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="duty")


@verb(
    app,
    "list",
    duties.list_duties,
    example="helixq duty list",
    every_tenant=True,
    refused=lambda page: any(map(_is_late, page.rows)),
)
def _list(page: Page[DutyRow]) -> None:
    show.table(
        ("duty", "every", "last run", "lag", "took", "failed", "failures", "by"),
        [
            (
                row.duty,
                f"{row.every_seconds:g} s",
                row.last_at or "never",
                f"{row.lag_seconds:.0f} s",
                f"{row.seconds:.3f} s",
                row.failed or "",
                str(row.failures),
                row.actor or "",
            )
            for row in page.rows
        ],
        ["bold red" if _is_late(row) else "" for row in page.rows],
        optional=("by", "failures", "took"),
    )
    _warn_of(page.rows)


def _warn_of(rows: Iterable[DutyRow]) -> None:
    if late := late_text(list(rows)):
        show.warning(f"no process runs these duties: {late}; {START_SERVICE}")


def _is_late(row: DutyRow) -> bool:
    return row.failed is not None or row.is_late


@command(app, "set", example='helixq duty set reconcile --every 5m --reason "a slow disk"')
@connection.database_only(NO_SERVICE)
def _set(
    duty: Annotated[str, argument("DUTY", "Name of the duty.")],
    *,
    every: Annotated[
        float, option("--every DURATION", "Interval, such as 30s or 5m.", parser=_interval)
    ],
    reason: options.Reason,
    actor: options.Actor = None,
    as_json: options.AsJson = False,
) -> None:
    """Change how often a duty runs.

    It runs next at once. The change is recorded with its reason. Needs an operator's login.
    """
    with connection.open_database() as database:
        database.run(metrics.set_duty(duty=duty, every_seconds=every, actor=actor, reason=reason))
    if as_json:
        show.as_json({"duty": duty, "every_seconds": every})
    else:
        show.line(f"{duty}: every {every:g} s")


@verb(
    app,
    "findings",
    duties.list_findings,
    example="helixq duty findings",
    every_tenant=True,
    refused=lambda page: any(row.cleared_at is None for row in page.rows),
)
def _findings(page: Page[ReconcileFinding], *, ask: Runner) -> None:
    show.table(
        ("kind", "tenant", "queue", "batch", "found", "cleared", "detail"),
        [
            (f.kind, f.tenant or "", f.queue or "", f.batch_id or "", f.found_at,
             f.cleared_at or "", f.detail or "")
            for f in page.rows
        ],
        ["dim" if f.cleared_at else "bold red" for f in page.rows],
        empty="no findings",
        optional=("cleared", "tenant", "found"),
    )  # fmt: skip
    _warn_of(row for row in ask(duties.list_duties).rows if row.duty in {"reconcile", "audit"})
