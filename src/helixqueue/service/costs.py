"""What requests cost: tenants share the time of the event loop, and the memory of bodies.

A request states its cost before its work begins, estimated from its bytes. Costs are permits of a
fair semaphore: a tenant's requests wait behind its own, and those of other tenants pass them.
"""

from __future__ import annotations

import asyncio
from typing import Final

from helixqueue.postgres.fairness import FairSemaphore
from helixqueue.service.problems import Problem

# Processor time that is granted at once; then the event loop serves its connections.
PASS_MICROSECONDS: Final = 4_000
REQUEST_MICROSECONDS: Final = 500  # of a request with a small body
PAGE_MICROSECONDS: Final = PASS_MICROSECONDS
# The tenants of requests without a valid token. Names of tenants have no brackets.
ANONYMOUS, HEALTH = "(anonymous)", "(health)"
# Longer work runs in a thread (compute_threads.py).
MAX_LOOP_MICROSECONDS: Final = 5_000
_SMALL_BODY: Final = 512
_SMALL_RESPONSE: Final = 64 * 1024
# What a process uses before it has read a body, and what is not in the estimates below.
BASE_BYTES: Final = 192 * 1024 * 1024
_COUNTED_FROM: Final = 1024  # smaller bodies are bounded by the number of requests
_VALUE_BYTES: Final = 256  # of a value: the object, its place in a container, and its copies
_TEXT_FACTOR: Final = 8  # the body as it arrives, decoded, and the texts made of it


def _count_values(body: bytes) -> int:
    """Every element and every member of JSON follows one of these characters."""
    return len(body) - len(body.translate(None, b",[{"))


def cost_of(body: bytes) -> int:
    """Estimated microseconds to read a body, and to prepare what is in it."""
    if len(body) <= _SMALL_BODY:
        return 0  # counted with its request
    is_plain = body.isascii() and b"\\" not in body
    return _count_values(body) + len(body) // (50 if is_plain else 8)


def cost_of_sending(body: bytes) -> int:
    """Estimated microseconds to send a part of a response."""
    return len(body) // 256 if len(body) > _SMALL_RESPONSE else 0


def memory_of(body: bytes) -> int:
    """Estimated bytes that a body takes while its request is in progress, itself included."""
    return _VALUE_BYTES * _count_values(body) + _TEXT_FACTOR * len(body)


class LoopTime:
    """Processor time of the event loop, granted for one pass of it."""

    def __init__(self) -> None:
        self._permits = FairSemaphore(PASS_MICROSECONDS)
        self._granted: list[tuple[str, int]] = []

    async def take(self, tenant: str, microseconds: int = REQUEST_MICROSECONDS) -> None:
        """Wait for the tenant's turn. The permits return when the event loop has made a pass."""
        permits = min(microseconds, PASS_MICROSECONDS)
        if not self._permits.try_acquire(tenant, permits):
            await self._permits.acquire(tenant, permits)
        if not self._granted:
            asyncio.get_running_loop().call_soon(self._end)
        self._granted.append((tenant, permits))

    def _end(self) -> None:
        granted, self._granted = self._granted, []
        for tenant, permits in granted:
            self._permits.release(tenant, permits)


class BodyMemory:
    """Bytes of the bodies of requests in progress: as they arrive, and parsed.

    Two budgets, because a request takes the second while it holds the first.
    """

    def __init__(self, memory: int, wait_seconds: float) -> None:
        budget = memory - BASE_BYTES
        self.arriving = FairSemaphore(budget // 4)
        self.parsed = FairSemaphore(budget - budget // 4)
        self.wait_seconds = wait_seconds

    @property
    def taken(self) -> int:
        return self.arriving.taken + self.parsed.taken


class HeldMemory:
    """What one request holds of both budgets, until `release`."""

    def __init__(self, memory: BodyMemory, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._held: list[tuple[FairSemaphore, int]] = []

    async def take_arriving(self, size: int) -> None:
        """Before the first byte is read: as received, in one piece, and decoded."""
        if size > _COUNTED_FROM:
            await self._take(self._memory.arriving, 3 * size)

    async def take_parsed(self, body: bytes) -> None:
        if len(body) > _COUNTED_FROM:
            await self._take(self._memory.parsed, memory_of(body))

    async def _take(self, budget: FairSemaphore, size: int) -> None:
        # The rest stays for other tenants, also if one body takes more.
        permits = min(size, budget.size * 3 // 4)
        if not budget.try_acquire(self._tenant, permits):
            seconds = self._memory.wait_seconds
            try:
                async with asyncio.timeout(seconds):
                    await budget.acquire(self._tenant, permits)
            except TimeoutError:
                raise _no_memory(seconds) from None
        self._held.append((budget, permits))

    def release(self) -> None:
        for budget, permits in self._held:
            budget.release(self._tenant, permits)
        self._held.clear()


def _no_memory(seconds: float) -> Problem:
    return Problem(
        "too-busy",
        f"the bodies of requests in progress take the memory of this process; waited {seconds:g} s",
        expected="memory for the body",
        got="none",
        retry_after=5,
    )
