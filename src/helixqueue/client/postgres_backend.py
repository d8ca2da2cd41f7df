"""The backends of clients that connect to PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.client.database_source import DatabaseSource, EmbeddedSource, ServerSource
from helixqueue.client.settings import ResolvedSettings
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import Refused
from helixqueue.operations.batches import Operations
from helixqueue.operations.instructions import (
    Instruction,
    Sleep,
    run_instructions,
    run_instructions_async,
)
from helixqueue.postgres.caller_transaction import run_within, run_within_async
from helixqueue.postgres.database import AsyncDatabase, Database
from helixqueue.postgres.pool import AsyncPool, Pool
from helixqueue.postgres.transaction_bounds import limited_transaction, limited_transaction_async

if TYPE_CHECKING:
    from helixqueue.client.asynchronous import AsyncHelixQueue
    from helixqueue.client.settings import ClientSettings
    from helixqueue.client.sync import HelixQueue
    from helixqueue.ledger.hint_key import HintKeys
    from helixqueue.postgres.call import Call
    from helixqueue.queues import Queue
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

T = TypeVar("T")
# Connections of a worker besides its claim calls: presence, schemas, releases.
MORE_CONNECTIONS = 2


class _PostgresBase:
    def __init__(self, dsn: str | EmbeddedSource, tenant: str, settings: ClientSettings) -> None:
        self._origin, self._settings = (dsn, tenant), settings
        self._resolved = ResolvedSettings.of(settings)
        self.source: DatabaseSource = dsn if isinstance(dsn, EmbeddedSource) else ServerSource(dsn)
        self.operations = Operations(
            POSTGRES_CALLS,
            tenant=tenant,
            actor=self._resolved.actor,
            retry_seconds=self._resolved.retry_seconds,
        )
        self._connection = self._resolved.connection(tenant)
        self._hint_keys: list[HintKeys] = []  # each has a connection

    def transport(self, options: WorkerOptions) -> Transport:
        from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - loaded when used

        tenant = None if options.all_tenants else self.operations.tenant
        return PostgresTransport(
            self.source.open(),
            worker=options.worker,
            connections=options.concurrent_calls + MORE_CONNECTIONS,
            handlers=options.slots,
            options=self._resolved.connection(tenant),
            tenant=tenant,
        )

    def connect(self) -> Database:
        """Open a connection of the caller's own."""
        return Database.connect(self.source.open(), **self._connection)

    def hint_key(self, ledger: str) -> HintKeys:
        """Return what a cache of a ledger's seqs needs of this database."""
        if self._resolved.pooled:
            raise Refused(
                "hint: expected a direct connection, got pooled=True: behind a pooler a client "
                "cannot tell that its database was restored"
            )
        from helixqueue.ledger.hint_key import HintKeys  # noqa: PLC0415 - needs redis

        key = HintKeys(self.connect, self.operations.tenant, ledger)
        self._hint_keys.append(key)
        return key

    def _close_hints(self) -> None:
        for key in self._hint_keys:
            key.close()

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "direct",
            "origin": [self.source.open(), self.operations.tenant],
            "settings": self._settings,
        }


class PostgresBackend(_PostgresBase):
    """A connection pool that threads share."""

    def __init__(self, dsn: str | EmbeddedSource, tenant: str, settings: ClientSettings) -> None:
        super().__init__(dsn, tenant, settings)
        self.pool = Pool(
            self.connect,
            size=self._resolved.connections,
            wait_seconds=self._resolved.wait_seconds,
        )

    def open(self) -> None:
        self.source.open()

    def close(self) -> None:
        self._close_hints()
        self.pool.close()
        self.source.close()

    def disconnect(self) -> None:
        self.pool.close()

    def run(self, call: Call[T]) -> T:
        with self.pool.database() as database:
            return database.run(call)

    def perform(self, instruction: Instruction) -> Any:
        if isinstance(instruction, Sleep):
            time.sleep(instruction.seconds)
            return None
        if instruction.within is not None:
            return run_within(instruction.within, instruction.call)
        with self.pool.database() as database:
            if instruction.call.is_chunk:
                with limited_transaction(database):
                    return database.run(instruction.call)
            return database.run(instruction.call)

    def declare(self, queue: Queue[Any, Any] | str) -> None:
        run_instructions(self.operations.known(queue), self.perform)

    def async_client(self) -> AsyncHelixQueue:
        from helixqueue.client.asynchronous import AsyncHelixQueue  # noqa: PLC0415 - loaded when used

        return AsyncHelixQueue(*self._origin, **self._settings)


class AsyncPostgresBackend(_PostgresBase):
    """A connection pool that tasks share."""

    def __init__(self, dsn: str | EmbeddedSource, tenant: str, settings: ClientSettings) -> None:
        super().__init__(dsn, tenant, settings)
        self.pool = AsyncPool(
            self._connect,
            size=self._resolved.connections,
            wait_seconds=self._resolved.wait_seconds,
        )

    async def _connect(self) -> AsyncDatabase:
        # Embedded servers may take seconds to start; other tasks go on meanwhile.
        dsn = await asyncio.to_thread(self.source.open)
        return await AsyncDatabase.connect(dsn, **self._connection)

    async def open(self) -> None:
        await asyncio.to_thread(self.source.open)

    async def close(self) -> None:
        self._close_hints()
        await self.pool.close()
        await asyncio.to_thread(self.source.close)

    async def disconnect(self) -> None:
        await self.pool.close()

    async def run(self, call: Call[T]) -> T:
        async with self.pool.database() as database:
            return await database.run(call)

    async def perform(self, instruction: Instruction) -> Any:
        if isinstance(instruction, Sleep):
            await asyncio.sleep(instruction.seconds)
            return None
        if instruction.within is not None:
            return await run_within_async(instruction.within, instruction.call)
        async with self.pool.database() as database:
            if instruction.call.is_chunk:
                async with limited_transaction_async(database):
                    return await database.run(instruction.call)
            return await database.run(instruction.call)

    async def declare(self, queue: Queue[Any, Any] | str) -> None:
        await run_instructions_async(self.operations.known(queue), self.perform)

    def sync_client(self) -> HelixQueue:
        from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - loaded when used

        return HelixQueue(*self._origin, **self._settings)
