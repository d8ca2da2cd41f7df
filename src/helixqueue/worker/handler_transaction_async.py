"""The transactions in which a handler settles its lease (`handler_settlement`)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import HelixError
from helixqueue.worker.handler_settlement import (
    CallerSettlement,
    DeferredSettlement,
    no_transactions,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import AsyncHandlerTransactions, Settlement
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

R = TypeVar("R")


class AsyncTransaction(DeferredSettlement[R]):
    """A transaction that settles the lease; `connection` is psycopg's."""

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
            raise no_transactions()
        async with handle.async_transactions.connection() as connection:
            tx: AsyncTransaction[Any] = cls(attempt, queue, schema, handle, connection)
            tx._require_held()
            tx._earlier = attempt.unconfirmed
            try:
                async with connection.transaction():
                    await handle.async_transactions.limit(connection, attempt.row.lease_seconds)
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
        settlement = self._required_settlement()
        if settlement.outcome == "completed":
            await self._handle.stage_outputs_async(self._attempt)
        self._attempt.unconfirmed = settlement
        await self._handle.pause_renewal_async(self._attempt)
        self._require_held()
        seconds = self._attempt.row.lease_seconds
        result = await transactions.settle_within(self.connection, settlement, seconds)
        self._accept(result, settlement)


class AsyncCallerTransaction(CallerSettlement[R]):
    """Settles on a connection of the caller, as the last statement of its transaction."""

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
            raise no_transactions()
        if settlement.outcome == "completed":
            await self._handle.stage_outputs_async(self._attempt)
        # Unconfirmed until the ledger shows it: the caller may roll back, or never commit.
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
