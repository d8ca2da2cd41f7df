"""Connection pools: bounded, without threads of their own; broken connections are replaced.

Why not psycopg_pool: it keeps worker threads, which a fork loses, and while a server is unreachable
it raises its own timeout instead of the server's error. Here the caller that needs a connection
opens it and gets its error (docs/decisions, 0010).

Idle connections belong to one process and one event loop: a forked child or the next `asyncio.run`
starts with none. A connection inherited by a fork is never used or closed, because the parent still
uses the same socket.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from helixqueue.errors import HelixError, Unavailable
from helixqueue.postgres.database import AsyncDatabase, Database, is_idle, is_usable
from helixqueue.postgres.fairness import FairSemaphore

CLOSED = "this client was closed; create a new one"


class _ProcessState:
    """The idle connections of one process, last used on top, and the permits for more."""

    def __init__(self, size: int) -> None:
        self.idle: list[Database] = []
        self.permits = threading.BoundedSemaphore(size)


class Pool:
    """At most `size` connections at a time, for any number of threads."""

    def __init__(self, connect: Callable[[], Database], *, size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._size = size
        self._wait_seconds = wait_seconds
        self._states: dict[int, _ProcessState] = {}
        self._closed = False

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Lend a connection; a connection that failed is closed."""
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # a repeat cannot succeed
        state = self._states.get(os.getpid())
        if state is None:
            state = self._states.setdefault(os.getpid(), _ProcessState(self._size))
        if not state.permits.acquire(timeout=self._wait_seconds):
            raise _exhausted(self._size, self._wait_seconds)
        try:
            database = _take_idle(state.idle) or self._connect()
            try:
                yield database
            except Unavailable:
                database.close()
                raise
            finally:
                if self._closed or not is_idle(database.connection):
                    database.close()
                else:
                    state.idle.append(database)
        finally:
            state.permits.release()

    def close(self) -> None:
        """Close idle connections; lent ones are closed when they are returned."""
        self._closed = True
        state = self._states.get(os.getpid())
        while state and state.idle:
            state.idle.pop().close()


def _take_idle(idle: list[Database]) -> Database | None:
    while idle:
        database = idle.pop()
        if is_usable(database.connection):
            return database
        database.close()
    return None


class _LoopState:
    """The same for one event loop of one process."""

    def __init__(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self.idle: list[AsyncDatabase] = []
        self.permits = FairSemaphore(size)
        self.loop = loop


class AsyncPool:
    """At most `size` connections at a time, for any number of tasks."""

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncDatabase]], *, size: int, wait_seconds: float
    ) -> None:
        self._connect = connect
        self._size = size
        self._wait_seconds = wait_seconds
        self._states: dict[tuple[int, int], _LoopState] = {}
        self._closed = False

    @asynccontextmanager
    async def database(self, tenant: str | None = None) -> AsyncIterator[AsyncDatabase]:
        """Lend a connection; `tenant` limits each tenant to its fair share of them."""
        if self._closed:
            raise Unavailable(CLOSED, retry_after=math.inf)  # a repeat cannot succeed
        state = self._state()
        if not state.permits.try_acquire(tenant):  # saves the cost of a timer
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await state.permits.acquire(tenant)
            except TimeoutError:
                raise _exhausted(self._size, self._wait_seconds) from None
        try:
            database = await _take_idle_async(state.idle) or await self._connect()
            try:
                yield database
            except Unavailable:
                await database.close()
                raise
            finally:
                if self._closed or not is_idle(database.connection):
                    await database.close()
                else:
                    state.idle.append(database)
        finally:
            state.permits.release(tenant)

    async def close(self) -> None:
        self._closed = True
        self._close_ended()
        idle = self._state().idle
        while idle:
            await idle.pop().close()

    def _state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        state = self._states.get((os.getpid(), id(loop)))
        # A new loop can have the id of one that ended.
        if state is not None and state.loop is loop:
            return state
        self._close_ended()
        return self._states.setdefault((os.getpid(), id(loop)), _LoopState(self._size, loop))

    def _close_ended(self) -> None:
        """Close the connections of loops that have ended."""
        for key, state in list(self._states.items()):
            if key[0] == os.getpid() and state.loop.is_closed():
                del self._states[key]
                for database in state.idle:
                    database.connection.pgconn.finish()


async def _take_idle_async(idle: list[AsyncDatabase]) -> AsyncDatabase | None:
    while idle:
        database = idle.pop()
        if is_usable(database.connection):
            return database
        await database.close()
    return None


def _exhausted(size: int, seconds: float) -> HelixError:
    return Unavailable(
        f"expected a free connection within {seconds:g} s, but all {size} are in use; "
        "raise the limit, or use fewer threads or tasks"
    )
