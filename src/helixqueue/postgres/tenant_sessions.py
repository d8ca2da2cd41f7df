"""Runs calls for a token's tenant on connections that are shared by all tenants.

A connection of the service sees no row by itself. Each transaction begins with `assume_tenant`,
which looks the token up and sets its tenant until the transaction ends. So the database decides for
every request which rows are visible, also through a pooler. It costs no round trip: the statements
are sent in one pipeline, which PostgreSQL runs as one transaction.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import ExecStatus

from helixqueue.errors import HelixError, NotPermitted, Unavailable
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.pool import AsyncPool
from helixqueue.postgres.sqlstate import translate
from helixqueue.postgres.statements import sql_texts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence

T = TypeVar("T")
_SQL = sql_texts("helixqueue.postgres", "tenant_sessions.sql")
# A frozen server does not enforce its own statement timeout; the client gives up this much later.
GRACE_SECONDS = 1.0


class InvalidToken(NotPermitted):
    """The token is unknown, expired or revoked."""

    def __init__(self) -> None:
        super().__init__("the token is unknown, expired or revoked")


class TenantSessions:
    """A pool of connections, each of which serves one tenant per transaction."""

    def __init__(
        self,
        dsn: str,
        *,
        connections: int,
        connect_seconds: float,
        statement_seconds: float,
        wait_seconds: float,
        pooled: bool,
    ) -> None:
        async def connect() -> AsyncDatabase:
            return await AsyncDatabase.connect(
                dsn,
                pooled=pooled,
                timeout_seconds=connect_seconds,
                statement_seconds=statement_seconds,
            )

        self.connect = connect
        self._pool = AsyncPool(connect, size=connections, wait_seconds=wait_seconds)
        self._seconds = statement_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self, token_hash: bytes, call: Call[T], *more: Call[Any], tenant: str | None = None
    ) -> T:
        """Run `call`, and `more` in the same transaction, for the tenant of the token.

        `tenant` is used only to share the connections fairly between tenants.
        """
        assume: Call[Any] = Call(
            _SQL["assume_tenant"], (token_hash, _milliseconds(self._seconds)), list
        )

        async def transaction() -> T:
            async with self._pool.database(tenant) as database:
                rows = await self._bounded(database, _pipeline(database, [assume, call, *more]))
            return call.read(rows[0])

        return await self._run_to_end(transaction())

    async def run_without_tenant(self, call: Call[T]) -> T:
        """Run a call that concerns no tenant."""

        async def transaction() -> T:
            async with self._pool.database() as database:
                return await self._bounded(database, database.run(call))

        return await self._run_to_end(transaction())

    async def is_pooled(self) -> bool:
        """Whether a pooler is between this process and the server, detected by its process id."""
        backend = Call(_SQL["backend"], (), lambda rows: rows[0][0])

        async def transaction() -> bool:
            async with self._pool.database() as database:
                process = await self._bounded(database, database.run(backend))
                return bool(process != database.connection.info.backend_pid)

        return await self._run_to_end(transaction())

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._pool.close()

    async def _run_to_end(self, transaction: Coroutine[Any, Any, T]) -> T:
        """Finish a transaction that was sent, even if the caller is cancelled meanwhile."""
        task = asyncio.ensure_future(transaction)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return await asyncio.shield(task)

    def _finish(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here: a cancelled caller no longer does it

    async def _bounded(self, database: AsyncDatabase, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                return await work
        except TimeoutError:
            database.connection.pgconn.finish()
            raise Unavailable(
                f"the database did not answer in {self._seconds:g} s; repeat the call",
                outcome_unknown=True,
            ) from None


async def _pipeline(database: AsyncDatabase, calls: Sequence[Call[Any]]) -> list[list[Row]]:
    """Return the rows of each statement but the first; one transaction, one round trip."""
    connection = database.connection
    cursors = [connection.cursor(binary=True) for _ in calls]
    failure: HelixError | None = None
    try:
        async with connection.pipeline():
            for cursor, call in zip(cursors, calls, strict=True):
                await cursor.execute(call.sql, call.args)
    except psycopg.Error as error:
        failure = translate(error)
    # Without a tenant no row was visible, whatever the statements after it returned.
    result = cursors[0].pgresult
    if result is not None and result.status == ExecStatus.TUPLES_OK:
        [(assumed, _)] = await cursors[0].fetchall()
        if not assumed:
            raise InvalidToken
    if failure is not None:
        raise failure
    return [await cursor.fetchall() for cursor in cursors[1:]]


def assume_tenant(connection: psycopg.Connection[Any], token_hash: bytes, seconds: float) -> None:
    """Set the token's tenant; the first statement of a transaction on a sync connection."""
    args = (token_hash, _milliseconds(seconds))
    row = connection.execute(_SQL["assume_tenant"].encode(), args).fetchone()
    if row is None or not row[0]:
        raise InvalidToken


def limit_statement_time(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Limit each following statement of this transaction."""
    connection.execute(_SQL["limit_statement_time"].encode(), (_milliseconds(seconds),))


def _milliseconds(seconds: float) -> str:
    """At least 1: PostgreSQL takes 0 as no limit."""
    return str(max(1, round(seconds * 1000)))
