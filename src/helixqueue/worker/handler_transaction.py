"""How a handler settles its lease in one commit with its own rows.

The settlement is the last statement of the transaction. If it is refused, the transaction cannot
commit, the handler gets `LeaseLost`, and the worker sends the refused settlement again, alone, to
keep the refusal. If the reply to the commit is lost, the settlement is unconfirmed: the worker
reads the ledger when the handler has ended. Until then the lease is not renewed, because the
renewal of a completed batch would be refused and recorded as a refusal.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helixqueue.errors import GiveUp, HelixError, LeaseLost, Refused, Retry, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.log.events import log_write
from helixqueue.worker import outcomes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        HandlerTransactions,
        Settlement,
        WriteResult,
    )
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

R = TypeVar("R")


class _Settling(Generic[R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        handle: WorkerHandle,
        connection: Any,
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._schema = schema
        self._handle = handle
        self.connection = connection

    def _completed(self, result: R) -> Settlement:
        return outcomes.completed(self._attempt.row, self._queue, self._schema, result)

    def _failed(self, reason: str, after: float | None, *, permanent: bool) -> Settlement:
        error = GiveUp(reason) if permanent else Retry(after, reason)
        return outcomes.failed(self._attempt.row, error)

    def _check(
        self, result: WriteResult, settlement: Settlement, earlier: Settlement | None
    ) -> None:
        """Raise unless the engine accepted the settlement; `earlier` was unconfirmed before it."""
        # A refusal is rolled back with the transaction: the worker then settles again outside of
        # it, and that result is logged.
        if result.answer != "refused":
            log_write(self._handle.worker, "settle", self._attempt.row, result)
        if result.answer == "ok":
            return
        if result.answer == "repeat":
            if result.mismatch:
                outcomes.report_mismatch(self._attempt.row.batch_id, self._handle.worker)
            self._attempt.settled_as = settlement.outcome
            raise LeaseLost(
                "an earlier transaction has settled this lease and taken effect; this one takes no "
                "effect: settle a lease once"
            )
        # The reply to an earlier commit was lost. If it took effect, the lease was settled and not
        # lost: the worker reads the ledger.
        self._attempt.unconfirmed = earlier
        if earlier is not None:
            raise LeaseLost(
                f"the batch is {result.state}; an earlier transaction of this attempt may have "
                "settled it, and this one takes no effect: settle a lease once",
                owner=result.owner,
            )
        self._attempt.refused = settlement
        self._attempt.stop("abandoned", f"refused: the batch is {result.state}", result.owner)
        raise _lease_lost(self._attempt)

    def _require_held(self) -> None:
        if self._attempt.settled_as:
            raise Refused("this lease has been settled; settle a lease once")
        if self._attempt.stop_kind is not None:
            raise _lease_lost(self._attempt)


def _lease_lost(attempt: Attempt) -> LeaseLost:
    owner = f"; {attempt.owner} holds it now" if attempt.owner else ""
    return LeaseLost(
        f"this worker lost the lease on batch {attempt.row.batch_id} ({attempt.stop_reason}"
        f"{owner}); nothing of this attempt is written",
        owner=attempt.owner,
    )


class _Deferred(_Settling[R]):
    """`complete` and `fail` choose the settlement; it is sent when the block ends."""

    settlement: Settlement | None = None
    _earlier: Settlement | None = None  # unconfirmed when this transaction began
    _accepted = False  # by the engine; it takes effect when the transaction commits

    def complete(self, result: R) -> R:
        """Complete the batch with this result when the block ends."""
        self.settlement = self._completed(result)
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """Fail the attempt when the block ends; the rows of this transaction are committed."""
        self.settlement = self._failed(reason, after, permanent=permanent)

    def _required_settlement(self) -> Settlement:
        """The settlement at the end of the block; without one, the rows must not be committed."""
        self._require_held()
        if self.settlement is None:
            raise Refused(
                "lease.transaction(): expected tx.complete(...) or tx.fail(...) before the end of "
                "the block, got neither; the transaction was rolled back because it did not settle "
                "its lease"
            )
        return self.settlement

    def _accept(self, result: WriteResult, settlement: Settlement) -> None:
        self._check(result, settlement, self._earlier)
        self._accepted = True

    def _commit_error(self, error: BaseException) -> Unavailable | None:
        """The error to raise when the connection broke at the commit, whose outcome is unknown."""
        transactions = self._handle.transactions or self._handle.async_transactions
        if not self._accepted or transactions is None:
            return None
        if not transactions.is_connection_error(error):
            return None
        return Unavailable(f"the commit may have happened: {error}", outcome_unknown=True)

    def _rolled_back(self) -> None:
        if self._attempt.settled_as:
            return
        # If this settlement was accepted, the lease was live: the earlier commit did not happen.
        self._attempt.unconfirmed = None if self._accepted else self._earlier
        is_held = self._attempt.stop_kind is None and self._attempt.unconfirmed is None
        if is_held and self.settlement is not None:
            self._handle.resume_renewal(self._attempt)

    def _committed(self) -> None:
        if self.settlement is not None:
            self._attempt.unconfirmed = None
            self._attempt.settled_as = self.settlement.outcome
            self._handle.stop_renewal(self._attempt)
            failpoint("effect.after")


class Transaction(_Deferred[R]):
    """A transaction that settles the lease; `connection` is psycopg's."""

    @classmethod
    @contextmanager
    def begin(
        cls,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        handle: WorkerHandle,
    ) -> Iterator[Transaction[Any]]:
        if handle.transactions is None:
            raise _no_transactions()
        with handle.transactions.connection() as connection:
            tx: Transaction[Any] = cls(attempt, queue, schema, handle, connection)
            tx._require_held()
            tx._earlier = attempt.unconfirmed
            try:
                with connection.transaction():
                    yield tx
                    tx._settle(handle.transactions)
            except BaseException as error:
                if (commit_error := tx._commit_error(error)) is not None:
                    handle.pause_renewal(attempt, always=True)
                    raise commit_error from error
                tx._rolled_back()
                raise
        tx._committed()

    def execute(self, query: Any, params: Any = None) -> Any:
        """Execute a statement of yours; returns psycopg's cursor."""
        return self.connection.execute(query, params)

    def submit(self, queue: Any, **options: Any) -> Any:
        """Submit the next step, as `helix.submit` does; it commits with this transaction."""
        return self._handle.submit(queue, within=self.connection, **options)

    def _settle(self, transactions: HandlerTransactions) -> None:
        settlement = self._attempt.unconfirmed = self._required_settlement()
        self._handle.pause_renewal(self._attempt)
        self._require_held()
        seconds = self._attempt.row.lease_seconds
        result = transactions.settle_within(self.connection, settlement, seconds)
        self._accept(result, settlement)


class AsyncTransaction(_Deferred[R]):
    """The same for event loops, on psycopg's async connection."""

    @classmethod
    @asynccontextmanager
    async def begin(
        cls,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        handle: WorkerHandle,
    ) -> AsyncIterator[AsyncTransaction[Any]]:
        if handle.async_transactions is None:
            raise _no_transactions()
        async with handle.async_transactions.connection() as connection:
            tx: AsyncTransaction[Any] = cls(attempt, queue, schema, handle, connection)
            tx._require_held()
            tx._earlier = attempt.unconfirmed
            try:
                async with connection.transaction():
                    yield tx
                    await tx._settle(handle.async_transactions)
            except BaseException as error:
                if (commit_error := tx._commit_error(error)) is not None:
                    await handle.pause_renewal_async(attempt, always=True)
                    raise commit_error from error
                tx._rolled_back()
                raise
        tx._committed()

    async def execute(self, query: Any, params: Any = None) -> Any:
        """Execute a statement of yours; returns psycopg's cursor."""
        return await self.connection.execute(query, params)

    async def submit(self, queue: Any, **options: Any) -> Any:
        """Submit the next step, as `helix.submit` does; it commits with this transaction."""
        return await self._handle.submit_async(queue, within=self.connection, **options)

    async def _settle(self, transactions: AsyncHandlerTransactions) -> None:
        settlement = self._attempt.unconfirmed = self._required_settlement()
        await self._handle.pause_renewal_async(self._attempt)
        self._require_held()
        seconds = self._attempt.row.lease_seconds
        result = await transactions.settle_within(self.connection, settlement, seconds)
        self._accept(result, settlement)


class _InCallerTransaction(_Settling[R]):
    """A settlement in a transaction that only the caller commits."""

    def _rolled_back(self, earlier: Settlement | None) -> None:
        """The settlement failed, and with it the caller's transaction."""
        self._attempt.unconfirmed = earlier
        if earlier is None and self._attempt.stop_kind is None:
            self._handle.resume_renewal(self._attempt)


class CallerTransaction(_InCallerTransaction[R]):
    """Settles on a connection of the caller, as the last statement of its transaction."""

    def complete(self, result: R) -> R:
        """Complete the batch with this result when your transaction commits."""
        self._settle(self._completed(result))
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """Fail the attempt when your transaction commits."""
        self._settle(self._failed(reason, after, permanent=permanent))

    def submit(self, queue: Any, **options: Any) -> Any:
        """Submit the next step, before you settle; it commits with your transaction."""
        return self._handle.submit(queue, within=self.connection, **options)

    def _settle(self, settlement: Settlement) -> None:
        self._require_held()
        if self._handle.transactions is None:
            raise _no_transactions()
        # Unconfirmed until the ledger shows it: the caller may roll back, or never commit.
        earlier, self._attempt.unconfirmed = self._attempt.unconfirmed, settlement
        self._handle.pause_renewal(self._attempt, always=True)
        seconds = self._attempt.row.lease_seconds
        try:
            result = self._handle.transactions.settle_within(
                self.connection, settlement, seconds, in_caller_transaction=True
            )
        except HelixError:
            self._rolled_back(earlier)
            raise
        self._check(result, settlement, earlier)


class AsyncCallerTransaction(_InCallerTransaction[R]):
    """The same for event loops."""

    async def complete(self, result: R) -> R:
        """Complete the batch with this result when your transaction commits."""
        await self._settle(self._completed(result))
        return result

    async def fail(
        self, reason: str, *, after: float | None = None, permanent: bool = False
    ) -> None:
        """Fail the attempt when your transaction commits."""
        await self._settle(self._failed(reason, after, permanent=permanent))

    async def submit(self, queue: Any, **options: Any) -> Any:
        """Submit the next step, before you settle; it commits with your transaction."""
        return await self._handle.submit_async(queue, within=self.connection, **options)

    async def _settle(self, settlement: Settlement) -> None:
        self._require_held()
        if self._handle.async_transactions is None:
            raise _no_transactions()
        earlier, self._attempt.unconfirmed = self._attempt.unconfirmed, settlement
        await self._handle.pause_renewal_async(self._attempt, always=True)
        seconds = self._attempt.row.lease_seconds
        try:
            result = await self._handle.async_transactions.settle_within(
                self.connection, settlement, seconds, in_caller_transaction=True
            )
        except HelixError:
            self._rolled_back(earlier)
            raise
        self._check(result, settlement, earlier)


def _no_transactions() -> Refused:
    return Refused(
        "expected a worker with a database connection, got a worker over HTTP: return the result "
        "instead, and the worker settles it"
    )
