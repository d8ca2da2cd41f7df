"""Search: a sample in any spelling, a batch, worker, fence, queue or dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, go_to, page_router, view
from helixqueue.dashboard.rendering import url
from helixqueue.operations import overview as operations

if TYPE_CHECKING:
    from helixqueue.records.overview import Match

routes = page_router()
FOLDERS = {
    "batch": "batches", "worker": "workers", "fence": "fences", "letter": "letters",
    "queue": "queues",
}  # fmt: skip


@view(routes, "/search", live=False)
async def search(
    page: PageDep, q: Annotated[str | None, Query(max_length=1_024)] = None
) -> Response:
    if q is None:
        return await page.show("search.html", query="", found=[])
    found = (await page.ask(operations.search, text=q)).rows
    if len(found) == 1:
        return go_to(address(found[0]))
    return await page.show(
        "search.html", query=q, found=[(match, address(match)) for match in found]
    )


def address(match: Match) -> str:
    return url(FOLDERS[match.kind], match.id)
