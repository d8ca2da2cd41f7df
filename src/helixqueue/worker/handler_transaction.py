"""How a handler ends its attempt itself, in one commit with its own rows.

The settle is the last statement of the transaction. When it is refused the transaction cannot be
committed, the handler gets `LeaseLost`, and the worker repeats the refused settle afterwards,
alone, so that the refusal stays on record. A commit whose answer was lost leaves a doubt on the
attempt; the worker resolves it from the ledger when the handler has ended. Until then the lease is
not renewed: the renewal of a batch that has completed would be refused, and kept as a refusal.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helixqueue.errors import GiveUp, HelixError, LeaseLost, Refused, Retry, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.worker import outcomes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from helixqueue.queues import Queue, Schema
    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        HandlerTransactions,
        Settlement,
        WriteResult,
    )
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.lease import WorkerHandle

R = TypeVar("R")


class _Ending(Generic[R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: WorkerHandle,
        connection: Any,
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._schema = schema
        self._grip = grip
        self.connection = connection

    def _completed(self, result: R) -> Settlement:
        return outcomes.completed(self._attempt.row, self._queue, self._schema, result)

    def _failed(self, reason: str, after: float | None, *, permanent: bool) -> Settlement:
        error = GiveUp(reason) if permanent else Retry(after, reason)
        return outcomes.failed(self._attempt.row, error)

    def _judge(
        self, answer: WriteResult, settlement: Settlement, earlier: Settlement | None
    ) -> None:
        """Raise unless the engine took the settlement; `earlier` was in doubt before it."""
        if answer.answer == "ok":
            return
        if answer.answer == "repeat":
            if answer.mismatch:
                outcomes.report_mismatch(self._attempt.row.batch_id, self._grip.worker)
            self._attempt.settled = settlement.outcome
            raise LeaseLost(
                "this attempt has been settled before; that transaction took effect, and this one "
                "does not: end an attempt once"
            )
        # The answer of an earlier commit was lost. If it took effect, this attempt was settled and
        # not lost: the worker decides by the ledger.
        self._attempt.doubt = earlier
        if earlier is not None:
            raise LeaseLost(
                f"the batch is {answer.state}; an earlier transaction of this attempt may have "
                "ended it, and this one takes no effect: end an attempt once",
                owner=answer.owner,
            )
        self._attempt.refused = settlement
        self._attempt.ends("lost", f"refused: the batch is {answer.state}", answer.owner)
        raise _too_late(self._attempt)

    def _demand_held(self) -> None:
        if self._attempt.settled:
            raise Refused("this attempt has been settled; a handler ends it once")
        if self._attempt.end is not None:
            raise _too_late(self._attempt)


def _too_late(attempt: Attempt) -> LeaseLost:
    owner = f", {attempt.owner} had it next" if attempt.owner else ""
    return LeaseLost(
        f"batch {attempt.row.batch_id} is not this worker's any more ({attempt.why}{owner}); "
        "nothing of this attempt is written",
        owner=attempt.owner,
    )


class _Deferred(_Ending[R]):
    """`complete` and `fail` say what is to be settled when the block ends."""

    settlement: Settlement | None = None
    _earlier: Settlement | None = None  # what was in doubt when this transaction settled
    _accepted = False  # the engine took the settlement; it counts when the transaction commits

    def complete(self, result: R) -> R:
        """The work is done: COMPLETED with this result, when the block ends."""
        self.settlement = self._completed(result)
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """The attempt failed, and the rows of this transaction stay all the same."""
        self.settlement = self._failed(reason, after, permanent=permanent)

    def _demanded(self) -> Settlement:
        """What to settle at the end of the block; without it the rows must not stay."""
        self._demand_held()
        if self.settlement is None:
            raise Refused(
                "lease.transaction(): expected tx.complete(...) or tx.fail(...) before the end of "
                "the block, got neither; the transaction was rolled back because it did not settle "
                "its lease"
            )
        return self.settlement

    def _taken(self, answer: WriteResult, settlement: Settlement) -> None:
        self._judge(answer, settlement, self._earlier)
        self._accepted = True

    def _broken(self, error: BaseException) -> Unavailable | None:
        """The error to raise when the connection broke at the commit, which may have happened."""
        local = self._grip.local or self._grip.async_local
        if not self._accepted or local is None or not local.is_of_the_link(error):
            return None
        return Unavailable(f"the commit may have happened: {error}", outcome_unknown=True)

    def _undone(self) -> None:
        if self._attempt.settled:
            return
        # An accepted settlement disproves an earlier commit in doubt: it found the lease live.
        self._attempt.doubt = None if self._accepted else self._earlier
        is_held = self._attempt.end is None and self._attempt.doubt is None
        if is_held and self.settlement is not None:
            self._grip.loud(self._attempt)

    def _done(self) -> None:
        if self.settlement is not None:
            self._attempt.doubt = None
            self._attempt.settled = self.settlement.outcome
            self._grip.settled(self._attempt)
            failpoint("effect.after")


class Transaction(_Deferred[R]):
    """A transaction that may end the attempt with it; `connection` is psycopg's."""

    @classmethod
    @contextmanager
    def begin(
        cls,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: WorkerHandle,
    ) -> Iterator[Transaction[Any]]:
        if grip.local is None:
            raise _no_database()
        with grip.local.connection() as connection:
            tx: Transaction[Any] = cls(attempt, queue, schema, grip, connection)
            tx._demand_held()
            tx._earlier = attempt.doubt
            try:
                with connection.transaction():
                    yield tx
                    tx._settle(grip.local)
            except BaseException as error:
                if (broken := tx._broken(error)) is not None:
                    grip.quiet(attempt, for_good=True)
                    raise broken from error
                tx._undone()
                raise
        tx._done()

    def execute(self, query: Any, params: Any = None) -> Any:
        """A statement of yours; psycopg's cursor."""
        return self.connection.execute(query, params)

    def submit(self, queue: Any, **options: Any) -> Any:
        """Chain the next step: as `helix.submit`, and it commits or vanishes with this."""
        return self._grip.submit(queue, within=self.connection, **options)

    def _settle(self, local: HandlerTransactions) -> None:
        settlement = self._attempt.doubt = self._demanded()
        self._grip.quiet(self._attempt)
        self._demand_held()
        seconds = self._attempt.row.lease_seconds
        self._taken(local.settle_within(self.connection, settlement, seconds), settlement)


class AsyncTransaction(_Deferred[R]):
    """The same on psycopg's async connection."""

    @classmethod
    @asynccontextmanager
    async def begin(
        cls,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: WorkerHandle,
    ) -> AsyncIterator[AsyncTransaction[Any]]:
        if grip.async_local is None:
            raise _no_database()
        async with grip.async_local.connection() as connection:
            tx: AsyncTransaction[Any] = cls(attempt, queue, schema, grip, connection)
            tx._demand_held()
            tx._earlier = attempt.doubt
            try:
                async with connection.transaction():
                    yield tx
                    await tx._settle(grip.async_local)
            except BaseException as error:
                if (broken := tx._broken(error)) is not None:
                    await grip.quiet_async(attempt, for_good=True)
                    raise broken from error
                tx._undone()
                raise
        tx._done()

    async def execute(self, query: Any, params: Any = None) -> Any:
        """A statement of yours; psycopg's cursor."""
        return await self.connection.execute(query, params)

    async def submit(self, queue: Any, **options: Any) -> Any:
        """Chain the next step: as `helix.submit`, and it commits or vanishes with this."""
        return await self._grip.submit_async(queue, within=self.connection, **options)

    async def _settle(self, local: AsyncHandlerTransactions) -> None:
        settlement = self._attempt.doubt = self._demanded()
        await self._grip.quiet_async(self._attempt)
        self._demand_held()
        seconds = self._attempt.row.lease_seconds
        self._taken(await local.settle_within(self.connection, settlement, seconds), settlement)


class _OfCaller(_Ending[R]):
    """The end of an attempt in a transaction that only the caller commits."""

    def _undone(self, earlier: Settlement | None) -> None:
        """The settle failed, and with it the caller's transaction."""
        self._attempt.doubt = earlier
        if earlier is None and self._attempt.end is None:
            self._grip.loud(self._attempt)


class Within(_OfCaller[R]):
    """The end of an attempt on a connection of the caller's: its last statement."""

    def complete(self, result: R) -> R:
        """COMPLETED with this result, when your transaction commits."""
        self._settle(self._completed(result))
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """The attempt failed, when your transaction commits."""
        self._settle(self._failed(reason, after, permanent=permanent))

    def submit(self, queue: Any, **options: Any) -> Any:
        """Chain the next step, before the end: it commits or vanishes with your transaction."""
        return self._grip.submit(queue, within=self.connection, **options)

    def _settle(self, settlement: Settlement) -> None:
        self._demand_held()
        if self._grip.local is None:
            raise _no_database()
        # In doubt until the ledger shows it: the caller may roll back, or never commit.
        earlier, self._attempt.doubt = self._attempt.doubt, settlement
        self._grip.quiet(self._attempt, for_good=True)
        seconds = self._attempt.row.lease_seconds
        try:
            answer = self._grip.local.settle_within(
                self.connection, settlement, seconds, of_caller=True
            )
        except HelixError:
            self._undone(earlier)
            raise
        self._judge(answer, settlement, earlier)


class AsyncWithin(_OfCaller[R]):
    """The same for event loops."""

    async def complete(self, result: R) -> R:
        """COMPLETED with this result, when your transaction commits."""
        await self._settle(self._completed(result))
        return result

    async def fail(
        self, reason: str, *, after: float | None = None, permanent: bool = False
    ) -> None:
        """The attempt failed, when your transaction commits."""
        await self._settle(self._failed(reason, after, permanent=permanent))

    async def submit(self, queue: Any, **options: Any) -> Any:
        """Chain the next step, before the end: it commits or vanishes with your transaction."""
        return await self._grip.submit_async(queue, within=self.connection, **options)

    async def _settle(self, settlement: Settlement) -> None:
        self._demand_held()
        if self._grip.async_local is None:
            raise _no_database()
        earlier, self._attempt.doubt = self._attempt.doubt, settlement
        await self._grip.quiet_async(self._attempt, for_good=True)
        seconds = self._attempt.row.lease_seconds
        try:
            answer = await self._grip.async_local.settle_within(
                self.connection, settlement, seconds, of_caller=True
            )
        except HelixError:
            self._undone(earlier)
            raise
        self._judge(answer, settlement, earlier)


def _no_database() -> Refused:
    return Refused(
        "expected a worker beside its database, got one that reaches it otherwise: return the "
        "result instead, and it is settled for you"
    )
