"""Shares a fixed number of slots between tenants: connections, threads, bytes, processor time.

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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

FREE_FACTOR: Final = 3


class FairQuota:
    """Counts the slots of each tenant. The tenant None stands for internal use: it may hold all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self.by_tenant: Counter[str | None] = Counter()

    def take(self, tenant: str | None, slots: int = 1) -> bool:
        """Take more if the tenant may; its first whenever so many slots are free."""
        held, free = self.by_tenant[tenant], self.size - self.taken - slots
        is_limited = tenant is not None and held
        if free < 0 or (is_limited and held + slots > FREE_FACTOR * free):
            return False
        self.by_tenant[tenant] = held + slots
        self.taken += slots
        return True

    def give_back(self, tenant: str | None, slots: int = 1) -> None:
        self.taken -= slots
        self.by_tenant[tenant] -= slots
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
        # Waiting tenants in rotation order, each with its waiters and the permits that they need.
        # None of them has room in its quota at the moment.
        self._waiting: OrderedDict[str | None, deque[tuple[asyncio.Future[None], int]]] = (
            OrderedDict()
        )
        # A tenant without any permit waits for more than are free. No other tenant
        # gets one until then; otherwise small requests could go before a large one without end.
        self._is_reserved = False

    @property
    def size(self) -> int:
        return self._quota.size

    @property
    def taken(self) -> int:
        return self._quota.taken

    @asynccontextmanager
    async def permit(self, tenant: str) -> AsyncIterator[None]:
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def try_acquire(self, tenant: str | None, permits: int = 1) -> bool:
        """Take permits if they are available without waiting."""
        return (
            not self._is_reserved
            and tenant not in self._waiting
            and self._quota.take(tenant, permits)
        )

    async def acquire(self, tenant: str | None, permits: int = 1) -> None:
        """Take permits, at most `size`; waits for them."""
        if self.try_acquire(tenant, permits):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append((granted, permits))
        self._is_reserved = self._is_reserved or not self._quota.by_tenant[tenant]
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(tenant, permits)  # granted after the waiter was cancelled
            raise

    def release(self, tenant: str | None, permits: int = 1) -> None:
        self._quota.give_back(tenant, permits)
        # Usually one waiter gets the permit, sometimes several have room now.
        is_granted = True
        while is_granted:
            is_granted = self._is_reserved = False
            for waiting in [*self._waiting]:
                is_granted = self._grant(waiting) or is_granted
                if waiting in self._waiting and not self._quota.by_tenant[waiting]:
                    self._is_reserved = True
                    break

    def _grant(self, tenant: str | None) -> bool:
        """Grant permits to the tenant's first live waiter and move the tenant to the end."""
        queue = self._waiting[tenant]
        while queue and queue[0][0].done():
            queue.popleft()
        if not queue:
            del self._waiting[tenant]
            return False
        granted, permits = queue[0]
        if not self._quota.take(tenant, permits):
            return False
        granted.set_result(None)
        queue.popleft()
        del self._waiting[tenant]
        if queue:
            self._waiting[tenant] = queue
        return True
