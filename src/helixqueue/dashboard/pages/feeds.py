"""Feeds: how far each consumer is behind; pause, resume or rewind one."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Query
from starlette.responses import Response

from helixqueue.dashboard.page import After, PageDep, action, go_to, page_router, view
from helixqueue.operations import feeds as operations
from helixqueue.operations.operation import Operation
from helixqueue.records.parameter import NAME_PATTERN
from helixqueue.service.routing import QueueName as FeedName

routes = page_router()
LAG_MAX: Final = 10_000
Verb = Literal["pause", "resume", "rewind"]
OPERATIONS: Final[dict[str, Operation[..., Any]]] = {
    "pause": operations.pause_feed,
    "resume": operations.resume_feed,
    "rewind": operations.rewind_feed,
}


@view(routes, "/feeds")
async def feeds(
    page: PageDep,
    act: Verb | None = None,
    feed: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: After = None,
) -> Response:
    found = await page.ask(operations.list_feeds, after=after)
    return await page.show("feeds.html", found=found, act=act, feed=feed, lag_max=LAG_MAX)


@action(routes, "/feeds/{feed}/{verb}")
async def act_on_feed(page: PageDep, feed: FeedName, verb: Verb) -> Response:
    await page.ask(OPERATIONS[verb], feed=feed, reason=page.reason)
    return go_to("/feeds")
