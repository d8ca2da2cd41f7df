"""Feeds: events in order, each delivered together with the consumer's own transaction.

```python
feed = await helix.feed("notify", ledger="dispatch")
async for event in feed:
    async with feed.transaction() as tx:  # your rows and the feed's position: one commit
        await tx.execute("insert into notified values (%s)", (event.key,))
```

`transaction()` returns the connection that has taken the events. A crash rolls back both, and the
next consumer of the feed gets the same events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import ledgers
from helixqueue.errors import Refused
from helixqueue.failpoints import failpoint
from helixqueue.ledger.remote_feed_async import AsyncRemoteFeed
from helixqueue.operations import feeds
from helixqueue.postgres.caller_transaction import translating
from helixqueue.postgres.transaction_bounds import END_OVERDUE, TransactionBound

if TYPE_CHECKING:
    import psycopg

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.instructions import Instructions
    from helixqueue.postgres.database import AsyncDatabase
    from helixqueue.records.ledger import FeedEvent

POLL_SECONDS: Final = 0.2
EFFECT_SECONDS: Final = 60.0
OVERDUE_SECONDS: Final = 5.0  # between two looks of a waiting consumer at overdue transactions
_UNUSED = "expected `async with feed.transaction()` for each event or page of the feed, got none"


class AsyncFeed(AsyncRemoteFeed):
    """A feed of a client that connects to PostgreSQL: `async for event in feed`."""

    def __init__(
        self,
        run: Callable[[Instructions[Any]], Awaitable[Any]],
        operations: Operations,
        name: str,
        connection: Callable[[], AbstractAsyncContextManager[AsyncDatabase]],
    ) -> None:
        super().__init__(run, operations, name)
        self._connection = connection
        self._open: psycopg.AsyncConnection[Any] | None = None

    async def hold(self, holder: str, seconds: float) -> bool:
        """Hold the feed for a process that runs a program; False if another process holds it."""
        held: bool = await self._run(feeds.hold(self._operations, self.name, holder, seconds))
        return held

    def __aiter__(self) -> AsyncIterator[FeedEvent]:
        """Wait for events and yield them one at a time, without end."""
        return self.events()

    async def events(
        self, *, until_idle: bool = False, effect_seconds: float = EFFECT_SECONDS
    ) -> AsyncIterator[FeedEvent]:
        """Yield one event at a time; with `until_idle`, until there is none."""
        async for page in self.pages(1, until_idle=until_idle, effect_seconds=effect_seconds):
            yield page[0]

    async def pages(
        self,
        size: int = 500,
        *,
        until_idle: bool = False,
        effect_seconds: float = EFFECT_SECONDS,
    ) -> AsyncIterator[list[FeedEvent]]:
        """Yield up to `size` events at a time: one transaction for each page."""
        take = ledgers.take_feed(
            tenant=self._operations.tenant, feed=self.name, limit=feeds.demand_page(size)
        )
        limits = TransactionBound(silent=effect_seconds).call()
        look_at = monotonic() + OVERDUE_SECONDS
        while True:
            async with self._connection() as database:
                await database.connection.set_autocommit(False)
                try:
                    await database.run(limits)
                    page = await database.run(take)
                    if page:
                        failpoint("feed.taken")
                        self._open = database.connection
                        yield page
                        if self._open is not None:
                            raise Refused(_UNUSED)
                finally:
                    self._open = None
                    if not database.connection.closed:
                        await database.connection.rollback()
                        await database.connection.set_autocommit(True)
                if not page and monotonic() > look_at:
                    await database.run(END_OVERDUE)  # another consumer may have frozen
                    look_at = monotonic() + OVERDUE_SECONDS
            if not page:
                if until_idle:
                    return
                await asyncio.sleep(POLL_SECONDS)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """Run your statements in the transaction that has taken the events, then commit it."""
        connection, self._open = self._open, None
        if connection is None:
            raise Refused("expected an event of the feed first: async for event in feed")
        try:
            with translating():
                yield connection
                failpoint("feed.effect")
                await connection.commit()
        except BaseException:
            if not connection.closed:
                await connection.rollback()
            raise
        failpoint("feed.committed")
