"""One line of JSON for each batch that a worker's call was about, as the service writes them.

So one batch's story is a search for its id, also where workers talk to the database themselves. Who
wants the lines lets the logger `helixqueue.worker.operation` speak at INFO, as `helixq work` does.
Renewals that succeed are made by another process and not told; one that is refused ends the
attempt, and the worker says so.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        ClaimRequest,
        ClaimResult,
        HandlerTransactions,
        LeaseRef,
        LeaseRow,
        Settlement,
        Transport,
        WriteResult,
    )

LOG = logging.getLogger("helixqueue.worker.operation")
REMEMBERED_MAX: Final = 10_000
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


def told(transport: Transport) -> Transport:
    """The same transport, and a line for what becomes of each batch, if anybody listens."""
    return LoggedTransport(transport) if LOG.isEnabledFor(logging.INFO) else transport


class LoggedTransport:
    """Another transport, whose answers are told."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.worker = transport.worker
        # By number, of what was claimed and not yet answered for; what was lost never will be.
        self._claimed: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def local(self) -> HandlerTransactions | None:
        inner = self._transport.local
        return None if inner is None else _ToldLocal(inner, self)

    @property
    def async_local(self) -> AsyncHandlerTransactions | None:
        inner = self._transport.async_local
        return None if inner is None else _ToldAsyncLocal(inner, self)

    async def claim(self, ask: ClaimRequest) -> ClaimResult:
        claimed = await self._transport.claim(ask)
        self.tell("settle", claimed.settled, ask.request)
        for row in claimed.leases:
            about = {
                "tenant": row.tenant,
                "queue": row.queue,
                "batch": str(row.batch_id),
                "attempt": row.attempt,
            }
            self._claimed[row.batch] = about
            self._line("claim", about, "ok", ask.request)
        while len(self._claimed) > REMEMBERED_MAX:
            self._claimed.popitem(last=False)
        return claimed

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        answers = await self._transport.settle(settlements)
        self.tell("settle", answers)
        return answers

    async def release(self, held: Sequence[LeaseRef], detail: str) -> list[WriteResult]:
        answers = await self._transport.release(held, detail)
        self.tell("release", answers)
        return answers

    async def settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        """A settle whose commit was not answered took effect: report it as repeated."""
        settled = await self._transport.settled(lease, wait=wait)
        if settled:
            about = self._claimed.pop(lease.batch, {"batch": str(lease.batch_id)})
            self._line("settle", about, "repeat")
        return settled

    def tell(
        self, operation: str, answers: Sequence[WriteResult], request: UUID | None = None
    ) -> None:
        for one in answers:
            about = self._claimed.get(one.batch, {"batch": one.batch})
            if one.answer != "busy":  # else it is asked about again
                self._claimed.pop(one.batch, None)
            self._tell_one(operation, about, one, request)

    def tell_within(self, answer: WriteResult) -> None:
        """What was settled in a handler's transaction, which may still be rolled back.

        A refusal is rolled back with it. The worker then settles once more, outside of it, and that
        answer is the one to report: the batch may have been ended by this very attempt.
        """
        if answer.answer != "refused":
            about = self._claimed.get(answer.batch, {"batch": answer.batch})
            self._tell_one("settle", about, answer, None)

    def _tell_one(
        self, operation: str, about: dict[str, Any], answer: WriteResult, request: UUID | None
    ) -> None:
        owner = answer.owner if answer.answer == "refused" else None
        now: dict[str, Any] = {} if answer.state is None else {"state": answer.state.value}
        if answer.mismatch:
            now["mismatch"] = True
        self._line(operation, about | now, answer.answer, request, owner)

    def _line(
        self,
        operation: str,
        about: dict[str, Any],
        decision: str,
        request: UUID | None = None,
        owner: str | None = None,
    ) -> None:
        line: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": None if request is None else str(request),
            "operation": operation,
            **about,
            "worker": self.worker,
            "conflicting_worker": owner,
            "decision": decision,
        }
        level = logging.WARNING if decision == "refused" else logging.INFO
        if about.get("mismatch"):  # this worker had two results for one attempt
            level = logging.ERROR
        known = {name: value for name, value in line.items() if value is not None}
        LOG.log(level, "%s", _ENCODER.encode(known))


class _ToldLocal:
    """Settlements in a handler's transaction; whether it commits is seen in the ledger."""

    def __init__(self, local: HandlerTransactions, told: LoggedTransport) -> None:
        self._local = local
        self._told = told
        self.connection = local.connection
        self.is_of_the_link = local.is_of_the_link

    def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult:
        answer = self._local.settle_within(connection, settlement, seconds, of_caller=of_caller)
        self._told.tell_within(answer)
        return answer


class _ToldAsyncLocal:
    """The same for event loops."""

    def __init__(self, local: AsyncHandlerTransactions, told: LoggedTransport) -> None:
        self._local = local
        self._told = told
        self.connection = local.connection
        self.is_of_the_link = local.is_of_the_link

    async def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult:
        answer = await self._local.settle_within(
            connection, settlement, seconds, of_caller=of_caller
        )
        self._told.tell_within(answer)
        return answer
