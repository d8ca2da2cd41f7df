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
from helixqueue.records.parameter import MAX_PAGE
from helixqueue.states import State

if TYPE_CHECKING:
    from markupsafe import Markup

    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.batch import BatchRow
    from helixqueue.records.worker import WorkerDetail, WorkerRow

routes = page_router()
SINCE: Final = timedelta(days=1)
FINISHED_ROWS: Final = 20
ENDED_ROWS: Final = 200
PAGES_MAX: Final = 4
ORDER: Final = ("silent", "alive", "ended")
WorkerName = Annotated[str, Path(max_length=255)]


@view(routes, "/workers")
async def workers(page: PageDep, after: After = None, *, ended: bool = False) -> Response:
    since = None if ended else page.now - SINCE
    rows, following = await _list_by_name(page, since, after)
    rows.sort(key=_place)
    known = Counter(row.status for row in rows)
    rows = rows[: known.total() - max(0, known["ended"] - ENDED_ROWS)]
    devices = () if ended else (await page.ask(operations.list_devices)).rows
    return await page.show(
        "workers.html",
        devices=devices,
        lines=[(row, is_alive(row), squares(row)) for row in rows],
        known=known,
        hidden=known.total() - len(rows),
        next=following,
        ended=ended,
    )


async def _list_by_name(
    page: PageRequest, since: datetime | None, after: str | None
) -> tuple[list[WorkerRow], str | None]:
    """Workers by name: those that live may be behind many that ended."""
    rows: list[WorkerRow] = []
    for _ in range(PAGES_MAX):
        found = await page.ask(operations.list_workers, since=since, after=after, limit=MAX_PAGE)
        rows += found.rows
        after = found.next
        if after is None:
            break
    return rows, after


def _place(row: WorkerRow) -> tuple[int, float, str]:
    """Silent workers first; of those that ended, the last first."""
    last = -row.last_seen.timestamp() if row.status == "ended" else 0.0
    return ORDER.index(row.status), last, row.name


@view(routes, "/workers/{worker:path}")
async def worker(page: PageDep, worker: WorkerName) -> Response:
    """A worker by its report, or without one by the batches that name it."""
    finished = await _finished_by(page, worker)
    try:
        row: WorkerDetail | None = await page.ask(operations.show_worker, worker=worker)
    except NoSuchWorker:
        row = None  # the ledger names workers for longer than they are on record
    return await page.show(
        "worker.html",
        name=worker,
        worker=row,
        alive=row is not None and is_alive(row),
        squares=None if row is None else squares(row),
        held=() if row is None else row.batches,
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


def is_alive(row: WorkerRow) -> bool:
    return row.status == "alive"


def squares(row: WorkerRow) -> Markup | None:
    """The slots of a worker, if it reports them."""
    health = row.free.get("health")
    reported = health.get("slots") if isinstance(health, dict) else None
    total = max(row.leases, reported if isinstance(reported, int) else 0)
    return slots(row.leases, total, alive=is_alive(row)) if total else None
