"""Runs calls for a token's tenant on connections that are shared by all tenants.

A connection of the service sees no row by itself. Each transaction begins with `assume_tenant`,
which looks the token up and sets its tenant until the transaction ends. So the database decides for
every request which rows are visible, also through a pooler. It costs no round trip: the statements
are sent in one pipeline, which PostgreSQL runs as one transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import psycopg
from psycopg.pq import ExecStatus

from helixqueue.errors import HelixError, NotPermitted, Retryable, Unavailable
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.pool import AsyncPool
from helixqueue.postgres.sqlstate import translate
from helixqueue.postgres.statements import sql_texts
from helixqueue.postgres.transaction_bounds import OWN, TransactionBound

T = TypeVar("T")
_SQL = sql_texts("helixqueue.postgres", "tenant_sessions.sql")
# A frozen server does not enforce its own statement timeout; the client gives up this much later.
GRACE_SECONDS = 1.0
_COMMIT, _ROLLBACK = "commit", "rollback"
# Around each call of a transaction, so that a refused one can be undone alone.
_SAVEPOINT, _KEEP, _UNDO = "savepoint call", "release savepoint call", "rollback to savepoint call"


class InvalidToken(NotPermitted):
    """The token is unknown, expired or revoked."""

    kind = "unauthenticated"

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
        self.pool = AsyncPool(connect, size=connections, wait_seconds=wait_seconds)
        self.seconds = statement_seconds
        self.time_limit = _milliseconds(statement_seconds)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self, token_hash: bytes, call: Call[T], *more: Call[Any], tenant: str | None = None
    ) -> T:
        """Run `call`, and `more` in the same transaction, for the tenant of the token.

        `tenant` is used only to share the connections fairly between tenants.
        """
        return await self.run_as(self.assume(token_hash), call, *more, tenant=tenant)

    async def run_as(
        self, assume: Call[Any], call: Call[T], *more: Call[Any], tenant: str | None = None
    ) -> T:
        """The same with another first call, which returns whether it set a tenant."""

        async def transaction() -> T:
            async with self.pool.database(tenant) as database:
                rows = await self.bounded(database, _pipeline(database, [assume, call, *more]))
            return call.read(rows[0])

        return await self._run_to_end(transaction())

    def transaction(self, token_hash: bytes, tenant: str) -> TenantTransaction:
        """A transaction of several calls, which holds a connection between them."""
        return TenantTransaction(self, token_hash, tenant)

    def assume(self, token_hash: bytes) -> Call[Any]:
        """The first call of every transaction."""
        return Call(_SQL["assume_tenant"], (token_hash, self.time_limit), list)

    async def run_without_tenant(self, call: Call[T]) -> T:
        """Run a call that concerns no tenant."""

        async def transaction() -> T:
            async with self.pool.database() as database:
                return await self.bounded(database, database.run(call))

        return await self._run_to_end(transaction())

    async def is_pooled(self) -> bool:
        """Whether a pooler is between this process and the server, detected by its process id."""
        backend = Call(_SQL["backend"], (), lambda rows: rows[0][0])

        async def transaction() -> bool:
            async with self.pool.database() as database:
                process = await self.bounded(database, database.run(backend))
                return bool(process != database.connection.info.backend_pid)

        return await self._run_to_end(transaction())

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pool.close()

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

    async def bounded(self, database: AsyncDatabase, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.seconds + GRACE_SECONDS):
                return await work
        except TimeoutError:
            database.connection.pgconn.finish()
            raise Unavailable(
                f"the database did not answer in {self.seconds:g} s; repeat the call",
                outcome_unknown=True,
            ) from None


class TransactionLost(Exception):
    """The transaction was rolled back, or its commit got no answer; `error` is the cause.

    Not a `HelixError`: a call of the transaction must not be retried alone.
    """

    def __init__(self, error: HelixError) -> None:
        super().__init__(str(error))
        self.error = error


class TenantTransaction:
    """Several calls for one tenant that commit together; can be begun again after its end."""

    def __init__(self, sessions: TenantSessions, token_hash: bytes, tenant: str) -> None:
        self._sessions = sessions
        self._assume = sessions.assume(token_hash)
        self._tenant = tenant
        # A process that freezes here keeps its locks; the server ends its transaction.
        limits = TransactionBound(silent=sessions.seconds + GRACE_SECONDS, total=OWN.total)
        self._begin = (Call("begin", (), list), limits.call())
        self._database: AsyncDatabase | None = None
        self._connection = AsyncExitStack()  # returns the connection to the pool

    async def begin(self, call: Call[T]) -> T:
        """Commit what is open, then run the first call of a new transaction."""
        if self._database is not None:
            await self.commit()
        database = await self._connection.enter_async_context(
            self._sessions.pool.database(self._tenant)
        )
        self._database = database
        try:
            rows = await self._sessions.bounded(
                database, _pipeline(database, [self._assume, call], begin=self._begin)
            )
        except BaseException:
            await self.rollback()
            raise
        return call.read(rows[0])

    async def run(self, call: Call[T]) -> T:
        """Run a further call. If it is refused, only this call is undone."""
        reply: T = await self._run(call, _KEEP)
        return reply

    async def commit(self, call: Call[Any] | None = None) -> Any:  # noqa: ANN401 - what the call returns
        """Run the last call, if any, and commit in the same round trip."""
        reply = await self._run(call, _COMMIT)
        self._database = None
        await self._connection.aclose()
        return reply

    async def rollback(self) -> None:
        """Undo everything; nothing to do after a commit."""
        database, self._database = self._database, None
        if database is None:
            return
        try:
            await self._sessions.bounded(database, database.connection.execute(_ROLLBACK))
        except (psycopg.Error, HelixError):
            database.connection.pgconn.finish()  # the server rolls back
        await self._connection.aclose()

    async def _run(self, call: Call[Any] | None, end: str) -> Any:  # noqa: ANN401
        database = self._database
        if database is None:
            raise TransactionLost(Unavailable("the transaction has ended; repeat the request"))
        statements: list[Call[Any] | str] = [end] if call is None else [_SAVEPOINT, call, end]
        try:
            rows = await self._sessions.bounded(database, _send(database, statements))
        except (Unavailable, Retryable) as error:
            await self.rollback()
            raise TransactionLost(error) from error
        except HelixError:
            await self._undo(database)
            raise
        return None if call is None else call.read(rows)

    async def _undo(self, database: AsyncDatabase) -> None:
        try:
            await self._sessions.bounded(database, database.connection.execute(_UNDO))
        except psycopg.Error as error:
            await self.rollback()
            raise TransactionLost(translate(error)) from error


async def _send(database: AsyncDatabase, statements: Sequence[Call[Any] | str]) -> list[Row]:
    """Run statements in one round trip; returns the rows of the call among them."""
    connection = database.connection
    rows: list[Row] = []
    cursor = None
    try:
        async with connection.pipeline():
            for statement in statements:
                if isinstance(statement, str):
                    await connection.execute(statement.encode())
                else:
                    cursor = connection.cursor(binary=True)
                    await cursor.execute(statement.sql, statement.args)
        if cursor is not None:
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise translate(error) from error
    return rows


async def _pipeline(
    database: AsyncDatabase, calls: Sequence[Call[Any]], *, begin: Sequence[Call[Any]] = ()
) -> list[list[Row]]:
    """Return the rows of each statement but the first; one transaction, one round trip.

    With `begin` the transaction stays open.
    """
    connection = database.connection
    cursors = [connection.cursor(binary=True) for _ in calls]
    failure: HelixError | None = None
    try:
        async with connection.pipeline():
            for call in begin:
                await connection.execute(call.sql.encode(), call.args)
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
