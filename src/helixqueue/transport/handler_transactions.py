"""Connections for handlers, and the settle as the last statement of their transactions.

A refused settle leaves the caller's transaction in a state in which it cannot be committed, whoever
catches the error: the effect of a zombie vanishes even in a program that ignores it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.postgres.call import Call
from helixqueue.postgres.caller_transaction import run_within, run_within_async
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from helixqueue.postgres.pool import AsyncPool, Pool
    from helixqueue.transport.protocol import Settlement, WriteResult

_SQL = {
    name: one.sql
    for name, one in statements("helixqueue.transport", "handler_transactions.sql").items()
}
_DOOM: Call[None] = Call(_SQL["doom"], (), lambda _: None)


class PostgresHandlerTransactions:
    def __init__(self, pool: Pool, worker: str) -> None:
        self._pool = pool
        self._worker = worker

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._pool.database() as database:
            yield database.connection

    def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult:
        _flush(connection)
        failpoint("effect.inside")
        call = _last(self._worker, settlement, seconds, of_caller=of_caller)
        [answer] = run_within(connection, call)
        if answer.answer != "ok":
            with suppress(HelixError):
                run_within(connection, _DOOM)
        failpoint("effect.settled")
        return answer

    def is_of_the_link(self, error: BaseException) -> bool:
        return is_of_the_link(error)


class AsyncPostgresHandlerTransactions:
    def __init__(self, pool: AsyncPool, worker: str) -> None:
        self._pool = pool
        self._worker = worker

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._pool.database() as database:
            yield database.connection

    async def settle_within(
        self, connection: Any, settlement: Settlement, seconds: float, *, of_caller: bool = False
    ) -> WriteResult:
        if hasattr(connection, "flush"):
            await connection.flush()
        failpoint("effect.inside")
        call = _last(self._worker, settlement, seconds, of_caller=of_caller)
        [answer] = await run_within_async(connection, call)
        if answer.answer != "ok":
            with suppress(HelixError):
                await run_within_async(connection, _DOOM)
        failpoint("effect.settled")
        return answer

    def is_of_the_link(self, error: BaseException) -> bool:
        return is_of_the_link(error)


def _last(
    worker: str, settlement: Settlement, seconds: float, *, of_caller: bool
) -> Call[list[WriteResult]]:
    """The settle, and a bound on how long the transaction may rest behind it."""
    call = calls.settle(worker=worker, settlements=[settlement])
    sql = _SQL["settle_of_caller" if of_caller else "settle"]
    return Call(sql, (f"{max(1, round(seconds * 1000))}", *call.args), call.read)


def _flush(connection: Any) -> None:
    """What an ORM session still holds is written before the settle, not after."""
    if hasattr(connection, "flush"):
        connection.flush()


def is_of_the_link(error: BaseException) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)
