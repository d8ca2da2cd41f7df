"""Queues: what each is doing, problems first."""

from __future__ import annotations

from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.operations import overview
from helixqueue.operations import queues as operations

routes = page_router()


@view(routes, "/queues")
async def queues(page: PageDep, after: After = None) -> Response:
    found = await page.ask(overview.show_overview)
    more = None
    if found.more_queues or after is not None:
        more = await page.ask(operations.list_queues, count_to=100, after=after)
    return await page.show("queues.html", lines=found.queues, more=more)
