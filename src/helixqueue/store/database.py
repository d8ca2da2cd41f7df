"""Runs calls on psycopg, sync and async; one call is one transaction, or part of the caller's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from helixqueue.store.failures import translate

if TYPE_CHECKING:
    from helixqueue.store.calls import Call

T = TypeVar("T")
# Through pgbouncer a prepared statement may meet a session that never saw it: `pooled` turns
# preparing off. Otherwise psycopg prepares what it sees for the third time.
_PREPARE_AFTER = 2


class Database:
    """One connection that runs calls. Not for two threads at a time."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @classmethod
    def connect(cls, dsn: str, *, pooled: bool = False, timeout_seconds: float = 10) -> Self:
        """An autocommit connection: each call commits by itself."""
        try:
            connection = psycopg.connect(dsn, autocommit=True, connect_timeout=int(timeout_seconds))
        except psycopg.Error as error:
            raise translate(error, sent=False) from error
        connection.prepare_threshold = None if pooled else _PREPARE_AFTER
        return cls(connection)

    def run(self, call: Call[T]) -> T:
        try:
            rows = self.connection.execute(call.sql, call.args, binary=True).fetchall()
        except psycopg.Error as error:
            raise translate(error) from error
        return call.read(rows)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncDatabase:
    """The same on an async connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, dsn: str, *, pooled: bool = False, timeout_seconds: float = 10) -> Self:
        try:
            connection = await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, connect_timeout=int(timeout_seconds)
            )
        except psycopg.Error as error:
            raise translate(error, sent=False) from error
        connection.prepare_threshold = None if pooled else _PREPARE_AFTER
        return cls(connection)

    async def run(self, call: Call[T]) -> T:
        try:
            cursor = await self.connection.execute(call.sql, call.args, binary=True)
            rows = await cursor.fetchall()
        except psycopg.Error as error:
            raise translate(error) from error
        return call.read(rows)

    async def close(self) -> None:
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
