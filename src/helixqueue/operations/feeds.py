"""Operations of feeds, as steps without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helixqueue.errors import Refused
from helixqueue.identity import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.records.ledger import FeedEvent, FeedRow

PAGE_MAX: Final = 10_000
ALL_QUEUES: Final = "*"


def declare(
    operations: Operations, feed: str, *, ledger: str | None, queue: str | None, start: str
) -> Steps[None]:
    """Create the feed; without a source it must exist."""
    check_name("feed", feed)
    if start not in {"beginning", "now"}:
        raise Refused(f"start: expected 'beginning' or 'now', got {start!r}")
    if ledger is not None and queue is not None:
        raise Refused("expected a ledger or a queue, got both")
    if ledger is None and queue is None:
        yield from status(operations, feed)
        return
    yield from operations.ask(
        operations.call_set.ledgers.declare_feed(
            tenant=operations.tenant,
            feed=feed,
            ledger=ledger,
            queue=None if queue == ALL_QUEUES else queue,
            now=start == "now",
            actor=operations.actor,
        )
    )


def demand_page(size: int) -> int:
    if not isinstance(size, int) or not 1 <= size <= PAGE_MAX:
        raise Refused(f"expected a page of 1 to {PAGE_MAX} events, got {size!r}")
    return size


def read(operations: Operations, feed: str, limit: int) -> Steps[list[FeedEvent]]:
    return operations.ask(
        operations.call_set.ledgers.read_feed(
            tenant=operations.tenant, feed=feed, limit=demand_page(limit)
        )
    )


def confirm(operations: Operations, feed: str, events: Sequence[FeedEvent]) -> Steps[bool]:
    if not events:
        return True
    calls = operations.call_set.ledgers
    call = calls.advance_feed(tenant=operations.tenant, feed=feed, events=events)
    moved: bool = yield from operations.ask(call)
    return moved


def hold(operations: Operations, feed: str, holder: str, seconds: float) -> Steps[bool]:
    """Hold the feed for one process that runs a program; False if another one holds it."""
    calls = operations.call_set.ledgers
    call = calls.hold_feed(tenant=operations.tenant, feed=feed, holder=holder, seconds=seconds)
    held: bool = yield from operations.ask(call)
    return held


def change(
    operations: Operations,
    feed: str,
    *,
    reason: str,
    paused: bool | None = None,
    rewind: bool = False,
    since: datetime | None = None,
) -> Steps[None]:
    return operations.ask(
        operations.call_set.ledgers.set_feed(
            tenant=operations.tenant,
            feed=feed,
            reason=reason,
            paused=paused,
            rewind=rewind,
            since=since,
            actor=operations.actor,
        )
    )


def status(operations: Operations, feed: str) -> Steps[FeedRow]:
    rows: list[FeedRow] = yield from operations.ask(
        operations.call_set.ledgers.feeds(tenant=operations.tenant, name=feed)
    )
    if not rows:
        raise Refused(
            f"no feed {feed!r}: declare it with helix.feed({feed!r}, ledger=...) or queue=..."
        )
    return rows[0]
