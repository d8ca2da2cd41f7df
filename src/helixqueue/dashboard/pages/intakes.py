"""Intakes: the processes that read streams, and how far they are behind."""

from __future__ import annotations

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, page_router, view
from helixqueue.operations import intakes as operations

routes = page_router()


@view(routes, "/intakes")
async def intakes(page: PageDep) -> Response:
    found = await page.ask(operations.list_intakes)
    return await page.show("intakes.html", rows=found.rows)
