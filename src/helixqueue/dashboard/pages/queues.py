"""Queues: what each is doing, problems first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.operations import queues as operations

if TYPE_CHECKING:
    from helixqueue.records.queue import QueueSummary

routes = page_router()
# Worst first: shape and word of a queue.
CONDITIONS: Final = {
    "Failures": "FAILED",
    "Paused": "PAUSED",
    "Closed": "CANCELLED",
    "Flowing": "OK",
    "Idle": "RELEASED",
}


class QueueLine(NamedTuple):
    """A queue in a table."""

    row: QueueSummary
    condition: str

    @property
    def shape(self) -> str:
        return CONDITIONS[self.condition]


def line_of(row: QueueSummary) -> QueueLine:
    return QueueLine(row, condition_of(row))


def condition_of(row: QueueSummary) -> str:
    counts = row.counts
    if counts.failed.number:
        return "Failures"
    if row.paused:
        return "Paused"
    if row.closed:
        return "Closed"
    active = (counts.ready, counts.waiting, counts.assigned, counts.running)
    return "Flowing" if any(count.number for count in active) else "Idle"


def problems_first(rows: tuple[QueueSummary, ...]) -> list[QueueLine]:
    order = list(CONDITIONS)
    lines = [line_of(row) for row in rows]
    return sorted(lines, key=lambda line: (order.index(line.condition), line.row.name))


@view(routes, "/queues")
async def queues(page: PageDep, after: After = None) -> Response:
    found = await page.ask(operations.list_queues, after=after)
    return await page.show("queues.html", lines=problems_first(found.rows), next=found.next)
