"""The HTTP transport: a worker that has a token and no database password."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

from helixqueue.errors import HelixError, NoSuchBatch, NoSuchQueue
from helixqueue.failpoints import failpoint
from helixqueue.operations import batch_reads, queues
from helixqueue.operations.chunks import chunks
from helixqueue.transport.http import calls, output_calls
from helixqueue.transport.http.connection import AsyncHttpConnection, ServiceAddress
from helixqueue.transport.http.derived_calls import request_of
from helixqueue.transport.protocol import ClaimResult

if TYPE_CHECKING:
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.transport.http.call import HttpCall
    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        ClaimRequest,
        HandlerTransactions,
        LeaseRow,
        QueueRow,
        Settlement,
        WriteResult,
    )

T = TypeVar("T")
# Settlements of one request, below the limit of a body.
SETTLE_BYTES_MAX = calls.BODY_BYTES_MAX - 64 * 1024
LONG_POLL_SECONDS = 20.0
POLL_SECONDS = 1.0  # without wake-ups


class HttpTransport:
    """The connection of one worker to one service."""

    calls = calls
    output_calls = output_calls
    publishes = False
    # No database connection: a handler returns its result.
    transactions: HandlerTransactions | None = None
    async_transactions: AsyncHandlerTransactions | None = None

    def __init__(self, address: ServiceAddress, worker: str) -> None:
        self.worker = worker
        self.tenant: str | None = None  # the token's
        self._address = address
        self._connection = AsyncHttpConnection(address)
        self._queues: list[str] = []
        self._mark: str | None = None

    def spec(self) -> dict[str, Any]:
        return {"transport": "http", "address": asdict(self._address), "worker": self.worker}

    async def run(self, call: AnyCall[T]) -> T:
        return await self._connection.run(cast("HttpCall[T]", call))

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """One HTTP request, unless there is more to settle or to claim than one may carry."""
        failpoint("claim.before")
        *earlier, last = list(_chunks(request.settle)) or [[]]
        settled: list[WriteResult] = []
        for chunk in earlier:
            settled += await self.run(calls.settle(worker=self.worker, settlements=chunk))
        leases: list[LeaseRow] = []
        request_id, left = request.request_id, request.count
        while True:
            count = min(left, calls.CLAIM_MAX)
            claimed = await self.run(
                calls.claim(
                    worker=self.worker,
                    request=request_id,
                    queues=request.queues,
                    count=count,
                    free=None if request.free is None else dict(request.free),
                    start=True,
                    settle=last if not leases else (),
                )
            )
            settled += claimed.settled
            leases += claimed.leases
            left -= count
            if not left or len(claimed.leases) < count:
                break
            # Derived from the id of the first part, so that a retry has the same ids.
            request_id = uuid.uuid5(request_id, "more")
        if request.settle:
            failpoint("settle.after")
        if leases:
            failpoint("claim.after")
        return ClaimResult(tuple(leases), tuple(settled), more=claimed.more, former=claimed.former)

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        results: list[WriteResult] = []
        for chunk in _chunks(settlements):
            results += await self.run(calls.settle(worker=self.worker, settlements=chunk))
        failpoint("settle.after")
        return results

    async def was_settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:  # noqa: ARG002
        # Over HTTP, handlers have no transactions to wait for.
        call = request_of(batch_reads.show_batch, {"batch_id": lease.batch_id})
        try:
            batch = await self.run(call)
        except NoSuchBatch:
            return False
        return any(
            event.reason in {"completed", "failed"} and event.attempt == lease.attempt
            for event in batch.events
        )

    async def queue(self, tenant: str, name: str) -> QueueRow | None:  # noqa: ARG002 - the token's
        try:
            return await self.run(request_of(queues.show_settings, {"queue": name}))
        except NoSuchQueue:
            return None

    # Wake-ups.

    async def subscribe(self, queues: Sequence[str], seconds: float) -> None:
        self._queues = list(queues)
        self._mark = await self.run(
            calls.expect(worker=self.worker, queues=queues, seconds=seconds)
        )

    async def wait_for_wakeup(self, seconds: float) -> None:
        """Long-poll the service."""
        timeout = min(seconds, LONG_POLL_SECONDS)
        call = calls.wait(worker=self.worker, queues=self._queues, mark=self._mark, seconds=timeout)
        try:
            _, self._mark = await self.run(call)
        except HelixError:
            # Wake-ups are an optimization: the worker polls without them.
            await asyncio.sleep(min(seconds, POLL_SECONDS))

    async def unsubscribe(self, queues: Sequence[str]) -> None:
        await self.run(calls.expect(worker=self.worker, queues=queues, seconds=0))

    async def close(self) -> None:
        await self._connection.close()


def _chunks(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """As many as one request may carry, by number and by size."""
    return chunks(
        settlements,
        lambda settlement: len(calls.write_settlement(settlement)),
        size=SETTLE_BYTES_MAX,
        length=calls.SETTLE_MAX,
    )
