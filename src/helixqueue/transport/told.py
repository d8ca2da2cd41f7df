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
        Answer,
        Ask,
        AsyncLocal,
        Claimed,
        Held,
        Local,
        Settlement,
        Transport,
    )

LOG = logging.getLogger("helixqueue.worker.operation")
REMEMBERED_MAX: Final = 10_000
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


def told(transport: Transport) -> Transport:
    """The same transport, and a line for what becomes of each batch, if anybody listens."""
    return Told(transport) if LOG.isEnabledFor(logging.INFO) else transport


class Told:
    """Another transport, whose answers are told."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.worker = transport.worker
        # By number, of what was claimed and not yet answered for; what was lost never will be.
        self._claimed: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def local(self) -> Local | None:
        inner = self._transport.local
        return None if inner is None else _ToldLocal(inner, self)

    @property
    def async_local(self) -> AsyncLocal | None:
        inner = self._transport.async_local
        return None if inner is None else _ToldAsyncLocal(inner, self)

    async def claim(self, ask: Ask) -> Claimed:
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

    async def settle(self, settlements: Sequence[Settlement]) -> list[Answer]:
        answers = await self._transport.settle(settlements)
        self.tell("settle", answers)
        return answers

    async def release(self, held: Sequence[Held], detail: str) -> list[Answer]:
        answers = await self._transport.release(held, detail)
        self.tell("release", answers)
        return answers

    def tell(self, operation: str, answers: Sequence[Answer], request: UUID | None = None) -> None:
        for one in answers:
            about = self._claimed.get(one.batch, {"batch": one.batch})
            if one.answer != "busy":  # else it is asked about again
                self._claimed.pop(one.batch, None)
            owner = one.owner if one.answer == "refused" else None
            now = {} if one.state is None else {"state": one.state.value}
            self._line(operation, about | now, one.answer, request, owner)

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
        known = {name: value for name, value in line.items() if value is not None}
        LOG.log(level, "%s", _ENCODER.encode(known))


class _ToldLocal:
    """Settlements in a handler's transaction; whether it commits is seen in the ledger."""

    def __init__(self, local: Local, told: Told) -> None:
        self._local = local
        self._told = told
        self.connection = local.connection
        self.is_of_the_link = local.is_of_the_link

    def settle_within(self, connection: Any, settlement: Settlement, seconds: float) -> Answer:
        answer = self._local.settle_within(connection, settlement, seconds)
        self._told.tell("settle", [answer])
        return answer


class _ToldAsyncLocal:
    """The same for event loops."""

    def __init__(self, local: AsyncLocal, told: Told) -> None:
        self._local = local
        self._told = told
        self.connection = local.connection
        self.is_of_the_link = local.is_of_the_link

    async def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float
    ) -> Answer:
        answer = await self._local.settle_within(connection, settlement, seconds)
        self._told.tell("settle", [answer])
        return answer
