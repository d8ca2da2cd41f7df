"""Workers as they last reported themselves, and the batches that they hold."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from helixqueue.errors import NoSuchWorker
from helixqueue.operations import engine
from helixqueue.operations.batch_reads import list_batches
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.operation import operation
from helixqueue.records.device import DeviceRow
from helixqueue.records.page import Page
from helixqueue.records.parameter import MAX_PAGE, Cursor, Limit, Param, aware
from helixqueue.records.worker import WorkerDetail, WorkerRow
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.records.batch import BatchRow

Since = Annotated[
    datetime, Param("Only workers that reported since then.", check=aware, metavar="TIME")
]
Worker = Annotated[str, Param("Name, or the start of it.", "gpu-1", length=255, metavar="WORKER")]


@operation("GET /v1/workers", scope="read")
def list_workers(
    operations: Operations,
    *,
    since: Since | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[WorkerRow]]:
    """List workers with their slots, batches and resources, by name.

    A worker reports every 15 seconds and when it ends; without two reports it is silent: killed,
    frozen or cut off. `busy` and `leases` are what it holds now. A worker with the tenant `*`
    serves every tenant: it is in the list of each, with its resources and what it holds of that
    tenant. Workers are deleted 30 days after their last report. A page reads a limited number of
    workers: it may be short or empty and still have a `next`.
    """
    page = yield from operations.ask(
        engine.reads.workers(
            tenant=operations.tenant or None, since=since, after=after, limit=limit
        )
    )
    rows = page.rows
    if operations.token_hash is not None:
        rows = tuple(replace(row, role=None) for row in rows)
    if not operations.tenant or not rows:
        return replace(page, rows=rows)
    names = sorted({row.name for row in rows})
    days = yield from operations.ask(
        engine.overview.worker_days(tenant=operations.tenant, workers=names)
    )
    counted = []
    for row in rows:
        completed, failed = days.get(row.name, (0, 0))
        counted.append(replace(row, completed_today=completed, failed_today=failed))
    return replace(page, rows=tuple(counted))


@operation("GET /v1/devices", scope="read")
def list_devices(operations: Operations) -> Instructions[Page[DeviceRow]]:
    """List the GPUs that workers described in the last day, by host, and what holds each.

    The workers of a host share its devices. A device that a lease of another tenant holds is
    shown as held, without its batch. The first 1,000.
    """
    rows = yield from operations.ask(engine.devices.devices(tenant=operations.tenant))
    return Page(rows, None)


@operation(
    "GET /v1/workers/{worker}",
    scope="read",
    raises=[NoSuchWorker],
)
def show_worker(operations: Operations, worker: Worker) -> Instructions[WorkerDetail]:
    """Show one worker with the batches that it holds.

    Its name may be shortened, if no other name starts so.
    """
    row = yield from _find(operations, worker)
    held = yield from held_by(operations, row, limit=MAX_PAGE)
    return WorkerDetail(**asdict(row), batches=held)


def held_by(
    operations: Operations, worker: WorkerRow, limit: int
) -> Instructions[tuple[BatchRow, ...]]:
    """Batches that a worker holds, those first that it runs."""
    found: list[BatchRow] = []
    for state in (State.RUNNING, State.ASSIGNED):
        if len(found) >= min(worker.leases, limit):
            break
        page = yield from list_batches(operations, worker=worker.name, state=state, limit=limit)
        found += [row for row in page.rows if worker.serves(row.tenant)]
    return tuple(found[:limit])


def _find(operations: Operations, worker: str) -> Instructions[WorkerRow]:
    found: list[WorkerRow] = []
    after: str | None = None
    while True:
        page = yield from list_workers(operations, after=after, limit=MAX_PAGE)
        found += [row for row in page.rows if row.name.startswith(worker)]
        after = page.next
        if after is None:
            break
    found = [row for row in found if row.name == worker] or found
    if len(found) != 1:
        names = ", ".join(f"{row.name} of tenant {row.tenant}" for row in found[:20])
        names = f": {names}" if found else ""
        raise NoSuchWorker(f"{len(found)} workers have the name {worker!a}{names}")
    return found[0]
