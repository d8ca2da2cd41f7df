"""`AsyncHelixQueue`: the same for event loops."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from helixqueue.client.async_base import AsyncBaseClient
from helixqueue.client.database_source import DatabaseSource, EmbeddedSource, ServerSource
from helixqueue.client.postgres_backend import BACKEND
from helixqueue.client.settings import ResolvedSettings
from helixqueue.operations import submit
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Sleep, Step
from helixqueue.postgres.caller_transaction import run_within_async
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.pool import AsyncPool
from helixqueue.records.submission import Submission

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from helixqueue.client.settings import ClientSettings
    from helixqueue.fence import AsyncFence, AsyncFences, FenceOptions
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


class AsyncHelixQueue(AsyncBaseClient):
    """A client of one database and one tenant; tasks share it, and event loops take turns.

    ```python
    async with AsyncHelixQueue("postgresql://app@db/lab", tenant="lab") as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
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

        async def connect() -> AsyncDatabase:
            # Embedded servers may take seconds to start; other tasks go on meanwhile.
            dsn = await asyncio.to_thread(home.open)
            return await AsyncDatabase.connect(dsn, **chosen.connection(tenant))

        self._pool = AsyncPool(
            connect,
            size=chosen.connections,
            wait_seconds=chosen.wait_seconds,
        )

    @classmethod
    def embedded(
        cls, directory: str | Path, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> Self:
        """A client of a PostgreSQL in `directory`: created, started or joined when first used."""
        return cls(EmbeddedSource(directory), tenant, **settings)

    async def close(self) -> None:
        """Close the connections and leave the embedded servers; closing twice is closing once."""
        await self._pool.close()
        await asyncio.to_thread(self._home.close)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._home.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @overload
    async def submit(
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
    async def submit(
        self,
        queue: str,
        *,
        identity: str | tuple[str, ...] | None,
        payload: Any,
        create: bool = False,
        within: object = None,
        **options: Unpack[SubmitOptions],
    ) -> Accepted[Any]: ...
    async def submit(
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
        return await self._do(submit.submit(self._desk, queue, one, create=create, within=within))

    @overload
    async def submit_many(
        self,
        queue: Queue[Any, R],
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[R]]: ...
    @overload
    async def submit_many(
        self,
        queue: str,
        submissions: Iterable[Submission | Mapping[str, Any]],
        *,
        create: bool = False,
        within: object = None,
    ) -> list[Submitted[Any]]: ...
    async def submit_many(
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
        return await self._do(
            submit.submit_many(self._desk, queue, submissions, create=create, within=within)
        )

    async def settle(
        self, worker: str, settlements: Sequence[Settlement], *, within: object = None
    ) -> list[WriteResult]:
        """End attempts; within a caller's transaction this is its last statement."""
        return await self._do(self._desk.settle(worker, settlements, within))

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> AsyncFence:
        """Let an effect of yours take place once: a decorator, and a context manager.

        `key` are business fields that name the effect, or a function of the arguments that gives
        them. See docs/guides/fences.md.
        """
        return self.fences.fence(name, key, **options)

    @cached_property
    def fences(self) -> AsyncFences:
        """What makes the fences of this client, and counts for metrics."""
        from helixqueue.fence import AsyncFences  # noqa: PLC0415 - loaded when used

        return AsyncFences(self._run, self._desk.tenant, self._desk.actor)

    # For workers.

    async def run(self, call: Call[T]) -> T:
        """One call of the store's, on a connection of this client's."""
        return await self._run(call)

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
        """The same client for threads."""
        from helixqueue.client.sync import HelixQueue  # noqa: PLC0415

        return HelixQueue(*self.origin, **self.settings)

    async def disconnect(self) -> None:
        """Close the connections, and leave the servers to others of this process."""
        await self._pool.close()

    async def _run(self, call: Call[T]) -> T:
        async with self._pool.database() as database:
            return await database.run(call)

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        if step.within is not None:
            return await run_within_async(step.within, step.call)
        return await self._run(step.call)
