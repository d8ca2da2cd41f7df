"""`helixq worker list`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helixqueue.cli import connection, options, pages, shapes, show, times
from helixqueue.cli.command import command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helixqueue.records.worker import WorkerRow

app = typer.Typer(no_args_is_help=True, help="Workers: list.")

# Workers report every 15 seconds; after four missed reports a worker counts as gone.
GONE_AFTER: Final = timedelta(seconds=60)
# Members of a report that are not resources.
_NOT_RESOURCES: Final = {"health", "progress"}


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="worker")


@app.callback()
def _workers() -> None:
    """Workers: list."""


@command(app, "list", example="helixq worker list --since 5m")
@connection.over_http
def _list(
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help=f"Only workers that reported since then, {options.TIME_HELP}.",
            show_default=False,
        ),
    ] = None,
    dsn: options.Dsn = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """List workers with their leases and resources.

    A worker reports every 15 seconds and counts as gone after a minute without a report. A database
    shows the workers of your login, or all workers to an operator; a service shows those of the
    token's tenant. Workers are deleted 30 days after their last report.
    """
    with connection.open_target(dsn, data) as target:
        time = None if since is None else times.moment(since)
        rows = list(pages.read_all(target, partial(target.reads.workers, since=time)))
    if as_json:
        show.as_json({"workers": [shapes.worker(row) for row in rows]})
        return
    now = datetime.now(UTC)
    show.table(
        ("worker", "status", "busy", "leases", "resources", "login", "last report"),
        [_row(row, now) for row in rows],
        ["" if _is_alive(row, now) else "dim" for row in rows],
        empty="no workers",
    )


def _row(row: WorkerRow, now: datetime) -> tuple[str, ...]:
    return (
        row.name,
        "alive" if _is_alive(row, now) else "gone",
        _busy(row.free.get("health")),
        str(row.leases),
        _resources(row.free),
        row.role or "",
        times.to_seconds(row.last_seen),
    )


def _is_alive(row: WorkerRow, now: datetime) -> bool:
    return now - row.last_seen < GONE_AFTER


def _busy(health: object) -> str:
    """Busy slots and all slots; clients that claim without a worker report none."""
    if not isinstance(health, dict) or not {"busy", "slots"} <= health.keys():
        return ""
    return f"{health['busy']}/{health['slots']}"


def _resources(reported: Mapping[str, object]) -> str:
    return ", ".join(
        f"{name} {amount}"
        for name, amount in reported.items()
        if amount and name not in _NOT_RESOURCES
    )
