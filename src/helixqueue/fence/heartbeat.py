"""Heartbeats: renew the leases of held fences while this process lives.

All fences of a client share one timer; a heartbeat renews every due lease in one call. A process
that dies or freezes stops renewing, which is what shows that it is gone. A call that runs past its
limit is not renewed any more: otherwise other callers would wait for ever, and neither a probe nor
an operator could decide.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from helixqueue.engine import fences
from helixqueue.identity import key_text

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceLease, Times
    from helixqueue.fence.runner import Run
    from helixqueue.fence.runner_async import AsyncRun

log = logging.getLogger("helixqueue.fence")
BEATS_PER_LEASE = 3
_FAILED = "fence: a heartbeat failed (%s); the next one retries, and a lease outlasts two failures"


@dataclass(slots=True)
class TrackedLease:
    """One held fence: when its renewal is due, when renewals end, and whether it was lost."""

    lease: FenceLease
    every: float
    due: float
    ends: float
    lost: bool = False


class _LeaseTable:
    """The held leases, and which of them are due."""

    def __init__(self) -> None:
        self.leases: dict[int, TrackedLease] = {}

    def add(self, lease: FenceLease, times: Times) -> TrackedLease:
        now = time.monotonic()
        every = times.lease / BEATS_PER_LEASE
        tracked = TrackedLease(lease, every, now + every, now + times.limit)
        self.leases[id(tracked)] = tracked
        return tracked

    def remove(self, tracked: TrackedLease) -> None:
        self.leases.pop(id(tracked), None)

    def next_due(self) -> float | None:
        return min((tracked.due for tracked in self.leases.values()), default=None)

    def due(self) -> list[TrackedLease]:
        now = time.monotonic()
        for tracked in [tracked for tracked in self.leases.values() if tracked.ends <= now]:
            self.remove(tracked)
            log.error(
                "fence %s: the call ran past its limit; its lease is not renewed any more, and the "
                "fence will be in doubt. Set a longer Times(limit=...) if the call is only slow",
                key_text(tracked.lease.key),
            )
        # Leases that are due soon are renewed in the same call.
        due = [
            tracked for tracked in self.leases.values() if tracked.due <= now + tracked.every / 4
        ]
        for tracked in due:
            tracked.due = now + tracked.every
        return due


class FenceHeartbeat:
    """Renews in one thread, which ends when no lease is held."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._table = _LeaseTable()
        self._changed = threading.Condition()
        self._wakes_at: float | None = None  # None: no thread

    def track(self, lease: FenceLease, times: Times) -> TrackedLease:
        if self._process != os.getpid():
            self._begin()  # a fork has none of the parent's threads, and the parent renews its own
        with self._changed:
            tracked = self._table.add(lease, times)
            if self._wakes_at is None:
                self._wakes_at = tracked.due
                threading.Thread(
                    target=self._beat, name="helix-fence-heartbeat", daemon=True
                ).start()
            elif tracked.due < self._wakes_at:
                self._changed.notify()
        return tracked

    def untrack(self, tracked: TrackedLease) -> None:
        with self._changed:
            self._table.remove(tracked)

    def _beat(self) -> None:
        while True:
            with self._changed:
                self._wakes_at = self._table.next_due()
                if self._wakes_at is None:
                    return
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                due = self._table.due()
            if due:
                self._renew(due)

    def _renew(self, due: list[TrackedLease]) -> None:
        try:
            lost = self._run(fences.renew([tracked.lease for tracked in due]))
        except Exception as error:  # noqa: BLE001 - a failed heartbeat must not be the last
            log.warning(_FAILED, error)
            return
        for tracked in due:
            tracked.lost = tracked.lease.key in lost


class AsyncFenceHeartbeat:
    """The same for event loops, each with its own timer: a loop cannot schedule for another."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopHeartbeat] = (
            WeakKeyDictionary()
        )

    def track(self, lease: FenceLease, times: Times) -> TrackedLease:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _LoopHeartbeat(self._run)
        return self._loops[loop].track(lease, times)

    def untrack(self, tracked: TrackedLease) -> None:
        self._loops[asyncio.get_running_loop()].untrack(tracked)


class _LoopHeartbeat:
    """Renews the leases of one loop by its timer; no task outlives its leases."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._table = _LeaseTable()
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def track(self, lease: FenceLease, times: Times) -> TrackedLease:
        tracked = self._table.add(lease, times)
        if self._timer is None or self._timer.when() > self._when(tracked):
            self._set_timer()
        return tracked

    def untrack(self, tracked: TrackedLease) -> None:
        self._table.remove(tracked)
        if not self._table.leases and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @staticmethod
    def _when(tracked: TrackedLease) -> float:
        return asyncio.get_running_loop().time() + tracked.due - time.monotonic()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._table.next_due()
        self._timer = None
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - time.monotonic()), self._beat)

    def _beat(self) -> None:
        if due := self._table.due():
            task = asyncio.get_running_loop().create_task(self._renew(due))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        self._set_timer()

    async def _renew(self, due: list[TrackedLease]) -> None:
        try:
            lost = await self._run(fences.renew([tracked.lease for tracked in due]))
        except Exception as error:  # noqa: BLE001 - as above
            log.warning(_FAILED, error)
            return
        for tracked in due:
            tracked.lost = tracked.lease.key in lost
