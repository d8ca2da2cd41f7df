"""Shares a fixed number of slots between tenants.

A tenant may hold at most three times as many slots as are free after it takes one. A single tenant
gets three quarters of all slots. A second tenant finds a quarter free, gets three quarters of that
at once, and more as the first returns its slots, until both hold the same number; likewise for a
third.

Reserving half for each would take more from a single tenant, which is the most common deployment,
and two tenants could lock out a third. Revoking slots when another tenant arrives would waste
none, but not everything that is counted here can be interrupted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FREE_FACTOR: Final = 3


class FairQuota:
    """Counts the slots of each tenant. The tenant None stands for internal use: it may hold all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self.by_tenant: Counter[str | None] = Counter()

    def take(self, tenant: str | None) -> bool:
        """Take one more if the tenant may; its first whenever a slot is free."""
        held, free = self.by_tenant[tenant], self.size - self.taken - 1
        is_limited = tenant is not None and held
        if free < 0 or (is_limited and held + 1 > FREE_FACTOR * free):
            return False
        self.by_tenant[tenant] = held + 1
        self.taken += 1
        return True

    def give_back(self, tenant: str | None) -> None:
        self.taken -= 1
        self.by_tenant[tenant] -= 1
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]  # keeps the counter small as tenants come and go


class FairSemaphore:
    """Serves waiting tenants in rotation.

    In order of arrival, a tenant with a thousand requests would be served a thousand times before
    its neighbour. And no tenant may hold every permit, because its work may take long: it may wait
    for a lock that the same tenant holds.

    For one event loop; it needs no lock because the loop has one thread.
    """

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
        return tenant not in self._waiting and self._quota.take(tenant)

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
        while self._waiting and any(map(self._grant, [*self._waiting])):
            pass

    def _grant(self, tenant: str | None) -> bool:
        """Grant a permit to the tenant's first live waiter and move the tenant to the end."""
        if not self._quota.take(tenant):
            return False
        queue = self._waiting.pop(tenant)
        while queue:
            granted = queue.popleft()
            if not granted.done():
                granted.set_result(None)
                if queue:
                    self._waiting[tenant] = queue
                return True
        self._quota.give_back(tenant)
        return False
