"""`helixq worker list | show | withdraw | return`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from helixqueue.cli import connection, options, show, times, unicode_diff
from helixqueue.cli.command import command
from helixqueue.cli.derived_commands import verb
from helixqueue.cli.options import argument
from helixqueue.engine import devices
from helixqueue.errors import Refused
from helixqueue.operations import workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.cli.operation import Runner
    from helixqueue.records.batch import BatchRow
    from helixqueue.records.device import DeviceRow
    from helixqueue.records.page import Page
    from helixqueue.records.worker import WorkerDetail, WorkerRow

app = typer.Typer(no_args_is_help=True, help="Workers: list, show, withdraw, return.")
_NO_SERVICE: Final = "a host serves several tenants; run it with --dsn or --data"
Host = Annotated[str, argument("HOST", "Host as its workers name it.")]
Device = Annotated[str, argument("DEVICE", "UUID of the device.")]

# Members of a report that are not resources.
_NOT_RESOURCES: Final = {"health", "progress", "devices", "grace_seconds", "reserve_seconds"}
_NAMED_BATCHES: Final = 3  # identities per worker in a list
_BUSY_WORKERS: Final = 100  # a list reads the batches of this many workers


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="worker")


@verb(app, "list", workers.list_workers, example="helixq worker list --since 5m", every_tenant=True)
def _list(page: Page[WorkerRow], *, ask: Runner) -> None:
    busy = [row for row in page.rows if row.leases][:_BUSY_WORKERS]
    read = partial(workers.held_by, limit=_NAMED_BATCHES + 1)
    held = {_key(row): ask(partial(read, worker=row)) for row in busy}
    show.table(
        ("worker", "tenant", "status", "busy", "leases", "resources", "login", "last report",
         "working on"),
        [(*_row(row), _working_on(row, held.get(_key(row), ()))) for row in page.rows],
        ["" if row.status == "alive" else "dim" for row in page.rows],
        empty="no workers",
        optional=("last report", "resources", "leases", "login"),
    )  # fmt: skip
    if any("host" in row.free for row in page.rows):
        show.line("\nDevices", "bold")
        _show_devices(ask(workers.list_devices).rows)


def _show_devices(rows: Sequence[DeviceRow]) -> None:
    show.table(
        ("host", "device", "model", "GB", "state", "working on", "since", "worker"),
        [
            (row.host, row.device, row.model, f"{row.vram_gb:g}", row.status,
             unicode_diff.identity_text(row.identity) if row.queue else "", row.since or "",
             row.worker or "")
            for row in rows
        ],
        ["red" if row.fault else "bold" if row.held else "" for row in rows],
        empty="no devices",
        optional=("since", "GB"),
    )  # fmt: skip


@verb(app, "show", workers.show_worker, example="helixq worker show gpu-1", every_tenant=True)
def _show(row: WorkerDetail, *, ask: Runner) -> None:
    health = row.free.get("health")
    counts = health if isinstance(health, dict) else {}
    facts = {
        "worker": row.name,
        "tenant": row.tenant,
        "status": row.status,
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
            for batch in row.batches
        ],
        [show.STYLES[batch.state] for batch in row.batches],
        empty="holds no batches",
        first="identity",
        optional=("progress", "deadline", "queue", "attempt"),
    )
    if "host" in row.free:
        found = ask(workers.list_devices).rows
        show.line("\nDevices of its host", "bold")
        _show_devices([device for device in found if device.host == row.free["host"]])


@command(app, "withdraw", example='helixq worker withdraw gpu-1 GPU-5a1e --reason "ECC errors"')
@connection.database_only(_NO_SERVICE)
def _withdraw(
    host: Host, device: Device, *, reason: options.Reason, as_json: options.AsJson = False
) -> None:
    """Hand out a device no more. A lease that holds it keeps it. Needs an operator's login."""
    _set_withdrawn(host, device, reason, as_json=as_json)


@command(app, "return", example="helixq worker return gpu-1 GPU-5a1e")
@connection.database_only(_NO_SERVICE)
def _return(host: Host, device: Device, *, as_json: options.AsJson = False) -> None:
    """Hand out a device again that was withdrawn. Needs an operator's login."""
    _set_withdrawn(host, device, None, as_json=as_json)


def _set_withdrawn(host: str, device: str, reason: str | None, *, as_json: bool) -> None:
    with connection.open_database() as database:
        found = database.run(devices.withdraw(host=host, device=device, reason=reason))
    if not found:
        raise Refused(f"expected a device that is withdrawn, got {device} of {host}")
    if as_json:
        show.as_json({"host": host, "device": device, "withdrawn": reason})
    else:
        show.line(f"{device} of {host}: {'handed out again' if reason is None else 'withdrawn'}")


def _working_on(row: WorkerRow, held: Sequence[BatchRow]) -> str:
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


def _key(row: WorkerRow) -> tuple[str | None, ...]:
    return row.tenant, row.name, row.role


def _row(row: WorkerRow) -> tuple[show.Cell, ...]:
    return (
        row.name,
        row.tenant,
        row.status,
        _busy(row.free.get("health")),
        str(row.leases),
        _resources(row.free),
        row.role or "",
        row.last_seen,
    )


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
