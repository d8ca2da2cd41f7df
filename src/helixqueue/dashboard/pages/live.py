"""The stream that keeps an open page up to date."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Query
from starlette.responses import Response, StreamingResponse

from helixqueue.dashboard.page import HEADERS, PageDep, page_router, view
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.dashboard.live import LivePages
    from helixqueue.dashboard.page import PageRequest

routes = page_router()
SECONDS: Final = 300.0  # the browser connects again
KEEPALIVE_SECONDS: Final = 10.0
PagePath = Annotated[str, Query(max_length=2_000, pattern="^/")]


@view(routes, "/live", "any", live=False)
async def live(page: PageDep, of: PagePath) -> Response:
    lines = _lines(page, of)
    first = await anext(lines)  # refused streams are answered with their status
    headers = HEADERS | {"X-Accel-Buffering": "no"}  # nginx would buffer the stream
    return StreamingResponse(_joined(first, lines), media_type="text/event-stream", headers=headers)


async def _joined(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in lines:
        yield line


async def _lines(page: PageRequest, url: str) -> AsyncIterator[str]:
    pages: LivePages = page.request.app.state.live
    until = time.monotonic() + SECONDS
    with pages.open(page.scope, page.principal, url) as queue:
        yield "retry: 2000\n\n"
        while time.monotonic() < until and not await page.request.is_disconnected():
            content = await _next(queue, page.service.stopping)
            if page.service.stopping.is_set():
                return
            if not content:
                yield ": keepalive\n\n"
            try:
                await page.service.principals.find(page.principal.token_hash)
            except Problem:
                yield "event: end\ndata: {}\n\n"
                return
            if content:
                yield f"event: page\ndata: {json.dumps(content.decode())}\n\n"


async def _next(queue: asyncio.Queue[bytes], stopping: asyncio.Event) -> bytes:
    """New content; b"" after `KEEPALIVE_SECONDS`, and as soon as the service stops."""
    content = asyncio.create_task(queue.get())
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait(
            {content, stop}, timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        return content.result() if content.done() else b""
    finally:
        content.cancel()
        stop.cancel()
