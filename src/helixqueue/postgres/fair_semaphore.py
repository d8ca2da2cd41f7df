"""So many at a time; who has to wait is served by turns, one of each tenant after the other.

In the order of their coming, a tenant that asks a thousand things at once would be served a
thousand times before its neighbour is served once. And no tenant has all of them, because what it
asks may take long: it may wait for a lock that the same tenant holds.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from helixqueue.postgres.fair_quota import FairQuota

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FairSemaphore:
    """Of one event loop, whose one thread is all the lock that it needs."""

    def __init__(self, size: int) -> None:
        self._shares = FairQuota(size)
        # Whoever waits; whose turn it is stands first. Each of them has no room at the moment.
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def take_at_once(self, tenant: str | None) -> bool:
        """Whether there was one that nobody has to wait for."""
        if tenant in self._waiting or not self._shares.has_room(tenant):
            return False
        self._shares.take(tenant)
        return True

    async def acquire(self, tenant: str | None) -> None:
        if self.take_at_once(tenant):
            return
        handed = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(handed)
        try:
            await handed
        except asyncio.CancelledError:
            if handed.done() and not handed.cancelled():
                self.release(tenant)  # it came when nobody was there to take it any more
            raise

    def release(self, tenant: str | None) -> None:
        self._shares.give_back(tenant)
        while any(self._shares.has_room(one) and self._hand_to(one) for one in [*self._waiting]):
            pass  # mostly one more has room, sometimes another

    def _hand_to(self, tenant: str | None) -> bool:
        """To the first of them who still waits; the others' next turn is behind everybody's."""
        queue = self._waiting.pop(tenant)
        while queue:
            handed = queue.popleft()
            if not handed.done():
                self._shares.take(tenant)
                handed.set_result(None)
                if queue:
                    self._waiting[tenant] = queue
                return True
        return False
