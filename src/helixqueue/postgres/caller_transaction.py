"""Runs calls on a caller's own connection, as part of the caller's transaction.

Connections are recognised by the names of their classes, so that none of the libraries has to be
installed. SQLAlchemy's async objects pass their sync counterpart to a function (`run_sync`), so one
path serves all four of its classes.

asyncpg uses `$1` instead of `%s` and requires Python values of the parameter's type. Every argument
of a call has a text form, so each is sent as text and cast twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from helixqueue.errors import NotInTransaction, Refused
from helixqueue.postgres.sqlstate import translate

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call, Row

T = TypeVar("T")

_SYNC = ("sqlalchemy.Session", "sqlalchemy.Connection", "psycopg.Connection")
_ASYNC = (
    "sqlalchemy.AsyncSession",
    "sqlalchemy.AsyncConnection",
    "psycopg.AsyncConnection",
    "asyncpg.Connection",
    "asyncpg.PoolConnectionProxy",
)
# A scoped session is callable and returns the session of this thread, request or task.
_SCOPED = ("sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session")
_DRIVERS = ("psycopg", "psycopg_async", "psycopg2", "asyncpg")
_ERRORS = {
    "psycopg.Error",
    "asyncpg.PostgresError",
    "asyncpg.InterfaceError",
    "asyncpg.InternalClientError",  # the server closed the connection as a statement began
    "sqlalchemy.DBAPIError",
    "sqlalchemy.TimeoutError",  # no free connection in its pool
    "builtins.OSError",
}
_PARAMETER = re.compile("%s::")


def run_within(connection: Any, call: Call[T]) -> T:  # noqa: ANN401 - any of _SYNC
    """Run one call on a sync connection that is in a transaction."""
    connection, kind = _recognise(connection)
    if kind not in _SYNC:
        raise _unsupported(connection, kind, _SYNC, "AsyncHelixQueue" if kind in _ASYNC else None)
    with translating():
        if kind == "psycopg.Connection":
            _demand_transaction(connection)
            with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
                rows = cursor.execute(call.sql, call.args, binary=True).fetchall()
        else:
            rows = _run_sqlalchemy(connection, call)
    return call.read(rows)


async def run_within_async(connection: Any, call: Call[T]) -> T:  # noqa: ANN401 - any of _ASYNC
    """Run one call on an async connection that is in a transaction."""
    connection, kind = _recognise(connection)
    if kind not in _ASYNC:
        raise _unsupported(connection, kind, _ASYNC, "HelixQueue" if kind in _SYNC else None)
    with translating():
        if kind == "psycopg.AsyncConnection":
            _demand_transaction(connection)
            async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(call.sql, call.args, binary=True)
                rows = await cursor.fetchall()
        elif kind.startswith("asyncpg."):
            if not connection.is_in_transaction():
                raise _not_in_transaction("async with connection.transaction()")
            rows = await connection.fetch(_dollars(call.sql), *map(_text, call.args))
        else:
            rows = await connection.run_sync(_run_sqlalchemy, call)
    return call.read([tuple(row) for row in rows])


def _recognise(connection: Any) -> tuple[Any, str]:  # noqa: ANN401 - any class
    """Return the connection and the name of its class; "" if it is not supported."""
    names = [f"{_library(kind)}.{kind.__name__}" for kind in type(connection).__mro__]
    if any(name in _SCOPED for name in names):
        return _recognise(connection())
    return connection, next((name for name in names if name in (*_SYNC, *_ASYNC)), "")


def _unsupported(
    connection: object, kind: str, fitting: tuple[str, ...], other: str | None
) -> Refused:
    got = kind or f"{type(connection).__module__}.{type(connection).__qualname__}"
    remedy = f"; use it with {other}" if other else ""
    return Refused(f"within: expected one of {', '.join(fitting)}; got {got}{remedy}")


def _demand_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Without autocommit, psycopg begins a transaction with the first statement."""
    idle = connection.info.transaction_status is TransactionStatus.IDLE
    if connection.autocommit and idle:
        raise _not_in_transaction("with connection.transaction()")


def _run_sqlalchemy(within: Any, call: Call[Any]) -> list[Row]:  # noqa: ANN401 - Session, Connection
    """Return the rows, over a Session or Connection; both begin a transaction by themselves."""
    connection = within.connection() if hasattr(within, "flush") else within
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in _DRIVERS:
        raise Refused(
            "within: expected SQLAlchemy on PostgreSQL with psycopg or asyncpg, "
            f"got {dialect.name}+{dialect.driver}"
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise _not_in_transaction("another isolation level than AUTOCOMMIT")
    dollars = dialect.paramstyle.startswith("numeric")
    sql = _dollars(call.sql) if dollars else call.sql
    result = connection.exec_driver_sql(sql, tuple(map(_text, call.args)))
    # psycopg2 returns bytes as views of its own buffer.
    return [
        tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
        for row in result
    ]


def _not_in_transaction(remedy: str) -> NotInTransaction:
    return NotInTransaction(
        f"within: expected a connection in a transaction, got one in autocommit mode; use {remedy}"
    )


@contextmanager
def translating() -> Iterator[None]:
    """Translate the errors of the libraries; others are bugs and propagate unchanged."""
    try:
        yield
    except Exception as error:
        names = {f"{_library(kind)}.{kind.__name__}" for kind in type(error).__mro__}
        if "sqlalchemy.InvalidRequestError" in names:
            # A session without a transaction, or whose transaction has failed.
            raise NotInTransaction(f"within: {error}") from error
        if names & _ERRORS:
            # Nothing of this transaction has committed, so its outcome is known.
            raise translate(error, sent=False) from error
        raise


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


@cache
def _dollars(sql: str) -> str:
    numbers = iter(range(1, sql.count("%s") + 1))
    return _PARAMETER.sub(lambda _: f"${next(numbers)}::text::", sql)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.isoformat() if isinstance(value, datetime) else str(value)
