"""How a handler ends its attempt itself, in one commit with its own rows.

The settle is the last statement of the transaction. When it is refused the transaction cannot be
committed, the handler gets `LeaseLost`, and the worker says the refused settle again afterwards,
alone, so that the refusal stays on record. A commit whose answer was lost leaves a doubt on the
attempt; the worker resolves it from the ledger when the handler has ended.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from helixqueue.errors import GiveUp, LeaseLost, Refused, Retry, Unavailable
from helixqueue.failpoints import failpoint
from helixqueue.worker import outcomes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from helixqueue.queues import Queue, Schema
    from helixqueue.transport.protocol import Answer, Settlement
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.lease import Grip

R = TypeVar("R")


class _Ending(Generic[R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: Grip,
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

    def _judge(self, answer: Answer, settlement: Settlement) -> None:
        if answer.answer == "ok":
            return
        if answer.answer == "repeat":
            self._attempt.settled = settlement.outcome
            raise LeaseLost(
                "this attempt has been settled before; that transaction took effect, and this one "
                "does not: end an attempt once"
            )
        self._attempt.doubt = None
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

    def complete(self, result: R) -> R:
        """The work is done: COMPLETED with this result, when the block ends."""
        self.settlement = self._completed(result)
        return result

    def fail(self, reason: str, *, after: float | None = None, permanent: bool = False) -> None:
        """The attempt failed, and the rows of this transaction stay all the same."""
        self.settlement = self._failed(reason, after, permanent=permanent)

    def _broken(self, error: BaseException) -> Unavailable | None:
        """What to say when the link broke at the commit: it may have happened."""
        local = self._grip.local or self._grip.async_local
        if self._attempt.doubt is None or local is None or not local.is_of_the_link(error):
            return None
        return Unavailable(f"the commit may have happened: {error}", outcome_unknown=True)

    def _undone(self) -> None:
        if self._attempt.end is None and not self._attempt.settled:
            self._attempt.doubt = None
            if self.settlement is not None:
                self._grip.loud(self._attempt)

    def _done(self) -> None:
        if self.settlement is not None:
            self._attempt.doubt = None
            self._attempt.settled = self.settlement.outcome
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
        grip: Grip,
    ) -> Iterator[Transaction[Any]]:
        if grip.local is None:
            raise _no_database()
        with grip.local.connection() as connection:
            tx: Transaction[Any] = cls(attempt, queue, schema, grip, connection)
            tx._demand_held()
            try:
                with connection.transaction():
                    yield tx
                    tx._settle()
            except BaseException as error:
                if (broken := tx._broken(error)) is not None:
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

    def _settle(self) -> None:
        if self.settlement is not None and self._grip.local is not None:
            self._grip.quiet(self._attempt)
            self._demand_held()
            self._attempt.doubt = self.settlement
            answer = self._grip.local.settle_within(
                self.connection, self.settlement, self._attempt.row.lease_seconds
            )
            self._judge(answer, self.settlement)


class AsyncTransaction(_Deferred[R]):
    """The same on psycopg's async connection."""

    @classmethod
    @asynccontextmanager
    async def begin(
        cls,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: Grip,
    ) -> AsyncIterator[AsyncTransaction[Any]]:
        if grip.async_local is None:
            raise _no_database()
        async with grip.async_local.connection() as connection:
            tx: AsyncTransaction[Any] = cls(attempt, queue, schema, grip, connection)
            tx._demand_held()
            try:
                async with connection.transaction():
                    yield tx
                    await tx._settle()
            except BaseException as error:
                if (broken := tx._broken(error)) is not None:
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

    async def _settle(self) -> None:
        if self.settlement is not None and self._grip.async_local is not None:
            await self._grip.quiet_async(self._attempt)
            self._demand_held()
            self._attempt.doubt = self.settlement
            answer = await self._grip.async_local.settle_within(
                self.connection, self.settlement, self._attempt.row.lease_seconds
            )
            self._judge(answer, self.settlement)


class Within(_Ending[R]):
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
        self._grip.quiet(self._attempt)
        # Until the ledger shows it: the caller may roll back, or never commit.
        self._attempt.doubt = settlement
        self._judge(
            self._grip.local.settle_within(
                self.connection, settlement, self._attempt.row.lease_seconds
            ),
            settlement,
        )


class AsyncWithin(_Ending[R]):
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
        await self._grip.quiet_async(self._attempt)
        self._attempt.doubt = settlement
        answer = await self._grip.async_local.settle_within(
            self.connection, settlement, self._attempt.row.lease_seconds
        )
        self._judge(answer, settlement)


def _no_database() -> Refused:
    return Refused(
        "expected a worker beside its database, got one that reaches it otherwise: return the "
        "result instead, and it is settled for you"
    )
