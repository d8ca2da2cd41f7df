"""Refusals: late writes that changed nothing, with both workers and the attempts of the batch."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.dashboard.pages.overview import picture
from helixqueue.operations import overview as operations
from helixqueue.records.parameter import NAME_PATTERN

routes = page_router()


@view(routes, "/refusals")
async def refusals(
    page: PageDep,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: After = None,
) -> Response:
    found = await page.ask(operations.list_refusals, queue=queue, after=after)
    lines = [(row, picture(row, page.now)) for row in found.rows]
    return await page.show("refusals.html", lines=lines, queue=queue, next=found.next)
