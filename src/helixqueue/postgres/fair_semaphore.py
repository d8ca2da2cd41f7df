"""A semaphore that serves waiting tenants in rotation.

In order of arrival, a tenant with a thousand requests would be served a thousand times before its
neighbour. And no tenant may hold every permit, because its work may take long: it may wait for a
lock that the same tenant holds.
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
    """For one event loop; it needs no lock because the loop has one thread."""

    def __init__(self, size: int) -> None:
        self._quota = FairQuota(size)
        # Waiting tenants in rotation order. None of them has room in its quota at the moment.
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def permit(self, tenant: str) -> AsyncIterator[None]:
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def try_acquire(self, tenant: str | None) -> bool:
        """Take a permit if one is available without waiting."""
        if tenant in self._waiting or not self._quota.has_room(tenant):
            return False
        self._quota.take(tenant)
        return True

    async def acquire(self, tenant: str | None) -> None:
        if self.try_acquire(tenant):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(tenant)  # granted after the waiter was cancelled
            raise

    def release(self, tenant: str | None) -> None:
        self._quota.give_back(tenant)
        # Usually one waiter gets the permit, sometimes several have room now.
        while any(
            self._quota.has_room(waiting) and self._grant(waiting) for waiting in [*self._waiting]
        ):
            pass

    def _grant(self, tenant: str | None) -> bool:
        """Grant a permit to the tenant's first live waiter and move the tenant to the end."""
        queue = self._waiting.pop(tenant)
        while queue:
            granted = queue.popleft()
            if not granted.done():
                self._quota.take(tenant)
                granted.set_result(None)
                if queue:
                    self._waiting[tenant] = queue
                return True
        return False
