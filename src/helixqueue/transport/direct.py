"""The direct transport: PostgreSQL, through a few connections of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psycopg
from psycopg import sql

from helixqueue.engine import calls, outputs, reads
from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.postgres.caller_transaction import translating
from helixqueue.postgres.database import AsyncDatabase, Database
from helixqueue.postgres.pool import AsyncPool, Pool
from helixqueue.postgres.sqlstate import translate
from helixqueue.postgres.transaction_bounds import END_OVERDUE
from helixqueue.transport.handler_transactions import PostgresHandlerTransactions
from helixqueue.transport.handler_transactions_async import AsyncPostgresHandlerTransactions
from helixqueue.transport.protocol import LeaseRef

if TYPE_CHECKING:
    from helixqueue.operations.instructions import AnyCall
    from helixqueue.postgres.call import Call
    from helixqueue.transport.protocol import (
        ClaimRequest,
        ClaimResult,
        LeaseRow,
        QueueRow,
        Settlement,
        WriteResult,
    )

T = TypeVar("T")
WAIT_SECONDS = 30.0  # for a free connection of this worker


class PostgresTransport:
    """The connections of one worker to one database."""

    calls = calls
    output_calls = outputs
    publishes = True

    def __init__(
        self,
        dsn: str,
        *,
        worker: str,
        connections: int,
        handlers: int,
        options: dict[str, Any],
        tenant: str | None = None,
    ) -> None:
        """`connections` for the calls of the worker, `handlers` for transactions of handlers.

        `options` are the options of `Database.connect`. `tenant` is the tenant to serve; None
        serves every tenant of the login.
        """
        self.worker = worker
        self.tenant = tenant
        self._dsn = dsn
        self._options = options
        self._size = connections
        self._handlers = handlers
        self._pool = AsyncPool(
            lambda: AsyncDatabase.connect(dsn, **options),
            size=connections,
            wait_seconds=WAIT_SECONDS,
        )
        self._sync_handler_pool = Pool(
            lambda: Database.connect(dsn, **options), size=handlers, wait_seconds=WAIT_SECONDS
        )
        self._async_handler_pool = AsyncPool(
            lambda: AsyncDatabase.connect(dsn, **options), size=handlers, wait_seconds=WAIT_SECONDS
        )
        self.transactions = PostgresHandlerTransactions(self._sync_handler_pool, worker)
        self.async_transactions = AsyncPostgresHandlerTransactions(self._async_handler_pool, worker)
        self._wakeup = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._listener: AsyncDatabase | None = None

    def spec(self) -> dict[str, Any]:
        return {
            "transport": "direct",
            "dsn": self._dsn,
            "worker": self.worker,
            "connections": self._size,
            "handlers": self._handlers,
            "options": self._options,
            "tenant": self.tenant,
        }

    async def run(self, call: AnyCall[T]) -> T:
        async with self._pool.database() as database:
            return await database.run(cast("Call[T]", call))

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        failpoint("claim.before")
        claimed = await self.run(
            calls.claim(
                worker=self.worker,
                request=request.request_id,
                queues=request.queues,
                count=request.count,
                free=None if request.free is None else dict(request.free),
                start=True,
                hints=request.hints,
                settle=request.settle,
                tenant=self.tenant,
            )
        )
        if request.settle:
            failpoint("settle.after")
        if claimed.leases:
            failpoint("claim.after")
        return claimed

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        results = await self.run(calls.settle(worker=self.worker, settlements=settlements))
        failpoint("settle.after")
        return results

    async def was_settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        if wait:
            await self._wait_for_row(lease)
        batch_id = lease.batch_id
        events = (await self.run(reads.events(ids=[batch_id])))[batch_id]
        return any(
            event.reason in {"completed", "failed"} and event.number == lease.token.number
            for event in events
        )

    async def _wait_for_row(self, lease: LeaseRow) -> None:
        """Return when no transaction holds the row of the lease.

        A commit whose reply was lost may still be in progress, for instance while it waits for a
        standby. Starting a lease that has started waits for its row and changes nothing. A refusal
        that this records is rolled back, because the lease may have ended by its own settlement.
        """
        call = calls.start(worker=self.worker, leases=[LeaseRef(lease.batch, lease.token)])
        async with self._pool.database() as database:
            with translating():
                async with database.connection.transaction(force_rollback=True):
                    await database.run(call)

    async def queue(self, tenant: str, name: str) -> QueueRow | None:
        return await self.run(calls.queue(tenant=tenant, queue=name))

    # Wake-ups.

    async def subscribe(self, queues: Sequence[str], seconds: float) -> None:
        await self.run(END_OVERDUE)  # what this worker waits for may be held by a frozen handler
        channels = await self.run(calls.wait(worker=self.worker, queues=queues, seconds=seconds))
        if self._options.get("pooled") or (self._listening and not self._listening.done()):
            return  # LISTEN does not work behind a pooler: the worker polls
        await self._stop_listening()
        # Assigned at once, so that a concurrent `close` closes it.
        self._listener = await AsyncDatabase.connect(self._dsn, **self._options)
        try:
            for channel in channels:
                await self._listener.connection.execute(
                    sql.SQL("listen {}").format(sql.Identifier(channel))
                )
        except psycopg.Error as error:
            raise translate(error) from error
        self._listening = asyncio.create_task(self._listen(self._listener.connection))

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Until the connection breaks; the next `subscribe` opens another."""
        with suppress(psycopg.Error):
            async for _ in connection.notifies():
                self._wakeup.set()
        # The server may have restarted: claim at once.
        self._wakeup.set()

    async def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()

    async def wait_for_wakeup(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        self._wakeup.clear()

    async def unsubscribe(self, queues: Sequence[str]) -> None:
        await self.run(calls.wait(worker=self.worker, queues=queues, seconds=0))

    async def close(self) -> None:
        await self._stop_listening()
        with suppress(HelixError):
            await self._pool.close()
            await self._async_handler_pool.close()
        self._sync_handler_pool.close()
