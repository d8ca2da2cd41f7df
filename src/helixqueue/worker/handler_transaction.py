# Generated from handler_transaction_async.py by `make twins`: change that file.
"""The transactions in which a handler settles its lease (`handler_settlement`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import HelixError
from helixqueue.worker.handler_settlement import (
    CallerSettlement,
    DeferredSettlement,
    no_transactions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import HandlerTransactions, Settlement
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

R = TypeVar("R")


class Transaction(DeferredSettlement[R]):
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
            raise no_transactions()
        with handle.transactions.connection() as connection:
            tx: Transaction[Any] = cls(attempt, queue, schema, handle, connection)
            tx._require_held()
            tx._earlier = attempt.unconfirmed
            try:
                with connection.transaction():
                    handle.transactions.limit(connection, attempt.row.lease_seconds)
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
        settlement = self._required_settlement()
        if settlement.outcome == "completed":
            self._handle.stage_outputs(self._attempt)
        self._attempt.unconfirmed = settlement
        self._handle.pause_renewal(self._attempt)
        self._require_held()
        seconds = self._attempt.row.lease_seconds
        result = transactions.settle_within(self.connection, settlement, seconds)
        self._accept(result, settlement)


class CallerTransaction(CallerSettlement[R]):
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
            raise no_transactions()
        if settlement.outcome == "completed":
            self._handle.stage_outputs(self._attempt)
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
