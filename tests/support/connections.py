"""Every kind of connection that `within=` accepts, opened as applications open it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import asyncpg
import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool


def url(database, driver):
    return database.dsn("pool").replace("postgresql://", f"postgresql+{driver}://")


def alchemy(kind, driver):
    @asynccontextmanager
    async def opened(database, **options):
        engine = create_engine(url(database, driver), poolclass=NullPool, **options)
        with kind(engine) as within:
            yield within
        engine.dispose()

    return opened


def async_alchemy(kind, driver):
    @asynccontextmanager
    async def opened(database, **options):
        engine = create_async_engine(url(database, driver), poolclass=NullPool, **options)
        async with kind(engine) as within:
            yield within
        await engine.dispose()

    return opened


@asynccontextmanager
async def plain(database):
    with psycopg.connect(database.dsn("pool")) as connection:
        yield connection


@asynccontextmanager
async def plain_async(database):
    async with await psycopg.AsyncConnection.connect(database.dsn("pool")) as connection:
        yield connection


class InTransaction:
    """An asyncpg connection and its transaction, with the commit and rollback of the others."""

    def __init__(self, connection, transaction):
        self.within = connection
        self.commit = transaction.commit
        self.rollback = transaction.rollback


@asynccontextmanager
async def asyncpg_one(database):
    connection = await asyncpg.connect(database.dsn("pool"))
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield InTransaction(connection, transaction)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(database):
    async with (
        asyncpg.create_pool(database.dsn("pool"), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield InTransaction(connection, transaction)


def connection_of(engine):
    return engine.connect()


SYNC = {
    "Session psycopg": alchemy(Session, "psycopg"),
    "Session psycopg2": alchemy(Session, "psycopg2"),
    "Connection psycopg": alchemy(connection_of, "psycopg"),
    "psycopg": plain,
}
ASYNC = {
    "AsyncSession psycopg": async_alchemy(AsyncSession, "psycopg"),
    "AsyncSession asyncpg": async_alchemy(AsyncSession, "asyncpg"),
    "AsyncConnection psycopg": async_alchemy(connection_of, "psycopg"),
    "AsyncConnection asyncpg": async_alchemy(connection_of, "asyncpg"),
    "psycopg async": plain_async,
    "asyncpg": asyncpg_one,
    "asyncpg from a pool": asyncpg_pooled,
}
