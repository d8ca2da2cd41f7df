"""What a worker asks of the engine, whatever the way there.

Every method may raise `Unavailable` and `Retryable`; the worker repeats, with the same request id,
so that a lost reply gives the same leases. Nothing here is about a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.records.lease import ClaimResult, LeaseRef, LeaseRow, Settlement, Token, WriteResult
from helixqueue.records.queue import QueueRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from uuid import UUID

    from helixqueue.records.claim_hints import Hint

__all__ = [
    "AsyncHandlerTransactions",
    "ClaimRequest",
    "ClaimResult",
    "HandlerTransactions",
    "LeaseRef",
    "LeaseRow",
    "QueueRow",
    "Settlement",
    "Token",
    "Transport",
    "WriteResult",
]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """One round: settle what is finished, take up to `count` more and start them, in one commit."""

    request: UUID
    queues: Sequence[str]
    count: int
    settle: Sequence[Settlement] = ()
    free: Mapping[str, Any] | None = None
    hints: Sequence[Hint] = ()


class Transport(Protocol):
    """The engine, as the worker `worker` reaches it."""

    worker: str

    # What only a worker beside the database can offer its handlers; None elsewhere.
    @property
    def local(self) -> HandlerTransactions | None: ...

    @property
    def async_local(self) -> AsyncHandlerTransactions | None: ...

    async def claim(self, ask: ClaimRequest) -> ClaimResult: ...

    async def renew(self, held: Sequence[LeaseRef]) -> list[WriteResult]: ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]: ...

    async def release(self, held: Sequence[LeaseRef], detail: str) -> list[WriteResult]: ...

    async def settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        """Whether the ledger says that this lease's token ended its attempt.

        With `wait` the answer is final: a transaction that is about to do so is waited for.
        """

    async def queue(self, tenant: str, name: str) -> QueueRow | None: ...

    async def hello(self, told: dict[str, Any]) -> None:
        """Say that this worker is there, and how it is."""

    async def expect(self, queues: Sequence[str], seconds: float) -> None:
        """From now on, for so long, wake this worker when something is submitted to one of these.

        Whoever expects claims once more afterwards: what came before woke nobody.
        """

    async def woken(self, seconds: float) -> None:
        """Return when this worker is woken, or after so long."""

    async def busy(self, queues: Sequence[str]) -> None:
        """No need to wake this worker: it has work."""

    async def close(self) -> None: ...

    def spec(self) -> dict[str, Any]:
        """What another process needs to make the same one, as JSON; it may hold a password."""


class HandlerTransactions(Protocol):
    """Transactions beside the engine, for threads."""

    def connection(self) -> AbstractContextManager[Any]:
        """Lend a connection that commits by itself until somebody begins."""

    def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult:
        """Settle in this transaction, which a refusal makes impossible to commit.

        No other call can take the batch back until then, so a transaction that idles longer than
        `seconds` is ended. One `of_caller` may be inside a savepoint, which is refused.
        """

    def is_of_the_link(self, error: BaseException) -> bool:
        """Whether this error may have hidden what became of a commit."""


class AsyncHandlerTransactions(Protocol):
    """The same for event loops."""

    def connection(self) -> AbstractAsyncContextManager[Any]: ...

    async def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult: ...

    def is_of_the_link(self, error: BaseException) -> bool: ...
