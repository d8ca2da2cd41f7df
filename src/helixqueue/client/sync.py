"""`HelixQueue`: the client for threads."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client.base import BaseClient
from helixqueue.client.database_source import DatabaseSource, EmbeddedSource, ServerSource
from helixqueue.client.postgres_backend import BACKEND
from helixqueue.client.settings import ResolvedSettings
from helixqueue.operations import submit
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Sleep, Step
from helixqueue.postgres.caller_transaction import run_within
from helixqueue.postgres.database import Database
from helixqueue.postgres.pool import Pool
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from helixqueue.client.settings import ClientSettings
    from helixqueue.fence import Fence, FenceOptions, Fences
    from helixqueue.postgres.call import Call
    from helixqueue.queues import Queue
    from helixqueue.records.lease import Settlement, WriteResult
    from helixqueue.records.submission import Accepted, SubmitOptions, Submitted
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

T = TypeVar("T")
P = TypeVar("P")
R = TypeVar("R")
# Of a worker, beside its rounds: saying hello, looking a schema up, giving back.
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
        chosen = ResolvedSettings.of(settings)
        self.origin, self.settings = (dsn, tenant), settings
        self._chosen = chosen
        home: DatabaseSource = dsn if isinstance(dsn, EmbeddedSource) else ServerSource(dsn)
        self._home = home
        self._desk = Operations(
            BACKEND, tenant=tenant, actor=chosen.actor, patience_seconds=chosen.patience_seconds
        )
        self._pool = Pool(
            lambda: Database.connect(home.open(), **chosen.connection(tenant)),
            size=chosen.connections,
            wait_seconds=chosen.wait_seconds,
        )

    @classmethod
    def embedded(
        cls, directory: str | Path, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> Self:
        """A client of a PostgreSQL in `directory`: created, started or joined when first used."""
        return cls(EmbeddedSource(directory), tenant, **settings)

    def close(self) -> None:
        """Close the connections and leave the embedded servers; closing twice is closing once."""
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
        create: bool = False,
        within: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[R]: ...
    @overload
    def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]: ...
    def submit(
        self,
        queue: Queue[Any, Any] | str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]:
        """Submit work once, however often this is called: new or duplicate, with equal receipts.

        Raises `Conflict` for another payload than the identity stands for, and the named error for
        what is refused. With `within`, it commits or vanishes with the caller's transaction.
        """
        one = Submission(identity, payload, **options)
        return self._do(submit.submit(self._desk, queue, one, create=create, within=within))

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
        """Submit any number, in chunks of 10,000; the answers come in the order of the input.

        A row that is refused or conflicts says so in its answer and hinders no other. Should the
        database go away half-way, submit all of it again: what is there answers as a duplicate.
        """
        return self._do(
            submit.submit_many(self._desk, queue, submissions, create=create, within=within)
        )

    def settle(
        self, worker: str, settlements: Sequence[Settlement], *, within: object = None
    ) -> list[WriteResult]:
        """End attempts; within a caller's transaction this is its last statement."""
        return self._do(self._desk.settle(worker, settlements, within))

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """Let an effect of yours take place once: a decorator, and a context manager.

        `key` are business fields that name the effect, or a function of the arguments that gives
        them. See docs/guides/fences.md.
        """
        return self.fences.fence(name, key, **options)

    @cached_property
    def fences(self) -> Fences:
        """What makes the fences of this client, and counts for metrics."""
        from helixqueue.fence import Fences  # noqa: PLC0415 - loaded when used

        return Fences(self._run, self._desk.tenant, self._desk.actor)

    # For workers.

    def run(self, call: Call[T]) -> T:
        """One call of the store's, on a connection of this client's."""
        return self._run(call)

    def transport(self, options: WorkerOptions) -> Transport:
        """A worker's way to the engine."""
        from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - loaded when used

        return PostgresTransport(
            self._home.open(),
            worker=options.worker,
            connections=options.rounds + MORE_CONNECTIONS,
            handlers=options.slots,
            options=self._chosen.connection(self._desk.tenant),
        )

    def spec(self) -> dict[str, Any]:
        """What another process needs to make this client, as JSON; it may hold a secret."""
        return {
            "kind": "direct",
            "origin": [self._home.open(), self._desk.tenant],
            "settings": self.settings,
        }

    def twin(self) -> Any:
        """The same client for coroutines."""
        from helixqueue.client.asynchronous import AsyncHelixQueue  # noqa: PLC0415

        return AsyncHelixQueue(*self.origin, **self.settings)

    def disconnect(self) -> None:
        """Close the connections, and leave the servers to others of this process."""
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
        return self._run(step.call)
