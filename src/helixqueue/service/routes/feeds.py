"""Feeds: declare, list, read, confirm, pause, resume, rewind.

A consumer over HTTP cannot commit its effect together with the position of the feed. It reads a
page, runs the effects with the keys of the events as idempotency keys, and confirms the page. An
event that was not confirmed is delivered again.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Path, Query

from helixqueue.engine import ledgers as calls
from helixqueue.operations import feeds
from helixqueue.operations.feeds import ALL_QUEUES
from helixqueue.records.ledger import FeedPosition, FeedRow
from helixqueue.service.models import ledgers as models
from helixqueue.service.models.requests import NAME_PATTERN, ReasonRequest
from helixqueue.service.principal import Principal
from helixqueue.service.problems import Problem
from helixqueue.service.routes.ledgers import no_such_ledger, require_all_queues
from helixqueue.service.routing import PrincipalDep, RequestLogDep, operation, router
from helixqueue.service.settings import MAX_PAGE

routes = router("feeds")
FeedName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Name of the feed.", examples=["notify"])
]


@routes.get(
    "/v1/feeds",
    response_model=models.FeedsResponse,
    name="list_feeds",
    summary="List feeds and how far they are behind",
    **operation("read"),
)
async def list_feeds(principal: PrincipalDep) -> models.FeedsResponse:
    """By name. A token that is restricted to queues sees the feeds of those queues."""
    rows = await principal.execute(calls.feeds(tenant=principal.tenant))
    return models.FeedsResponse(
        feeds=[models.feed(row) for row in rows if _permits(principal, row)]
    )


@routes.get(
    "/v1/feeds/{feed}",
    response_model=models.FeedResponse,
    name="show_feed",
    summary="Show a feed and how far it is behind",
    **operation("read", "no-such-feed"),
)
async def show_feed(feed: FeedName, principal: PrincipalDep) -> models.FeedResponse:
    """`lag` is the number of events after its position."""
    return models.feed(await _find(feed, principal, lag=True))


@routes.put(
    "/v1/feeds/{feed}",
    response_model=models.FeedResponse,
    name="declare_feed",
    summary="Declare a feed",
    **operation("payloads", "no-such-ledger", "refused", fenced=True),
)
async def declare_feed(
    feed: FeedName, body: models.FeedRequest, principal: PrincipalDep
) -> models.FeedResponse:
    """An existing feed of the same source stays where it is."""
    if body.queue is None:
        require_all_queues(principal)
    else:
        principal.require_queue(body.queue)
    if body.ledger is not None and not await principal.execute(
        calls.ledgers(tenant=principal.tenant, name=body.ledger)
    ):
        raise no_such_ledger(body.ledger)
    queue = body.queue or (ALL_QUEUES if body.ledger is None else None)
    await principal.run_steps(
        feeds.declare(principal.operations, feed, ledger=body.ledger, queue=queue, start=body.start)
    )
    return models.feed(await _find(feed, principal, lag=True))


@routes.get(
    "/v1/feeds/{feed}/events",
    response_model=models.FeedEventsResponse,
    name="read_feed",
    summary="Read the next events of a feed",
    **operation("payloads", "no-such-feed"),
)
async def read_feed(
    feed: FeedName,
    principal: PrincipalDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> models.FeedEventsResponse:
    """Does not move the feed: confirm the events after their effects.

    A page has at most 16 MiB of payloads. It is empty if there is no event or the feed is paused.
    """
    await _find(feed, principal)
    events = await principal.execute(
        calls.read_feed(tenant=principal.tenant, feed=feed, limit=limit)
    )
    cipher = await principal.cipher()
    rows = [
        models.feed_event(event, cipher.seal(_cursor(feed, event.position))) for event in events
    ]
    first = cipher.seal(_cursor(feed, events[0].after)) if events else None
    return models.FeedEventsResponse(position=first, events=rows)


@routes.post(
    "/v1/feeds/{feed}/confirm",
    response_model=models.MovedResponse,
    name="confirm_feed",
    summary="Move a feed behind events that were read",
    **operation("payloads", "no-such-feed", "refused", fenced=True),
)
async def confirm_feed(
    feed: FeedName, body: models.ConfirmRequest, principal: PrincipalDep
) -> models.MovedResponse:
    """Moves only from `after`: of two consumers that confirm one page, one moves the feed."""
    await _find(feed, principal)
    cipher = await principal.cipher()
    start, end = (_position(feed, cipher.open(text)) for text in (body.after, body.to))
    moved = await principal.execute(
        calls.move_feed(tenant=principal.tenant, feed=feed, after=start, to=end, count=body.count)
    )
    return models.MovedResponse(moved=moved)


@routes.post(
    "/v1/feeds/{feed}/pause",
    response_model=models.FeedResponse,
    name="pause_feed",
    summary="Pause a feed: it delivers nothing",
    **operation("operate", "no-such-feed", fenced=True),
)
async def pause_feed(
    feed: FeedName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.FeedResponse:
    """The reason is recorded with the token's name."""
    return await _set_paused(feed, body, principal, request_log, paused=True)


@routes.post(
    "/v1/feeds/{feed}/resume",
    response_model=models.FeedResponse,
    name="resume_feed",
    summary="Resume a paused feed",
    **operation("operate", "no-such-feed", fenced=True),
)
async def resume_feed(
    feed: FeedName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.FeedResponse:
    """It continues where it was paused."""
    return await _set_paused(feed, body, principal, request_log, paused=False)


@routes.post(
    "/v1/feeds/{feed}/rewind",
    response_model=models.FeedResponse,
    name="rewind_feed",
    summary="Deliver events again",
    **operation("operate", "no-such-feed", fenced=True),
)
async def rewind_feed(
    feed: FeedName, body: models.RewindRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.FeedResponse:
    """All events, or those at or after `since`. Their keys stay the same."""
    request_log.add(feed=feed, reason=body.reason)
    await _find(feed, principal)
    await principal.run_steps(
        feeds.change(principal.operations, feed, reason=body.reason, rewind=True, since=body.since)
    )
    return models.feed(await _find(feed, principal, lag=True))


async def _set_paused(
    feed: str,
    body: ReasonRequest,
    principal: Principal,
    request_log: RequestLogDep,
    *,
    paused: bool,
) -> models.FeedResponse:
    request_log.add(feed=feed, reason=body.reason)
    await _find(feed, principal)
    await principal.run_steps(
        feeds.change(principal.operations, feed, reason=body.reason, paused=paused)
    )
    return models.feed(await _find(feed, principal, lag=True))


async def _find(feed: str, principal: Principal, *, lag: bool = False) -> FeedRow:
    """The feed; counts its lag only on demand."""
    rows = await principal.execute(calls.feeds(tenant=principal.tenant, name=feed, lag=lag))
    if not rows or not _permits(principal, rows[0]):
        raise Problem("no-such-feed", f"the tenant has no feed {feed}", got=feed)
    return rows[0]


def _permits(principal: Principal, row: FeedRow) -> bool:
    allowed = principal.grant.queues
    return allowed is None or row.queue in allowed


def _cursor(feed: str, position: object) -> str:
    """A position as text, bound to its feed."""
    if not isinstance(position, FeedPosition):
        raise TypeError("expected a position of the database")
    return f"{_digest(feed)}.{position.xid}.{position.number}.{position.version}"


def _position(feed: str, text: str) -> FeedPosition:
    digest, _, rest = text.partition(".")
    parts = rest.split(".")
    if digest != _digest(feed) or len(parts) != 3:
        raise Problem("refused", f"expected a position of the feed {feed}, got another")
    return FeedPosition(*(int(part) for part in parts))


def _digest(feed: str) -> str:
    return hashlib.sha256(feed.encode()).hexdigest()[:8]
