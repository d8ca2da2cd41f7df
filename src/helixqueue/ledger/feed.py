# Generated from feed_async.py by `make twins`: change that file.
"""Feeds: events in order, each delivered together with the consumer's own transaction.

```python
feed = helix.feed("notify", ledger="dispatch")
for event in feed:
    with feed.transaction() as tx:  # your rows and the feed's position: one commit
        tx.execute("insert into notified values (%s)", (event.key,))
```

`transaction()` returns the connection that has taken the events. A crash rolls back both, and the
next consumer of the feed gets the same events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import ledgers
from helixqueue.errors import Refused
from helixqueue.failpoints import failpoint
from helixqueue.ledger.remote_feed import RemoteFeed
from helixqueue.operations import feeds
from helixqueue.postgres.caller_transaction import translating
from helixqueue.postgres.transaction_bounds import END_OVERDUE, TransactionBound

if TYPE_CHECKING:
    import psycopg

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.postgres.database import Database
    from helixqueue.records.ledger import FeedEvent

POLL_SECONDS: Final = 0.2
EFFECT_SECONDS: Final = 60.0
OVERDUE_SECONDS: Final = 5.0  # between two looks of a waiting consumer at overdue transactions
_UNUSED = "expected `with feed.transaction()` for each event or page of the feed, got none"


class Feed(RemoteFeed):
    """A feed of a client that connects to PostgreSQL: `for event in feed`."""

    def __init__(
        self,
        run: Callable[[Instructions[Any]], Any],
        operations: Operations,
        name: str,
        connection: Callable[[], AbstractContextManager[Database]],
    ) -> None:
        super().__init__(run, operations, name)
        self._connection = connection
        self._open: psycopg.Connection[Any] | None = None

    def hold(self, holder: str, seconds: float) -> bool:
        """Hold the feed for a process that runs a program; False if another process holds it."""
        held: bool = self._run(feeds.hold(self._operations, self.name, holder, seconds))
        return held

    def __iter__(self) -> Iterator[FeedEvent]:
        """Wait for events and yield them one at a time, without end."""
        return self.events()

    def events(
        self, *, until_idle: bool = False, effect_seconds: float = EFFECT_SECONDS
    ) -> Iterator[FeedEvent]:
        """Yield one event at a time; with `until_idle`, until there is none."""
        for page in self.pages(1, until_idle=until_idle, effect_seconds=effect_seconds):
            yield page[0]

    def pages(
        self,
        size: int = 500,
        *,
        until_idle: bool = False,
        effect_seconds: float = EFFECT_SECONDS,
    ) -> Iterator[list[FeedEvent]]:
        """Yield up to `size` events at a time: one transaction for each page."""
        take = ledgers.take_feed(
            tenant=self._operations.tenant, feed=self.name, limit=feeds.demand_page(size)
        )
        limits = TransactionBound(silent=effect_seconds).call()
        look_at = monotonic() + OVERDUE_SECONDS
        while True:
            with self._connection() as database:
                database.connection.set_autocommit(False)
                try:
                    database.run(limits)
                    page = database.run(take)
                    if page:
                        failpoint("feed.taken")
                        self._open = database.connection
                        yield page
                        if self._open is not None:
                            raise Refused(_UNUSED)
                finally:
                    self._open = None
                    if not database.connection.closed:
                        database.connection.rollback()
                        database.connection.set_autocommit(True)
                if not page and monotonic() > look_at:
                    database.run(END_OVERDUE)  # another consumer may have frozen
                    look_at = monotonic() + OVERDUE_SECONDS
            if not page:
                if until_idle:
                    return
                time.sleep(POLL_SECONDS)

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Run your statements in the transaction that has taken the events, then commit it."""
        connection, self._open = self._open, None
        if connection is None:
            raise Refused("expected an event of the feed first: for event in feed")
        try:
            with translating():
                yield connection
                failpoint("feed.effect")
                connection.commit()
        except BaseException:
            if not connection.closed:
                connection.rollback()
            raise
        failpoint("feed.committed")
