"""Overview: whether all is well, what waits for a person, and what every queue does."""

from __future__ import annotations

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, page_router, view
from helixqueue.dashboard.pages.queues import problems_first
from helixqueue.operations import queues

routes = page_router()


@view(routes, "/")
async def overview(page: PageDep) -> Response:
    found = await page.ask(queues.list_queues)
    counts = [row.counts for row in found.rows]
    total = {
        name: sum(getattr(item, name).number for item in counts)
        for name in ("ready", "waiting", "assigned", "running", "completed", "failed")
    }
    return await page.show(
        "overview.html", lines=problems_first(found.rows), next=found.next, total=total
    )
