"""The direct transport: PostgreSQL, through a few connections of the worker's own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from helixqueue.engine import calls, reads
from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.postgres.caller_transaction import translating
from helixqueue.postgres.database import AsyncDatabase, Database
from helixqueue.postgres.pool import AsyncPool, Pool
from helixqueue.postgres.sqlstate import translate
from helixqueue.transport.handler_transactions import (
    AsyncPostgresHandlerTransactions,
    PostgresHandlerTransactions,
)
from helixqueue.transport.protocol import LeaseRef

if TYPE_CHECKING:
    from collections.abc import Sequence

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
WAIT_SECONDS = 30.0  # for one of this worker's own connections


class PostgresTransport:
    """One worker's way to one database."""

    def __init__(
        self, dsn: str, *, worker: str, connections: int, handlers: int, options: dict[str, Any]
    ) -> None:
        """`connections` for the worker's own calls, `handlers` for their transactions.

        `options` are what `Database.connect` takes.
        """
        self.worker = worker
        self._dsn = dsn
        self._options = options
        self._size = connections
        self._handlers = handlers
        self._pool = AsyncPool(
            lambda: AsyncDatabase.connect(dsn, **options),
            size=connections,
            wait_seconds=WAIT_SECONDS,
        )
        self._threads = Pool(
            lambda: Database.connect(dsn, **options), size=handlers, wait_seconds=WAIT_SECONDS
        )
        self._tasks = AsyncPool(
            lambda: AsyncDatabase.connect(dsn, **options), size=handlers, wait_seconds=WAIT_SECONDS
        )
        self.local = PostgresHandlerTransactions(self._threads, worker)
        self.async_local = AsyncPostgresHandlerTransactions(self._tasks, worker)
        self._woken = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._ear: AsyncDatabase | None = None

    def spec(self) -> dict[str, Any]:
        return {
            "transport": "direct",
            "dsn": self._dsn,
            "worker": self.worker,
            "connections": self._size,
            "handlers": self._handlers,
            "options": self._options,
        }

    async def claim(self, ask: ClaimRequest) -> ClaimResult:
        failpoint("claim.before")
        claimed = await self._run(
            calls.claim(
                worker=self.worker,
                request=ask.request,
                queues=ask.queues,
                count=ask.count,
                free=None if ask.free is None else dict(ask.free),
                start=True,
                hints=ask.hints,
                settle=ask.settle,
            )
        )
        if ask.settle:
            failpoint("settle.after")
        if claimed.leases:
            failpoint("claim.after")
        return claimed

    async def renew(self, held: Sequence[LeaseRef]) -> list[WriteResult]:
        failpoint("renew.before")
        answers = await self._run(calls.renew(worker=self.worker, leases=held))
        failpoint("renew.after")
        return answers

    async def settle(self, settlements: Sequence[Settlement]) -> list[WriteResult]:
        answers = await self._run(calls.settle(worker=self.worker, settlements=settlements))
        failpoint("settle.after")
        return answers

    async def release(self, held: Sequence[LeaseRef], detail: str) -> list[WriteResult]:
        failpoint("release.before")
        answers = await self._run(calls.release(worker=self.worker, leases=held, detail=detail))
        failpoint("release.after")
        return answers

    async def settled(self, lease: LeaseRow, *, wait: bool = True) -> bool:
        if wait:
            await self._wait_for_row(lease)
        batch_id = lease.batch_id
        events = (await self._run(reads.events(ids=[batch_id])))[batch_id]
        return any(
            event.reason in {"completed", "failed"} and event.number == lease.token.number
            for event in events
        )

    async def _wait_for_row(self, lease: LeaseRow) -> None:
        """Return when no transaction holds the lease's row.

        A commit whose answer was lost may still be under way, for instance while it waits for a
        standby. To start a lease that was started long ago waits for its row and changes nothing;
        a refusal that it leaves is rolled back, because it may be this lease's own end.
        """
        call = calls.start(worker=self.worker, leases=[LeaseRef(lease.batch, lease.token)])
        async with self._pool.database() as database:
            with translating():
                async with database.connection.transaction(force_rollback=True):
                    await database.run(call)

    async def queue(self, tenant: str, name: str) -> QueueRow | None:
        return await self._run(calls.queue(tenant=tenant, queue=name))

    async def hello(self, told: dict[str, Any]) -> None:
        await self._run(calls.hello(worker=self.worker, free=told))

    # Waking.

    async def expect(self, queues: Sequence[str], seconds: float) -> None:
        channels = await self._run(calls.wait(worker=self.worker, queues=queues, seconds=seconds))
        if self._options.get("pooled") or (self._listener and not self._listener.done()):
            return  # behind a pooler nobody can be told: the poll interval is all there is
        await self._stop_listening()
        # Kept from the start: whoever closes this transport in between closes it too.
        self._ear = await AsyncDatabase.connect(self._dsn, **self._options)
        try:
            for channel in channels:
                await self._ear.connection.execute(
                    sql.SQL("listen {}").format(sql.Identifier(channel))
                )
        except psycopg.Error as error:
            raise translate(error) from error
        self._listener = asyncio.create_task(self._listen(self._ear.connection))

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Until the connection breaks; whoever expects next makes another."""
        with suppress(psycopg.Error):
            async for _ in connection.notifies():
                self._woken.set()
        # A server that went away is a reason to look at once.
        self._woken.set()

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._ear is not None:
            await self._ear.close()

    async def woken(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        self._woken.clear()

    async def busy(self, queues: Sequence[str]) -> None:
        await self._run(calls.wait(worker=self.worker, queues=queues, seconds=0))

    async def close(self) -> None:
        await self._stop_listening()
        with suppress(HelixError):
            await self._pool.close()
            await self._tasks.close()
        self._threads.close()

    async def _run(self, call: Call[T]) -> T:
        async with self._pool.database() as database:
            return await database.run(call)
