"""The HTTP transport: a worker that has a token and no database password."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.transport.http import calls, reads
from helixqueue.transport.http.connection import AsyncHttpConnection, ServiceAddress
from helixqueue.transport.protocol import ClaimResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from helixqueue.records.claim_hints import Hint
    from helixqueue.transport.http.call import HttpCall
    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        ClaimRequest,
        HandlerTransactions,
        LeaseRef,
        LeaseRow,
        QueueRow,
        Settlement,
        WriteResult,
    )

T = TypeVar("T")
# Of the settlements in one request, far enough from what a body may weigh.
SETTLE_BYTES_MAX = calls.BODY_BYTES_MAX - 64 * 1024
LONGEST_WAIT_S = 20.0  # that the service holds an answer back
UNTOLD_S = 1.0  # between two looks of a worker that cannot be told


class HttpTransport:
    """One worker's way to one service."""

    # No transactions beside the engine: a handler returns its result.
    local: HandlerTransactions | None = None
    async_local: AsyncHandlerTransactions | None = None

    def __init__(self, where: ServiceAddress, worker: str) -> None:
        self.worker = worker
        self._where = where
        self._link = AsyncHttpConnection(where)
        self._queues: list[str] = []
        self._mark: str | None = None

    def spec(self) -> dict[str, Any]:
        return {"transport": "http", "where": asdict(self._where), "worker": self.worker}

    async def claim(self, ask: ClaimRequest) -> ClaimResult:
        """One request, unless there is more to settle or to take than one may carry."""
        failpoint("claim.before")
        *before, last = list(_pieces(ask.settle)) or [[]]
        settled: list[WriteResult] = []
        for piece in before:
            settled += await self._run(calls.settle(worker=self.worker, settlements=piece))
        leases: list[LeaseRow] = []
        hints: list[Hint] = []
        request, left = ask.request, ask.count
        while True:
            count = min(left, calls.CLAIM_MAX)
            claimed = await self._run(
                calls.claim(
                    worker=self.worker,
                    request=request,
                    queues=ask.queues,
                    count=count,
                    free=None if ask.free is None else dict(ask.free),
                    start=True,
                    hints=ask.hints if not leases else (),
                    settle=last if not leases else (),
                )
            )
            settled += claimed.settled
            leases += claimed.leases
            hints += claimed.hints
            left -= count
            if not left or len(claimed.leases) < count:
                break
            # The next part of the same ask: named after it, so that a repeat is one too.
            request = uuid.uuid5(request, "more")
        if ask.settle:
            failpoint("settle.after")
        if leases:
            failpoint("claim.after")
        return ClaimResult(tuple(leases), tuple(settled), tuple(hints), claimed.more)

    async def renew(self, held: Sequence[LeaseRef]) -> list[WriteResult]:
        failpoint("renew.before")
        answers = await self._run(calls.renew(worker=self.worker, leases=held))
        failpoint("renew.after")
        return answers

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        answers: list[WriteResult] = []
        for piece in _pieces(settlements):
            answers += await self._run(calls.settle(worker=self.worker, settlements=piece))
        failpoint("settle.after")
        return answers

    async def release(self, held: Sequence[LeaseRef], detail: str) -> list[WriteResult]:
        failpoint("release.before")
        answers = await self._run(calls.release(worker=self.worker, leases=held, detail=detail))
        failpoint("release.after")
        return answers

    async def settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:  # noqa: ARG002
        # Over HTTP there are no handlers' transactions to wait for.
        batch_id = lease.batch_id
        events = (await self._run(reads.events(ids=[batch_id])))[batch_id]
        return any(
            event.reason in {"completed", "failed"} and event.number == lease.token.number
            for event in events
        )

    async def queue(self, tenant: str, name: str) -> QueueRow | None:
        return await self._run(calls.queue(tenant=tenant, queue=name))

    async def hello(self, told: dict[str, Any]) -> None:
        await self._run(calls.hello(worker=self.worker, report=told))

    # Waking.

    async def expect(self, queues: Sequence[str], seconds: float) -> None:
        self._queues = list(queues)
        self._mark = await self._run(
            calls.expect(worker=self.worker, queues=queues, seconds=seconds)
        )

    async def woken(self, seconds: float) -> None:
        """The service holds its answer back until there is something to say."""
        held = min(seconds, LONGEST_WAIT_S)
        call = calls.wait(worker=self.worker, queues=self._queues, mark=self._mark, seconds=held)
        try:
            _, self._mark = await self._run(call)
        except HelixError:
            # Waking is a comfort: whoever could not be told looks after a while all the same.
            await asyncio.sleep(min(seconds, UNTOLD_S))

    async def busy(self, queues: Sequence[str]) -> None:
        await self._run(calls.expect(worker=self.worker, queues=queues, seconds=0))

    async def close(self) -> None:
        await self._link.close()

    async def _run(self, call: HttpCall[T]) -> T:
        return await self._link.run(call)


def _pieces(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """As many as one request may carry, by number and by weight."""
    piece: list[Settlement] = []
    weight = 0
    for one in settlements:
        size = len(calls.write_settlement(one))
        if piece and (len(piece) == calls.SETTLE_MAX or weight + size > SETTLE_BYTES_MAX):
            yield piece
            piece, weight = [], 0
        piece.append(one)
        weight += size
    if piece:
        yield piece
