"""The lease that a handler receives: the payload, the identity, and ways to settle it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.outputs.scratch import output_path
from helixqueue.records.lease import SealedToken
from helixqueue.worker.handler_transaction import CallerTransaction, Transaction
from helixqueue.worker.handler_transaction_async import AsyncCallerTransaction, AsyncTransaction

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from pathlib import Path
    from uuid import UUID

    from helixqueue.queues import Queue
    from helixqueue.schemas import Schema
    from helixqueue.transport.protocol import LeaseRow
    from helixqueue.worker.attempt import Attempt
    from helixqueue.worker.handle import WorkerHandle

P = TypeVar("P", default=Any)
R = TypeVar("R", default=Any)
LOG = logging.getLogger("helixqueue.worker")


class _LeaseLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: str, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        extra = self.extra or {}
        return f"{extra['queue']} {extra['identity']!a} attempt {extra['attempt']}: {msg}", {
            **kwargs,
            "extra": extra,
        }


class _BaseLease(Generic[P, R]):
    def __init__(
        self,
        attempt: Attempt,
        queue: Queue[Any, Any] | None,
        schema: Schema | None,
        handle: WorkerHandle,
    ) -> None:
        self._attempt = attempt
        self._queue = queue
        self._schema = schema
        self._handle = handle

    @cached_property
    def payload(self) -> P:
        """The payload, as the payload type of the queue if it declares one."""
        text = self._attempt.row.payload
        value: Any = None if text is None else json.loads(text)
        payload_type = None if self._queue is None else self._queue.payload
        typed: P = value if payload_type is None else payload_type.read(value)
        return typed

    @property
    def identity(self) -> str | tuple[str, ...] | None:
        """The canonical identity; a tuple if it has several parts."""
        text = self._attempt.row.identity
        parts = () if text is None else tuple(text.split(PART_SEPARATOR))
        return parts if len(parts) > 1 else text

    @property
    def held(self) -> LeaseRow:
        """The row of the lease, with a token that is valid for this lease only.

        For tests and tools.
        """
        row = self._attempt.row
        return row._replace(token=row.own_token, shares_nonce=False)

    @property
    def worker(self) -> str:
        """Name of the worker that holds the lease."""
        return self._handle.worker

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
        """Attempt number, starting at 1."""
        return self._attempt.row.attempt

    @property
    def devices(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that this lease holds; the process sees no others."""
        return self._attempt.row.devices or ()

    @property
    def idempotency_key(self) -> str:
        """A key for calls to other systems: unique to the batch, equal in all its attempts."""
        return key_text(self._attempt.row.key)

    @property
    def fencing(self) -> tuple[int, int]:
        """A fencing token for sinks that refuse older writers: it rises with every attempt."""
        token = self._attempt.row.token
        if isinstance(token, SealedToken):
            raise Refused("fencing: expected a worker with a database connection, got one on HTTP")
        return token.epoch, token.number

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the queue, the identity and the attempt."""
        fields = {
            "batch": str(self.batch_id),
            "queue": self.queue,
            "identity": self.identity,
            "attempt": self.attempt,
        }
        return _LeaseLogger(LOG, fields)

    def output(self, name: str) -> Path:
        """Where to write the output file `name`, such as "reads/a.fastq".

        The worker publishes it when the batch is completed, in the destination of the queue. What
        an attempt that failed or lost its lease wrote is never published.
        """
        if self._attempt.staged is not None:
            raise Refused(f"output {name!a}: expected it before the lease is settled")
        return output_path(self._attempt.make_output_directory(), name)

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Report progress from 0 to 1, shown to operators. It is cheap: call it often."""
        if fraction is not None and not 0 <= fraction <= 1:
            raise Refused(f"progress: expected a fraction from 0 to 1, got {fraction!r}")
        self._attempt.report_progress(fraction, str(note)[:200])


class Lease(_BaseLease[P, R]):
    """The lease of a `def` handler."""

    @cached_property
    def lost(self) -> threading.Event:
        """Set when this worker has lost the lease: stop, because nothing will be written."""
        event = threading.Event()
        self._attempt.on_stop(event.set)
        return event

    def transaction(self) -> AbstractContextManager[Transaction[R]]:
        """Commit your rows and settle this lease in one transaction, on a psycopg connection.

        Call `complete` or `fail` inside the block. A block that ends without either is rolled back
        and raises `Refused`: its rows would stay without a settled lease.
        """
        return Transaction.begin(self._attempt, self._queue, self._schema, self._handle)

    def within(self, connection: Any) -> CallerTransaction[R]:
        """Settle in your own transaction, on a Session, Connection or psycopg connection.

        Settle last, at the top level of the transaction: inside a savepoint, `complete` and `fail`
        raise `NotInTransaction`. Rolling back to a savepoint would undo the refusal of a lost
        lease, and the rest of the transaction could still commit.
        """
        return CallerTransaction(self._attempt, self._queue, self._schema, self._handle, connection)


class AsyncLease(_BaseLease[P, R]):
    """The lease of an `async def` handler."""

    @cached_property
    def lost(self) -> asyncio.Event:
        """Set when this worker has lost the lease; the handler is cancelled as well."""
        event = asyncio.Event()
        self._attempt.on_stop(event.set)
        return event

    def transaction(self) -> AbstractAsyncContextManager[AsyncTransaction[R]]:
        """Commit your rows and settle this lease in one transaction, on a psycopg connection.

        Call `complete` or `fail` inside the block. A block that ends without either is rolled back
        and raises `Refused`: its rows would stay without a settled lease.
        """
        return AsyncTransaction.begin(self._attempt, self._queue, self._schema, self._handle)

    def within(self, connection: Any) -> AsyncCallerTransaction[R]:
        """Settle in your own transaction, on an async Session, Connection, psycopg or asyncpg.

        Settle last, at the top level of the transaction: inside a savepoint, `complete` and `fail`
        raise `NotInTransaction`. Rolling back to a savepoint would undo the refusal of a lost
        lease, and the rest of the transaction could still commit.
        """
        return AsyncCallerTransaction(
            self._attempt, self._queue, self._schema, self._handle, connection
        )
