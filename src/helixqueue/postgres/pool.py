"""Connections to share: few, bounded, and replaced when they break. No thread of its own.

Why not psycopg_pool: it keeps worker threads, which a fork loses, and while a server is away it
answers with its own timeout instead of what the server said. Here a connection is made by whoever
needs it and its error is theirs (docs/decisions/0010-connection-pool.md).

What a pool holds belongs to one process, and to one event loop: a forked child or the next
`asyncio.run` starts with an empty one. An inherited connection is never used or closed, because
its server would hear that from the wrong side of the fork.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from helixqueue.errors import HelixError, Unavailable
from helixqueue.postgres.database import AsyncDatabase, Database, is_fit
from helixqueue.postgres.fair_semaphore import FairSemaphore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

CLOSED = "this client was closed; make another one"


class _Shelf:
    """What one process has: idle connections, last used on top, and the right to have more."""

    def __init__(self, size: int) -> None:
        self.idle: list[Database] = []
        self.places = threading.BoundedSemaphore(size)


class Pool:
    """At most `size` connections at a time, for any number of threads."""

    def __init__(self, connect: Callable[[], Database], *, size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._size = size
        self._wait_seconds = wait_seconds
        self._shelves: dict[int, _Shelf] = {}
        self._closed = False

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Lend a connection; one that failed is not lent again."""
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # repeating it is of no use
        shelf = self._shelves.get(os.getpid())
        if shelf is None:
            shelf = self._shelves.setdefault(os.getpid(), _Shelf(self._size))
        if not shelf.places.acquire(timeout=self._wait_seconds):
            raise _too_many(self._size, self._wait_seconds)
        try:
            database = _rested(shelf.idle) or self._connect()
            try:
                yield database
            except Unavailable:
                database.close()
                raise
            finally:
                if self._closed or not is_fit(database.connection):
                    database.close()
                else:
                    shelf.idle.append(database)
        finally:
            shelf.places.release()

    def close(self) -> None:
        """Close what rests here; what is lent is closed when it comes back."""
        self._closed = True
        shelf = self._shelves.get(os.getpid())
        while shelf and shelf.idle:
            shelf.idle.pop().close()


def _rested(idle: list[Database]) -> Database | None:
    while idle:
        database = idle.pop()
        if is_fit(database.connection):
            return database
        database.close()
    return None


class _AsyncShelf:
    """The same for one event loop of one process."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.idle: list[AsyncDatabase] = []
        self.places = FairSemaphore(size)
        self.loop = loop


class AsyncPool:
    """At most `size` connections at a time, for any number of tasks."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncDatabase]], *, size: int, wait_seconds: float
    ) -> None:
        self._connect = connect
        self._size = size
        self._wait_seconds = wait_seconds
        self._shelves: dict[tuple[int, int], _AsyncShelf] = {}
        self._closed = False

    @asynccontextmanager
    async def database(self, tenant: str | None = None) -> AsyncIterator[AsyncDatabase]:
        """Lend a connection; where many tenants ask, naming one keeps it to its share and turn."""
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # repeating it is of no use
        shelf = self._shelf()
        if not shelf.places.take_at_once(tenant):  # a timer for nothing is dear
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await shelf.places.acquire(tenant)
            except TimeoutError:
                raise _too_many(self._size, self._wait_seconds) from None
        try:
            database = await _rested_async(shelf.idle) or await self._connect()
            try:
                yield database
            except Unavailable:
                await database.close()
                raise
            finally:
                if self._closed or not is_fit(database.connection):
                    await database.close()
                else:
                    shelf.idle.append(database)
        finally:
            shelf.places.release(tenant)

    async def close(self) -> None:
        self._closed = True
        self._clear_ended()
        idle = self._shelf().idle
        while idle:
            await idle.pop().close()

    def _shelf(self) -> _AsyncShelf:
        loop = asyncio.get_running_loop()
        mine = self._shelves.get((os.getpid(), id(loop)))
        # A new loop may stand where an ended one stood, under the same id.
        if mine is not None and mine.loop is loop:
            return mine
        self._clear_ended()
        return self._shelves.setdefault((os.getpid(), id(loop)), _AsyncShelf(self._size, loop))

    def _clear_ended(self) -> None:
        """Close what loops that have ended left behind; nobody else ever would."""
        for key, shelf in list(self._shelves.items()):
            if key[0] == os.getpid() and shelf.loop.is_closed():
                del self._shelves[key]
                for database in shelf.idle:
                    database.connection.pgconn.finish()


async def _rested_async(idle: list[AsyncDatabase]) -> AsyncDatabase | None:
    while idle:
        database = idle.pop()
        if is_fit(database.connection):
            return database
        await database.close()
    return None


def _too_many(size: int, seconds: float) -> HelixError:
    return Unavailable(
        f"expected one of {size} connections within {seconds:g} s, and none was free; "
        "allow more, or ask with fewer threads or tasks at a time"
    )
