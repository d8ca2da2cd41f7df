"""The backend of clients that connect to PostgreSQL."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.client.postgres_connections import PostgresConnections
from helixqueue.operations.instructions import Instruction, Sleep, run_instructions_async
from helixqueue.postgres.caller_transaction import run_within_async
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.pool import AsyncPool
from helixqueue.postgres.transaction_bounds import limited_transaction_async

if TYPE_CHECKING:
    from helixqueue.client.database_source import EmbeddedSource
    from helixqueue.client.settings import ClientSettings
    from helixqueue.postgres.call import Call
    from helixqueue.queues import Queue

T = TypeVar("T")


class AsyncPostgresBackend(PostgresConnections):
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
