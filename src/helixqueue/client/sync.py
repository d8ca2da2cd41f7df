"""`HelixQueue`: the client for threads."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client.database_source import DatabaseSource, EmbeddedSource, ServerSource
from helixqueue.client.postgres_backend import BACKEND
from helixqueue.client.settings import ResolvedSettings
from helixqueue.client.sync_client import BaseClient
from helixqueue.operations import submit
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Sleep, Step
from helixqueue.postgres.caller_transaction import run_within
from helixqueue.postgres.database import Database
from helixqueue.postgres.pool import Pool
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from helixqueue.client.settings import ClientSettings
    from helixqueue.fence import Fence, FenceOptions, Fences
    from helixqueue.postgres.call import Call
    from helixqueue.queues import Queue
    from helixqueue.records.lease import Settlement, WriteResult
    from helixqueue.records.submission import Accepted, Submitted
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
# Connections of a worker besides its claim calls: presence, schemas, releases.
MORE_CONNECTIONS = 2


class HelixQueue(BaseClient):
    """A client of one database and one tenant; threads share it, a forked child may go on using it.

    ```python
    with HelixQueue("postgresql://app@db/lab", tenant="lab") as helix:
        helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```
    """

    def __init__(
        self, dsn: str | EmbeddedSource, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> None:
        resolved = ResolvedSettings.of(settings)
        self._origin, self._settings = (dsn, tenant), settings
        self._resolved = resolved
        home: DatabaseSource = dsn if isinstance(dsn, EmbeddedSource) else ServerSource(dsn)
        self._home = home
        self._operations = Operations(
            BACKEND, tenant=tenant, actor=resolved.actor, retry_seconds=resolved.retry_seconds
        )
        self._pool = Pool(
            lambda: Database.connect(home.open(), **resolved.connection(tenant)),
            size=resolved.connections,
            wait_seconds=resolved.wait_seconds,
        )

    @classmethod
    def embedded(
        cls, directory: str | Path, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> Self:
        """Return a client of PostgreSQL in `directory`, created or started at first use."""
        return cls(EmbeddedSource(directory), tenant, **settings)

    def close(self) -> None:
        """Close the connections and release the embedded servers; closing again does nothing."""
        self._pool.close()
        self._home.close()

    def __enter__(self) -> Self:
        self._home.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def submit(
        self,
        queue: Queue[P, R],
        *,
        identity: str | tuple[str, ...] | None,
        payload: P | Mapping[str, Any],
        revision: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        expires_at: datetime | None = None,
        limit_key: str | None = None,
        requires: Mapping[str, Any] | None = None,
        create: bool = False,
        within: object = None,
    ) -> Accepted[R]: ...
    @overload
    def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        revision: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        expires_at: datetime | None = None,
        limit_key: str | None = None,
        requires: Mapping[str, Any] | None = None,
        create: bool = False,
        within: object = None,
    ) -> Accepted[Any]: ...
    def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        revision: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        expires_at: datetime | None = None,
        limit_key: str | None = None,
        requires: Mapping[str, Any] | None = None,
        create: bool = False,
        within: object = None,
    ) -> Accepted[Any]:
        """Submit a batch once: repeated calls return an equal receipt.

        identity: business identifier, in any spelling; None for work without one.
        payload: a JSON value, or an instance of the queue's payload type.
        revision: another revision of an identity is another batch.
        priority: 0 (first) to 9 (last); 5 by default.
        run_at: earliest time of the first attempt.
        expires_at: the batch is cancelled unless an attempt has started by then.
        limit_key: batches with the same key share the queue's `key_limit`.
        requires: resources that a worker needs, instead of the queue's.
        create: create a queue that is passed by name and does not exist.
        within: your connection or session, in a transaction; the batch commits with it.

        The decision is `new` or `duplicate`. Raises `Conflict` if the identity has another payload,
        and other subclasses of `Refused` for invalid submissions.
        """
        submission = Submission(
            identity, payload, revision, priority, run_at, expires_at, limit_key, requires
        )
        return self._do(
            submit.submit(self._operations, queue, submission, create=create, within=within)
        )

    @overload
    def submit_many(
        self,
        queue: Queue[Any, R],
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[R]]: ...
    @overload
    def submit_many(
        self,
        queue: str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[Any]]: ...
    def submit_many(
        self,
        queue: Queue[Any, Any] | str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[Any]]:
        """Submit any number of batches, in chunks of 10,000; answers are in the order of the input.

        A refused or conflicting row has an error in its answer and does not affect the others. If
        the database becomes unavailable, submit all rows again: stored batches are duplicates.
        """
        return self._do(
            submit.submit_many(self._operations, queue, submissions, create=create, within=within)
        )

    def settle(
        self, worker: str, settlements: Sequence[Settlement], *, within: object = None
    ) -> list[WriteResult]:
        """End attempts; within a caller's transaction, as its last statement."""
        return self._do(self._operations.settle(worker, settlements, within))

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """Run an effect once: a decorator and a context manager.

        `key` names the effect by business fields, or is a function of the arguments that returns
        them. See docs/guides/fences.md.
        """
        return self.fences.fence(name, key, **options)

    @cached_property
    def fences(self) -> Fences:
        """Create the fences of this client, and count for metrics."""
        from helixqueue.fence import Fences  # noqa: PLC0415 - loaded when used

        return Fences(self._run, self._operations.tenant, self._operations.actor)

    # For workers.

    def run(self, call: Call[T]) -> T:
        """Run one engine call on a connection of this client."""
        return self._run(call)

    def transport(self, options: WorkerOptions) -> Transport:
        """Return the transport of a worker."""
        from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - loaded when used

        return PostgresTransport(
            self._home.open(),
            worker=options.worker,
            connections=options.concurrent_calls + MORE_CONNECTIONS,
            handlers=options.slots,
            options=self._resolved.connection(self._operations.tenant),
        )

    def spec(self) -> dict[str, Any]:
        """Return JSON from which another process creates this client; may hold a secret."""
        return {
            "kind": "direct",
            "origin": [self._home.open(), self._operations.tenant],
            "settings": self._settings,
        }

    def twin(self) -> Any:
        """Return the same client for coroutines."""
        from helixqueue.client.asynchronous import AsyncHelixQueue  # noqa: PLC0415

        return AsyncHelixQueue(*self._origin, **self._settings)

    def disconnect(self) -> None:
        """Close the connections; embedded servers stay for other clients of this process."""
        self._pool.close()

    def _run(self, call: Call[T]) -> T:
        with self._pool.database() as database:
            return database.run(call)

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        if step.within is not None:
            return run_within(step.within, step.call)
        with self._pool.database() as database:
            return database.run(step.call)
