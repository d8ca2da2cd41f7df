"""Webhooks: sources, and their last deliveries with the decision about each."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, page_router, view
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.webhook import operations

routes = page_router()
Name = Annotated[str, Path(pattern=NAME_PATTERN)]


@view(routes, "/webhooks")
async def webhooks(page: PageDep) -> Response:
    found = await page.ask(operations.list_sources)
    return await page.show("webhooks.html", rows=found.rows)


@view(routes, "/webhooks/{name}")
async def webhook(page: PageDep, name: Name, after: After = None) -> Response:
    source = await page.ask(operations.show_source, name=name)
    found = await page.ask(operations.list_deliveries, name=name, after=after)
    return await page.show("webhook.html", source=source, found=found)
