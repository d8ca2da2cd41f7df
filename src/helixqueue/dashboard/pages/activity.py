"""Activity: what people and applications changed, with their reasons."""

from __future__ import annotations

from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.operations import overview as operations

routes = page_router()


@view(routes, "/activity")
async def activity(page: PageDep, after: After = None) -> Response:
    found = await page.ask(operations.list_activity, after=after)
    return await page.show("activity.html", found=found)
