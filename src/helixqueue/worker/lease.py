"""What a handler is given: the work, who it is for, and the means to end it well."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol

from typing_extensions import TypeVar

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.worker.handler_transaction import AsyncTransaction, AsyncWithin, Transaction, Within

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from uuid import UUID

    from helixqueue.queues import Queue, Schema
    from helixqueue.transport.protocol import (
        AsyncHandlerTransactions,
        HandlerTransactions,
        LeaseRow,
    )
    from helixqueue.worker.attempt import Attempt

P = TypeVar("P", default=Any)
R = TypeVar("R", default=Any)
LOG = logging.getLogger("helixqueue.worker")


class WorkerHandle(Protocol):
    """What a lease needs of the worker that holds it."""

    worker: str

    @property
    def local(self) -> HandlerTransactions | None: ...

    @property
    def async_local(self) -> AsyncHandlerTransactions | None: ...

    def group(self, attempt: Attempt, group: int | None) -> None:
        """The process group that works on it, or none any more."""

    def quiet(self, attempt: Attempt, *, for_good: bool = False) -> None:
        """No renewal of it is under way from here on: it is about to be settled. For threads.

        A lease that is too young for a renewal is left alone, unless this is `for_good`: until the
        handler ends, however long that takes.
        """

    async def quiet_async(self, attempt: Attempt, *, for_good: bool = False) -> None: ...

    def loud(self, attempt: Attempt) -> None:
        """It was not settled after all; renew it again."""

    def settled(self, attempt: Attempt) -> None:
        """Its settlement has committed, and its handler may go on: renew it no more."""

    def submit(self, *args: Any, **options: Any) -> Any: ...

    async def submit_async(self, *args: Any, **options: Any) -> Any: ...


class _Tagged(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        extra = self.extra or {}
        return f"{extra['queue']} {extra['identity']!a} attempt {extra['attempt']}: {msg}", {
            **kwargs,
            "extra": extra,
        }


class _Common(Generic[P, R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        grip: WorkerHandle,
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._schema = schema
        self._grip = grip

    @cached_property
    def payload(self) -> P:
        """As the queue's type, if it was declared with one."""
        text = self._attempt.row.payload
        value: Any = None if text is None else json.loads(text)
        shape = None if self._queue is None else self._queue.payload
        typed: P = value if shape is None else shape.read(value)
        return typed

    @property
    def identity(self) -> str | tuple[str, ...] | None:
        """In its canonical form; a tuple if it has several parts."""
        text = self._attempt.row.identity
        parts = () if text is None else tuple(text.split(PART_SEPARATOR))
        return parts if len(parts) > 1 else text

    @property
    def held(self) -> LeaseRow:
        """The lease as the engine gave it, with a token that proves this lease alone.

        For tests and tools.
        """
        row = self._attempt.row
        return row._replace(token=row.own_token, shares_nonce=False)

    @property
    def worker(self) -> str:
        """Who holds it."""
        return self._grip.worker

    @property
    def revision(self) -> str:
        return self._attempt.row.revision

    @property
    def tenant(self) -> str:
        return self._attempt.row.tenant

    @property
    def queue(self) -> str:
        return self._attempt.row.queue

    @property
    def batch_id(self) -> UUID:
        return self._attempt.row.batch_id

    @property
    def attempt(self) -> int:
        """The how-manieth try this is, from 1."""
        return self._attempt.row.attempt

    @property
    def idempotency_key(self) -> str:
        """For calls to others: the same over all attempts of this batch, and no other batch's."""
        return key_text(self._attempt.row.key)

    @property
    def fencing(self) -> tuple[int, int]:
        """For sinks that refuse what is older: it rises from attempt to attempt."""
        token = self._attempt.row.token
        return token.epoch, token.number

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that says whose line it is."""
        told = {
            "batch": str(self.batch_id),
            "queue": self.queue,
            "identity": self.identity,
            "attempt": self.attempt,
        }
        return _Tagged(LOG, told)

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """How far it is, from 0 to 1, for people; costs nothing and may be called often."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise Refused(f"progress: expected a fraction from 0 to 1, got {fraction!r}")
        self._attempt.note = (fraction, str(note)[:200])


class Lease(_Common[P, R]):
    """What a `def` handler gets."""

    @cached_property
    def lost(self) -> threading.Event:
        """Set when the batch is not this worker's any more: stop, nothing will be written."""
        event = threading.Event()
        self._attempt.when_lost(event.set)
        return event

    def transaction(self) -> AbstractContextManager[Transaction[R]]:
        """Your rows and the end of this attempt in one commit, on a psycopg connection.

        Call `complete` or `fail` inside the block. A block that ends without either is rolled back
        and raises `Refused`: its rows would stay although the attempt did not end.
        """
        return Transaction.begin(self._attempt, self._queue, self._schema, self._grip)

    def within(self, connection: Any) -> Within[R]:
        """The same on a Session, Connection or psycopg connection of yours; settle last.

        Settle at the top level of the transaction: inside a savepoint, `complete` and `fail` raise
        `NotInTransaction`. Rolling back to a savepoint would undo the refusal of a lost lease, and
        the rest of the transaction could still commit.
        """
        return Within(self._attempt, self._queue, self._schema, self._grip, connection)


class AsyncLease(_Common[P, R]):
    """What an `async def` handler gets."""

    @cached_property
    def lost(self) -> asyncio.Event:
        """Set when the batch is not this worker's any more; the handler is cancelled then."""
        event = asyncio.Event()
        self._attempt.when_lost(event.set)
        return event

    def transaction(self) -> AbstractAsyncContextManager[AsyncTransaction[R]]:
        """Your rows and the end of this attempt in one commit, on a psycopg connection.

        Call `complete` or `fail` inside the block. A block that ends without either is rolled back
        and raises `Refused`: its rows would stay although the attempt did not end.
        """
        return AsyncTransaction.begin(self._attempt, self._queue, self._schema, self._grip)

    def within(self, connection: Any) -> AsyncWithin[R]:
        """The same on an async Session, Connection, psycopg or asyncpg connection of yours.

        Settle at the top level of the transaction: inside a savepoint, `complete` and `fail` raise
        `NotInTransaction`. Rolling back to a savepoint would undo the refusal of a lost lease, and
        the rest of the transaction could still commit.
        """
        return AsyncWithin(self._attempt, self._queue, self._schema, self._grip, connection)
