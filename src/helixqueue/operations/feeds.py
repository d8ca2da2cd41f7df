"""Operations of feeds.

A consumer over HTTP cannot commit its effect together with the position of the feed. It reads a
page, runs the effects with the keys of the events as idempotency keys, and confirms the page. An
event that was not confirmed is delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

from helixqueue.errors import NoSuchFeed, NoSuchLedger, Refused
from helixqueue.operations import engine, ledgers
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.ledgers import LedgerName
from helixqueue.operations.operation import operation
from helixqueue.records.ledger import FeedEvent, FeedMoved, FeedRow, Position
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    MAX_PAGE,
    NAME_PATTERN,
    Cursor,
    Limit,
    Param,
    QueueName,
    Reason,
    aware,
)

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations

PAGE_MAX: Final = 10_000  # events that one transaction takes
ALL_QUEUES: Final = "*"
FeedName = Annotated[
    str, Param("Name of the feed.", "notify", pattern=NAME_PATTERN, metavar="FEED")
]
Start = Annotated[
    Literal["beginning", "now"],
    Param("Where a new feed starts; an existing one stays where it is."),
]
Since = Annotated[
    datetime, Param("Events at or after this time; default: all.", check=aware, metavar="TIME")
]
Count = Annotated[int, Param("Number of events.", 1, least=1, most=MAX_PAGE)]


@operation("GET /v1/feeds", scope="read")
def list_feeds(
    operations: Operations, *, after: Cursor | None = None, limit: Limit = 50
) -> Instructions[Page[FeedRow]]:
    """List feeds and how far they are behind.

    Sorted by name; `lag` stops at 10,000 events. A token that is restricted to queues sees the
    feeds of those queues.
    """
    page = yield from operations.ask(
        engine.ledgers.feeds(tenant=operations.tenant or None, after=after, limit=limit)
    )
    return Page(tuple(row for row in page.rows if operations.may_use(row.queue)), page.next)


@operation("GET /v1/feeds/{feed}", scope="read", raises=[NoSuchFeed])
def show_feed(operations: Operations, feed: FeedName) -> Instructions[FeedRow]:
    """Show a feed and how far it is behind.

    `lag` is the number of events after its position; at most 10,000 are counted.
    """
    return (yield from _find(operations, feed, lag=True))


@operation("PUT /v1/feeds/{feed}", scope="payloads", raises=[NoSuchLedger, Refused], fenced=True)
def declare_feed(
    operations: Operations,
    feed: FeedName,
    *,
    ledger: LedgerName | None = None,
    queue: QueueName | None = None,
    start: Start = "beginning",
) -> Instructions[FeedRow]:
    """Declare a feed over a ledger, or over the batches of one queue or of all queues.

    An existing feed of the same source stays where it is.
    """
    if ledger is not None and queue is not None:
        raise Refused("expected a ledger or a queue, got both")
    if queue is None:
        ledgers.require_all_queues(operations)
    else:
        operations.require_queue(queue)
    if ledger is not None:
        yield from ledgers.show_ledger(operations, ledger)
    yield from operations.ask(
        engine.ledgers.declare_feed(
            tenant=operations.tenant,
            feed=feed,
            ledger=ledger,
            queue=queue,
            now=start == "now",
            actor=operations.actor,
        )
    )
    return (yield from _find(operations, feed, lag=True))


@operation("GET /v1/feeds/{feed}/events", scope="payloads", raises=[NoSuchFeed])
def read_feed(
    operations: Operations, feed: FeedName, *, limit: Limit = 100
) -> Instructions[Page[FeedEvent]]:
    """Read the next events of a feed.

    Does not move the feed: confirm the events after their effects. A page has at most 16 MiB of
    payloads. It is empty if there is no event or the feed is paused; `next` is always null.
    """
    yield from _require_queue(operations, feed)
    events = yield from operations.ask(
        engine.ledgers.read_feed(tenant=operations.tenant, feed=feed, limit=limit)
    )
    if not events:
        yield from _find(operations, feed)
    return Page(tuple(events), None)


@operation(
    "POST /v1/feeds/{feed}/confirm", scope="payloads", raises=[NoSuchFeed, Refused], fenced=True
)
def confirm_feed(
    operations: Operations, feed: FeedName, *, after: Position, to: Position, count: Count
) -> Instructions[FeedMoved]:
    """Move a feed behind events that were read.

    From `after` of the first event to `position` of the last one. The feed moves only if it is at
    `after`: of two consumers that confirm one page, one moves it.
    """
    yield from _require_queue(operations, feed)
    moved = yield from operations.ask(
        engine.ledgers.advance_feed(
            tenant=operations.tenant, feed=feed, after=after, to=to, count=count
        )
    )
    if not moved:
        yield from _find(operations, feed)
    return FeedMoved(moved)


@operation("POST /v1/feeds/{feed}/pause", scope="operate", raises=[NoSuchFeed], fenced=True)
def pause_feed(operations: Operations, feed: FeedName, *, reason: Reason) -> Instructions[FeedRow]:
    """Deliver nothing until the feed is resumed.

    The reason is recorded.
    """
    return (yield from _change(operations, feed, reason, paused=True))


@operation("POST /v1/feeds/{feed}/resume", scope="operate", raises=[NoSuchFeed], fenced=True)
def resume_feed(operations: Operations, feed: FeedName, *, reason: Reason) -> Instructions[FeedRow]:
    """Deliver the events of a paused feed again.

    It continues where it was paused.
    """
    return (yield from _change(operations, feed, reason, paused=False))


@operation("POST /v1/feeds/{feed}/rewind", scope="operate", raises=[NoSuchFeed], fenced=True)
def rewind_feed(
    operations: Operations, feed: FeedName, *, reason: Reason, since: Since | None = None
) -> Instructions[FeedRow]:
    """Deliver events again, with the same keys.

    An effect behind a fence, as of `feed run`, does not take place again.
    """
    return (yield from _change(operations, feed, reason, rewind=True, since=since))


def _change(
    operations: Operations,
    feed: str,
    reason: str,
    *,
    paused: bool | None = None,
    rewind: bool = False,
    since: datetime | None = None,
) -> Instructions[FeedRow]:
    yield from _find(operations, feed)
    yield from operations.ask(
        engine.ledgers.set_feed(
            tenant=operations.tenant,
            feed=feed,
            reason=reason,
            paused=paused,
            rewind=rewind,
            since=since,
            actor=operations.actor,
        )
    )
    return (yield from _find(operations, feed, lag=True))


def _find(operations: Operations, feed: str, *, lag: bool = False) -> Instructions[FeedRow]:
    """The feed; counts its lag only on demand."""
    page = yield from operations.ask(
        engine.ledgers.feeds(tenant=operations.tenant, name=feed, lag=lag)
    )
    if not page.rows or not operations.may_use(page.rows[0].queue):
        raise NoSuchFeed(
            f"no feed {feed!r}: declare it with helix.feed({feed!r}, ledger=...) or queue=..."
        )
    return page.rows[0]


def _require_queue(operations: Operations, feed: str) -> Instructions[None]:
    """A token that is restricted to queues may use feeds of those."""
    if not operations.may_use(None):
        yield from _find(operations, feed)


def declare(
    operations: Operations, feed: str, *, ledger: str | None, queue: str | None, start: str
) -> Instructions[None]:
    """Create the feed; without a source it must exist."""
    if ledger is None and queue is None:
        yield from show_feed(operations, feed)
        return
    source = None if queue == ALL_QUEUES else queue
    yield from declare_feed(operations, feed, ledger=ledger, queue=source, start=start)  # type: ignore[arg-type]  # checked there


def confirm(operations: Operations, feed: str, events: Sequence[FeedEvent]) -> Instructions[bool]:
    """Move a feed behind these events; False if it is not where they were read any more."""
    if not events:
        return True
    after, to = events[0].after, events[-1].position
    answer = yield from confirm_feed(operations, feed, after=after, to=to, count=len(events))
    return answer.moved


def demand_page(size: int) -> int:
    if not isinstance(size, int) or not 1 <= size <= PAGE_MAX:
        raise Refused(f"expected a page of 1 to {PAGE_MAX} events, got {size!r}")
    return size


def hold(operations: Operations, feed: str, holder: str, seconds: float) -> Instructions[bool]:
    """Hold the feed for one process that runs a program; False if another one holds it."""
    return operations.ask(
        engine.ledgers.hold_feed(
            tenant=operations.tenant, feed=feed, holder=holder, seconds=seconds
        )
    )
