"""The engine as a worker sees it, over PostgreSQL or HTTP.

Every method may raise `Unavailable` and `Retryable`. The worker retries with the same request id,
so that a claim whose reply was lost returns the same leases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from helixqueue.records.lease import ClaimResult, LeaseRef, LeaseRow, Settlement, Token, WriteResult
from helixqueue.records.queue import QueueRow

if TYPE_CHECKING:
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.records.claim_hints import Hint

T = TypeVar("T")

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
    """Settle what is finished, claim up to `count` leases and start them, in one commit."""

    request_id: UUID
    queues: Sequence[str]
    count: int
    settle: Sequence[Settlement] = ()
    free: Mapping[str, Any] | None = None
    hints: Sequence[Hint] = ()


class Transport(Protocol):
    """The connection of the worker `worker` to the engine."""

    worker: str
    tenant: str | None  # the only tenant that it serves; None: every tenant of the login or token

    @property
    def transactions(self) -> HandlerTransactions | None:
        """Transactions for handlers; None without a database connection."""

    @property
    def async_transactions(self) -> AsyncHandlerTransactions | None: ...

    @property
    def calls(self) -> Any:
        """The module of calls that `run` takes: `engine.calls` or `transport.http.calls`."""

    @property
    def output_calls(self) -> Any:
        """The same for calls about output files."""

    @property
    def publishes(self) -> bool:
        """Whether the calls include those of a publisher; else the service publishes."""

    async def run(self, call: AnyCall[T]) -> T: ...

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Claim and settle, in several calls if one may not carry so many."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]: ...

    async def was_settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        """Whether the ledger has a settlement under the token of this lease.

        With `wait` the answer is final: it waits for a transaction that holds the batch.
        """

    async def queue(self, tenant: str, name: str) -> QueueRow | None: ...

    async def subscribe(self, queues: Sequence[str], seconds: float) -> None:
        """Wake this worker when a batch is submitted to one of these queues, for `seconds`.

        Claim once afterwards: earlier submissions sent no wake-up.
        """

    async def wait_for_wakeup(self, seconds: float) -> None:
        """Return at the next wake-up, or after `seconds`."""

    async def unsubscribe(self, queues: Sequence[str]) -> None:
        """Send no wake-ups: this worker has work."""

    async def close(self) -> None: ...

    def spec(self) -> dict[str, Any]:
        """What another process needs to build the same transport, as JSON; may hold a password."""


class HandlerTransactions(Protocol):
    """Transactions for `def` handlers."""

    def connection(self) -> AbstractContextManager[Any]:
        """Lend a connection in autocommit mode."""

    def limit(self, connection: Any, seconds: float) -> None:
        """End this transaction when the server has waited for its client for so long."""

    def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult:
        """Settle in this transaction; after a refusal it cannot commit.

        The batch stays locked until the commit, so the server ends a caller's transaction that is
        idle for longer than `seconds`. It may be inside a savepoint, which is refused.
        """

    def is_connection_error(self, error: BaseException) -> bool:
        """Whether a commit that raised this error may have happened."""


class AsyncHandlerTransactions(Protocol):
    """Transactions for `async def` handlers."""

    def connection(self) -> AbstractAsyncContextManager[Any]: ...

    async def limit(self, connection: Any, seconds: float) -> None: ...

    async def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult: ...

    def is_connection_error(self, error: BaseException) -> bool: ...
