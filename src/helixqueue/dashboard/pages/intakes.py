"""Intakes: the processes that read streams, and how far they are behind."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from helixqueue.dashboard.page import PageDep, page_router, view
from helixqueue.engine import letters

routes = page_router()
STALE_SECONDS: Final = 30.0  # without a report for so long, an intake counts as gone


@view(routes, "/intakes")
async def intakes(page: PageDep) -> Response:
    rows = await page.principal.execute(letters.intakes(tenant=page.principal.tenant))
    return await page.show("intakes.html", rows=rows, stale_seconds=STALE_SECONDS)
