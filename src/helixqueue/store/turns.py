"""So many at a time; who has to wait is served by turns, one of each tenant after the other.

In the order of their coming, a tenant that asks a thousand things at once would be served a
thousand times before its neighbour is served once. Nothing is set aside for anybody: a tenant that
is alone has all of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Turns:
    """Of one event loop, whose one thread is all the lock that it needs."""

    def __init__(self, size: int) -> None:
        self._free = size
        # Whoever waits; whose turn it is stands first. While one is free, nobody does.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, whose: str) -> AsyncIterator[None]:
        await self.acquire(whose)
        try:
            yield
        finally:
            self.release()

    def locked(self) -> bool:
        return self._free == 0

    async def acquire(self, whose: str) -> None:
        if self._free:
            self._free -= 1
            return
        handed = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(handed)
        try:
            await handed
        except asyncio.CancelledError:
            if handed.done() and not handed.cancelled():
                self.release()  # it came when nobody was there to take it any more
            raise

    def release(self) -> None:
        """Hand it to the next, or put it back."""
        while self._waiting:
            whose, queue = next(iter(self._waiting.items()))
            handed = queue.popleft()
            if queue:
                self._waiting.move_to_end(whose)
            else:
                del self._waiting[whose]
            if not handed.done():  # else it stopped waiting
                handed.set_result(None)
                return
        self._free += 1
