"""The leases of a worker and when each is to be renewed."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helixqueue.errors import HelixError
from helixqueue.worker.attempt import abandon_margin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from helixqueue.transport.protocol import LeaseRef, WriteResult
    from helixqueue.worker.heartbeat import HeartbeatListener

LOG = logging.getLogger("helixqueue.worker")
RENEWALS_PER_LEASE = 3
MAX_INTERVAL_SECONDS = 15.0  # the worker of a cancelled batch learns of it within this time
RETRIES_PER_INTERVAL = 4
CHUNK = 500


@dataclass(slots=True)
class RenewalEntry:
    lease: LeaseRef
    lease_seconds: float
    since: float  # when the claim or the last renewal was sent
    interval: float
    due: float

    @property
    def abandon_at(self) -> float:
        """When the work is stopped unless the lease is renewed before."""
        return self.since + self.lease_seconds - abandon_margin(self.lease_seconds)


class RenewalSchedule:
    """One entry per batch: its latest token."""

    def __init__(self) -> None:
        self.entries: dict[int, RenewalEntry] = {}
        self._in_flight: set[int] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._due_earlier = asyncio.Event()
        self._next_due = 0.0

    def add(self, lease: LeaseRef, lease_seconds: float, since: float) -> None:
        interval = min(lease_seconds / RENEWALS_PER_LEASE, MAX_INTERVAL_SECONDS)
        entry = self.entries[lease.batch] = RenewalEntry(
            lease, lease_seconds, since, interval, since + interval
        )
        if entry.due < self._next_due:
            self._due_earlier.set()

    def drop(self, batches: Iterable[int]) -> None:
        for batch in batches:
            self.entries.pop(batch, None)

    async def pause(self, batch: int) -> None:
        """Drop the batch, and return when no renewal of it is in flight."""
        self.drop([batch])
        while batch in self._in_flight:
            await self._idle.wait()

    async def run(
        self,
        renew: Callable[[Sequence[LeaseRef]], Awaitable[list[WriteResult]]],
        listener: HeartbeatListener,
        is_worker_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Renew what is due, many leases in one call, until cancelled."""
        while True:
            due = await self._wait_for_due()
            now = time.monotonic()
            if is_worker_stopped():
                self._retry_soon(due, now)
                continue
            self._in_flight.update(entry.lease.batch for entry in due)
            self._idle.clear()
            try:
                results = await renew([entry.lease for entry in due])
            except HelixError as error:
                LOG.warning("%d leases could not be renewed: %s", len(due), error)
                self._retry_soon(due, now)
            else:
                self._record(due, results, listener, now)
            finally:
                self._in_flight.clear()
                self._idle.set()

    async def _wait_for_due(self) -> list[RenewalEntry]:
        while True:
            self._due_earlier.clear()
            now = time.monotonic()
            # A little ahead, so that leases that are due soon share the call.
            due = [e for e in self.entries.values() if e.due <= now + e.interval / 8]
            if due:
                return due[:CHUNK]
            self._next_due = min((e.due for e in self.entries.values()), default=now + 3600)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.005, self._next_due - now)):
                    await self._due_earlier.wait()

    @staticmethod
    def _retry_soon(due: list[RenewalEntry], now: float) -> None:
        for entry in due:
            entry.due = now + entry.interval / RETRIES_PER_INTERVAL

    def _record(
        self,
        due: list[RenewalEntry],
        results: list[WriteResult],
        listener: HeartbeatListener,
        sent_at: float,
    ) -> None:
        sent = {entry.lease.batch: entry for entry in due}
        renewed = []
        for result in results:
            entry = sent[result.batch]
            if result.answer == "ok":
                entry.since, entry.due = sent_at, sent_at + entry.interval
                renewed.append((result.batch, entry.lease.token.number))
            elif result.answer == "busy":
                # Another transaction holds the row, perhaps a settlement of this worker.
                entry.due = sent_at + entry.interval / RETRIES_PER_INTERVAL
            else:
                if self.entries.get(result.batch) is entry:
                    del self.entries[result.batch]
                listener.refused(result.batch, entry.lease.token.number, result.owner, result.state)
        if renewed:
            listener.renewed(renewed, sent_at)
