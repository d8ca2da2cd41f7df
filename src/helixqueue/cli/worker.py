"""`helixq worker list | show`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helixqueue.cli import connection, options, pages, shapes, show, times, unicode_diff
from helixqueue.cli.command import command
from helixqueue.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helixqueue.cli.connection import Target
    from helixqueue.records.batch import BatchRow
    from helixqueue.records.worker import WorkerRow

app = typer.Typer(no_args_is_help=True, help="Workers: list, show.")

# Workers report every 15 seconds; after four missed reports a worker counts as gone.
GONE_AFTER: Final = timedelta(seconds=60)
# Members of a report that are not resources.
_NOT_RESOURCES: Final = {"health", "progress"}
_NAMED_BATCHES: Final = 3  # identities per worker in a list
_BUSY_WORKERS: Final = 100  # a list reads the batches of this many workers


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="worker")


@command(app, "list", example="helixq worker list --since 5m")
@connection.service_or_database
def _list(
    *,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help=f"Only workers that reported since then, {options.TIME_HELP}.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List workers with their slots, batches and resources.

    A worker reports every 15 seconds and counts as gone after a minute without a report. A database
    shows the workers of your login, or all workers to an operator; a service shows those of the
    token's tenant. Workers are deleted 30 days after their last report.
    """
    with connection.open_target() as target:
        time = None if since is None else times.moment(since)
        rows = list(pages.read_all(target, partial(target.reads.workers, since=time)))
        busy = [row for row in rows if row.leases][:_BUSY_WORKERS]
        held = {row.name: _held(target, row.name, _NAMED_BATCHES + 1) for row in busy}
    if as_json:
        show.as_json({"workers": [shapes.worker(row) for row in rows]})
        return
    now = datetime.now(UTC)
    show.table(
        ("worker", "status", "busy", "leases", "resources", "login", "last report", "working on"),
        [(*_row(row, now), _working_on(row, held.get(row.name, []))) for row in rows],
        ["" if _is_alive(row, now) else "dim" for row in rows],
        empty="no workers",
        optional=("working on", "resources", "last report", "leases", "login"),
    )


@command(app, "show", example="helixq worker show gpu-1")
@connection.service_or_database
def _show(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Name, or the start of it.")],
    *,
    as_json: options.AsJson = False,
) -> None:
    """Show one worker with the batches that it holds.

    Exit code 1: no worker has that name, or several have.
    """
    with connection.open_target() as target:
        every = list(pages.read_all(target, target.reads.workers))
        exact = [row for row in every if row.name == worker]
        rows = exact or [row for row in every if row.name.startswith(worker)]
        if len(rows) != 1:
            names = f": {', '.join(row.name for row in rows[:20])}" if rows else ""
            show.progress(f"{len(rows)} workers have the name {worker!a}{names}")
            raise typer.Exit(Exit.NO)
        [row] = rows
        held = _held(target, row.name, pages.PAGE_ROWS)
    if as_json:
        show.as_json(shapes.worker(row) | {"batches": [shapes.batch(batch) for batch in held]})
        return
    _print(row, held)


def _print(row: WorkerRow, held: list[BatchRow]) -> None:
    now = datetime.now(UTC)
    health = row.free.get("health")
    counts = health if isinstance(health, dict) else {}
    facts = {
        "worker": row.name,
        "status": "alive" if _is_alive(row, now) else "gone",
        "last report": f"{times.with_zone(row.last_seen)} ({times.ago(row.last_seen)})",
        "first report": times.with_zone(row.first_seen),
        "login": row.role or "",
        "busy": _busy(health),
        "resources": _resources(row.free),
        "done": ", ".join(
            f"{counts[name]} {name}"
            for name in ("completed", "failed", "lost", "released")
            if name in counts
        ),
        "last error": str(counts.get("last_error") or ""),
    }
    show.facts(facts)
    show.line("")
    notes = _progress(row)
    show.table(
        ("batch", "queue", "identity", "state", "attempt", "deadline", "progress"),
        [
            (
                batch.batch_id,
                batch.queue,
                unicode_diff.identity_text(batch.identity, batch.revision),
                batch.state,
                str(batch.attempt),
                batch.deadline,
                notes.get(str(batch.batch_id), ""),
            )
            for batch in held
        ],
        [show.STYLES[batch.state] for batch in held],
        empty="holds no batches",
        first="identity",
        optional=("progress", "deadline", "queue", "attempt"),
    )


def _held(target: Target, worker: str, limit: int) -> list[BatchRow]:
    """Batches that the worker holds; a database names a worker of a service tenant/name."""
    rows, _ = pages.read_rows(target, partial(target.reads.batches, worker=worker), limit, None)
    if not rows and "/" in worker and not target.is_service:
        tenant, _, name = worker.partition("/")
        read = partial(target.reads.batches, worker=name, tenant=tenant)
        rows, _ = pages.read_rows(target, read, limit, None)
    return rows


def _working_on(row: WorkerRow, held: list[BatchRow]) -> str:
    names = [unicode_diff.identity_text(batch.identity, batch.revision) for batch in held]
    more = row.leases - _NAMED_BATCHES
    text = ", ".join(names[:_NAMED_BATCHES])
    return f"{text} and {more} more" if more > 0 and names else text


def _progress(row: WorkerRow) -> dict[str, str]:
    """Progress by batch id, as the worker last reported it."""
    reports = row.free.get("progress")
    texts = {}
    for report in reports if isinstance(reports, list) else []:
        fraction = report.get("fraction")
        percent = "" if fraction is None else f"{fraction:.0%} "
        texts[str(report.get("batch"))] = f"{percent}{report.get('note') or ''}".strip()
    return texts


def _row(row: WorkerRow, now: datetime) -> tuple[show.Cell, ...]:
    return (
        row.name,
        "alive" if _is_alive(row, now) else "gone",
        _busy(row.free.get("health")),
        str(row.leases),
        _resources(row.free),
        row.role or "",
        row.last_seen,
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
