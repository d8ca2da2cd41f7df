# Generated from remote_feed_async.py by `make twins`: change that file.
"""Feeds without a transaction: the consumer reads events, and confirms them after its effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from helixqueue.operations import feeds

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.records.ledger import FeedEvent, FeedRow
    from helixqueue.records.page import Page


class RemoteFeed:
    """A feed whose consumer confirms events itself: its effects are not in the database."""

    def __init__(
        self, run: Callable[[Instructions[Any]], Any], operations: Operations, name: str
    ) -> None:
        self._run, self._operations, self.name = run, operations, name

    def declare(self, *, ledger: str | None, queue: str | None, start: str) -> None:
        """Create the feed; without a source it must exist."""
        self._run(
            feeds.declare(self._operations, self.name, ledger=ledger, queue=queue, start=start)
        )

    def read(self, limit: int = 100) -> list[FeedEvent]:
        """Return the next events without moving the feed."""
        page: Page[FeedEvent] = self._run(feeds.read_feed(self._operations, self.name, limit=limit))
        return list(page.rows)

    def confirm(self, events: Sequence[FeedEvent]) -> bool:
        """Move the feed behind these events; False if it is not where they were read any more.

        Run their effects behind a fence, with the key of the event.
        """
        moved: bool = self._run(feeds.confirm(self._operations, self.name, events))
        return moved

    def pause(self, reason: str) -> None:
        """Deliver nothing until `resume`."""
        self._run(feeds.pause_feed(self._operations, self.name, reason=reason))

    def resume(self, reason: str) -> None:
        self._run(feeds.resume_feed(self._operations, self.name, reason=reason))

    def rewind(self, reason: str, since: datetime | None = None) -> None:
        """Deliver again: all events, or those at or after `since`."""
        self._run(feeds.rewind_feed(self._operations, self.name, reason=reason, since=since))

    def status(self) -> FeedRow:
        """Return the feed's position and how far it is behind."""
        row: FeedRow = self._run(feeds.show_feed(self._operations, self.name))
        return row
