"""Workers: which are alive, what they hold; and one worker with its batches."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Path
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.dashboard.plots import slots
from helixqueue.errors import NoSuchWorker
from helixqueue.operations import batch_reads
from helixqueue.operations import workers as operations
from helixqueue.states import State

if TYPE_CHECKING:
    from markupsafe import Markup

    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.batch import BatchRow
    from helixqueue.records.worker import WorkerRow

routes = page_router()
SILENT_AFTER: Final = timedelta(minutes=1)  # a worker reports every 15 seconds
SINCE: Final = timedelta(days=1)
FINISHED_ROWS: Final = 20
HELD_ROWS: Final = 500
WorkerName = Annotated[str, Path(max_length=255)]


@view(routes, "/workers")
async def workers(page: PageDep, after: After = None, *, ended: bool = False) -> Response:
    since = None if ended else page.now - SINCE
    found = await page.ask(operations.list_workers, since=since, after=after, limit=200)
    rows = sorted(found.rows, key=lambda row: (is_alive(row, page.now), row.name))
    held = {} if after else await _holders(page)
    for row in rows:
        held.pop(row.name, None)
    return await page.show(
        "workers.html",
        lines=[(row, is_alive(row, page.now), squares(row, page.now)) for row in rows],
        alive=sum(is_alive(row, page.now) for row in rows),
        held=sorted(held.items()),
        next=found.next,
        ended=ended,
    )


async def _holders(page: PageRequest) -> Counter[str]:
    """How many batches each worker holds: a worker on PostgreSQL reports to its own login only."""
    found: Counter[str] = Counter()
    for state in (State.ASSIGNED, State.RUNNING):
        rows = await page.ask(batch_reads.list_batches, state=state, limit=HELD_ROWS)
        found.update(row.worker for row in rows.rows if row.worker is not None)
    return found


@view(routes, "/workers/{worker:path}")
async def worker(page: PageDep, worker: WorkerName) -> Response:
    """A worker by its report, or without one by the batches that name it."""
    held = await page.ask(batch_reads.list_batches, worker=worker, limit=HELD_ROWS)
    finished = await _finished_by(page, worker)
    try:
        row: WorkerRow | None = await page.ask(operations.show_worker, worker=worker)
    except NoSuchWorker:
        row = None  # the ledger names workers for longer than they are on record
    return await page.show(
        "worker.html",
        name=worker,
        worker=row,
        alive=row is not None and is_alive(row, page.now),
        squares=None if row is None else squares(row, page.now),
        held=held.rows,
        finished=finished,
    )


async def _finished_by(page: PageRequest, worker: str) -> list[BatchRow]:
    rows: list[BatchRow] = []
    for state in (State.COMPLETED, State.FAILED):
        found = await page.ask(
            batch_reads.list_batches, worker=worker, state=state, limit=FINISHED_ROWS
        )
        rows += found.rows
    rows.sort(key=lambda row: row.finished_at or row.created_at, reverse=True)
    return rows[:FINISHED_ROWS]


def is_alive(row: WorkerRow, now: datetime) -> bool:
    return now - row.last_seen < SILENT_AFTER


def squares(row: WorkerRow, now: datetime) -> Markup | None:
    """The slots of a worker, if it reports them."""
    health = row.free.get("health")
    reported = health.get("slots") if isinstance(health, dict) else None
    total = max(row.leases, reported if isinstance(reported, int) else 0)
    return slots(row.leases, total, alive=is_alive(row, now)) if total else None
