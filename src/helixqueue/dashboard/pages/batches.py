"""Batches: the list with its filters, failures by cause, and exports."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Query
from starlette.responses import Response, StreamingResponse

from helixqueue.dashboard.page import HEADERS, After, PageDep, PageRequest, page_router, view
from helixqueue.dashboard.rendering import identity as identity_text
from helixqueue.operations import batch_reads
from helixqueue.operations import queues as queue_operations
from helixqueue.records.batch import FailureCause
from helixqueue.records.page import Page
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.batch import BatchRow

routes = page_router()
EXPORTED_MAX: Final = 100_000
EXPORT_PAGE: Final = 500
GROUPED: Final = 500  # failed batches whose causes are shown; the command line groups all
COLUMNS: Final = (
    "batch_id", "key", "queue", "identity", "revision", "state", "attempt", "worker", "created_at",
    "finished_at", "finished_by", "failure", "detail",
)  # fmt: skip
# Spreadsheets evaluate cells that begin with these characters.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
TABS: Final = (None, State.PENDING, State.RUNNING, State.COMPLETED, State.FAILED, State.CANCELLED)

NO_CAUSES: Final[Page[FailureCause]] = Page((), None)
Filters = dict[str, Any]
Lines = Callable[[AsyncIterator["BatchRow"]], AsyncIterator[str]]


async def _filters(
    *,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    state: State | None = None,
    failure: Annotated[str | None, Query(max_length=255)] = None,
    identity: Annotated[str | None, Query(max_length=1_024)] = None,
    worker: Annotated[str | None, Query(max_length=255)] = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Filters:
    found = {
        "queue": queue, "state": state, "failure": failure, "identity": identity,
        "worker": worker, "since": since, "until": until,
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


FiltersDep = Annotated[Filters, Depends(_filters)]


@view(routes, "/batches")
async def batches(page: PageDep, filters: FiltersDep, after: After = None) -> Response:
    found = await page.ask(batch_reads.list_batches, after=after, **filters)
    causes = await _causes(page, filters) if after is None else NO_CAUSES
    queues = await page.ask(queue_operations.list_queues, count_to=0, limit=500)
    return await page.show(
        "batches.html",
        found=found,
        filters=filters,
        tabs=TABS,
        queues=[row.name for row in queues.rows],
        causes=causes.rows,
        more_causes=causes.next is not None,
    )


async def _causes(page: PageRequest, filters: Filters) -> Page[FailureCause]:
    """Why batches failed, in a list that may contain failed ones."""
    wanted = {"queue", "state", "failure", "since", "until"}
    if filters.get("state") is not State.FAILED or filters.keys() - wanted:
        return NO_CAUSES
    own = {name: value for name, value in filters.items() if name != "state"}
    return await page.ask(batch_reads.list_causes, limit=GROUPED, **own)


@view(routes, "/batches.csv", live=False)
async def export_csv(page: PageDep, filters: FiltersDep) -> Response:
    return _download(page, filters, "csv", "text/csv", _csv_lines)


@view(routes, "/batches.jsonl", live=False)
async def export_json(page: PageDep, filters: FiltersDep) -> Response:
    return _download(page, filters, "jsonl", "application/x-ndjson", _json_lines)


def _download(
    page: PageRequest, filters: Filters, ending: str, media_type: str, lines: Lines
) -> Response:
    name = f"batches-{page.now:%Y%m%d-%H%M%S}.{ending}"
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(_all(page, filters)), media_type=media_type, headers=headers)


async def _all(page: PageRequest, filters: Filters) -> AsyncIterator[BatchRow]:
    """All that match, page by page, up to a limit."""
    after, read = None, 0
    while read < EXPORTED_MAX:
        found = await page.ask(batch_reads.list_batches, after=after, limit=EXPORT_PAGE, **filters)
        for row in found.rows:
            yield row
        read += len(found.rows)
        after = found.next
        if after is None:
            return


async def _csv_lines(rows: AsyncIterator[BatchRow]) -> AsyncIterator[str]:
    yield ",".join(COLUMNS) + "\r\n"
    async for row in rows:
        text = io.StringIO()
        csv.writer(text).writerow([_cell(value) for value in _values(row).values()])
        yield text.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


async def _json_lines(rows: AsyncIterator[BatchRow]) -> AsyncIterator[str]:
    async for row in rows:
        yield json.dumps(_values(row), ensure_ascii=False, default=str) + "\n"


def _values(row: BatchRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in COLUMNS}
    times = {
        name: value.isoformat() for name, value in values.items() if hasattr(value, "isoformat")
    }
    return values | times | {"identity": identity_text(row.identity)}
