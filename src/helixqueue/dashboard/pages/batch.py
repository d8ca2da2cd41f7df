"""Batch: why it ran twice and took effect once, and everything that is recorded about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.code_points import cells
from helixqueue.dashboard.page import PageDep, page_router, view
from helixqueue.dashboard.rendering import identity
from helixqueue.dashboard.timeline import timeline
from helixqueue.dashboard.verdict import verdict
from helixqueue.errors import NoSuchQueue
from helixqueue.operations import batch_reads, queues

if TYPE_CHECKING:
    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.batch import BatchDetail

routes = page_router()
LEDGER_ROWS = 200
Act = Annotated[Literal["retry", "cancel", "release", "erase"] | None, Query()]


@view(routes, "/batches/{batch_id}")
async def batch(
    page: PageDep, batch_id: UUID, act: Act = None, leases: Literal["all"] | None = None
) -> Response:
    detail = await page.ask(
        batch_reads.show_batch, batch_id=batch_id, payload=page.principal.sees_payloads
    )
    page.log.add(batch=batch_id)
    drawn = None
    if detail.place != "retired":
        seconds = await _lease_seconds(page, detail)
        drawn = timeline(detail, page.now, lease_seconds=seconds, all_leases=leases == "all")
    return await page.show(
        "batch.html",
        batch=detail,
        timeline=drawn,
        verdict=verdict(detail),
        spellings=cells(identity(detail.raw), identity(detail.identity)),
        act=act,
        ledger_rows=LEDGER_ROWS,
    )


async def _lease_seconds(page: PageRequest, detail: BatchDetail) -> float | None:
    if detail.queue is None:
        return None
    try:
        return (await page.ask(queues.show_settings, queue=detail.queue)).lease_seconds
    except NoSuchQueue:
        return None
