"""Connections for handlers, and settlements as the last statement of their transactions.

A refused settlement leaves the transaction in a state in which it cannot commit, even if the
handler catches the error: a worker that lost its lease cannot commit its effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.postgres.call import Call
from helixqueue.postgres.caller_transaction import run_within_async
from helixqueue.postgres.statements import statements
from helixqueue.postgres.transaction_bounds import TransactionBound

if TYPE_CHECKING:
    from helixqueue.postgres.pool import AsyncPool
    from helixqueue.transport.protocol import Settlement, WriteResult

_SQL = {
    name: statement.sql
    for name, statement in statements("helixqueue.transport", "handler_transactions.sql").items()
}
_ABORT: Call[None] = Call(_SQL["abort"], (), lambda _: None)


class AsyncPostgresHandlerTransactions:
    def __init__(self, pool: AsyncPool, worker: str) -> None:
        self._pool = pool
        self._worker = worker

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._pool.database() as database:
            yield database.connection

    async def limit(self, connection: Any, seconds: float) -> None:
        await run_within_async(connection, TransactionBound(silent=seconds).call())

    async def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult:
        if hasattr(connection, "flush"):  # write the pending changes of an ORM session before it
            await connection.flush()
        failpoint("effect.inside")
        call = _settle_call(
            self._worker, settlement, seconds, in_caller_transaction=in_caller_transaction
        )
        [result] = await run_within_async(connection, call)
        if result.answer != "ok":
            with suppress(HelixError):
                await run_within_async(connection, _ABORT)
        failpoint("effect.settled")
        return result

    def is_connection_error(self, error: BaseException) -> bool:
        return is_connection_error(error)


def _settle_call(
    worker: str, settlement: Settlement, seconds: float, *, in_caller_transaction: bool
) -> Call[list[WriteResult]]:
    """The settlement; in a caller's transaction also a limit on how long it may be idle then."""
    call = calls.settle(worker=worker, settlements=[settlement])
    if not in_caller_transaction:
        return call
    sql = _SQL["settle_in_caller_transaction"]
    return Call(sql, (f"{max(1, round(seconds * 1000))}", *call.args), call.read)


def is_connection_error(error: BaseException) -> bool:
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError)
