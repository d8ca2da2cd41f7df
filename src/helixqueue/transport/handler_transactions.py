# Generated from handler_transactions_async.py by `make twins`: change that file.
"""Connections for handlers, and settlements as the last statement of their transactions.

A refused settlement leaves the transaction in a state in which it cannot commit, even if the
handler catches the error: a worker that lost its lease cannot commit its effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.engine import calls
from helixqueue.errors import HelixError
from helixqueue.failpoints import failpoint
from helixqueue.postgres.call import Call
from helixqueue.postgres.caller_transaction import run_within
from helixqueue.postgres.statements import statements
from helixqueue.postgres.transaction_bounds import TransactionBound

if TYPE_CHECKING:
    from helixqueue.postgres.pool import Pool
    from helixqueue.transport.protocol import Settlement, WriteResult

_SQL = {
    name: statement.sql
    for name, statement in statements("helixqueue.transport", "handler_transactions.sql").items()
}
_ABORT: Call[None] = Call(_SQL["abort"], (), lambda _: None)


class PostgresHandlerTransactions:
    def __init__(self, pool: Pool, worker: str) -> None:
        self._pool = pool
        self._worker = worker

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._pool.database() as database:
            yield database.connection

    def limit(self, connection: Any, seconds: float) -> None:
        run_within(connection, TransactionBound(silent=seconds).call())

    def settle_within(
        self,
        connection: Any,
        settlement: Settlement,
        seconds: float,
        *,
        in_caller_transaction: bool = False,
    ) -> WriteResult:
        if hasattr(connection, "flush"):  # write the pending changes of an ORM session before it
            connection.flush()
        failpoint("effect.inside")
        call = _settle_call(
            self._worker, settlement, seconds, in_caller_transaction=in_caller_transaction
        )
        [result] = run_within(connection, call)
        if result.answer != "ok":
            with suppress(HelixError):
                run_within(connection, _ABORT)
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
