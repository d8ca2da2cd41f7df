"""`within=`: work is submitted if and only if the caller's own rows commit."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager, suppress

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool

from helixqueue import (
    AsyncHelixQueue,
    Conflict,
    HelixQueue,
    InvalidIdentity,
    NotInTransaction,
    Queue,
    Refused,
    SchemaMismatch,
    Settlement,
    Submission,
    Unavailable,
)
from tests.support.connections import ASYNC, SYNC, url
from tests.support.lab import BATCHES, end_minute

KINDS = {**SYNC, **ASYNC}


async def awaited(value):
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def opened(database, kind):
    """A client that fits, a connection of that kind, and what commits and rolls back."""
    make = AsyncHelixQueue if kind in ASYNC else HelixQueue
    client = make(database.dsn("pool"), tenant="a")
    async with KINDS[kind](database) as made:
        yield client, getattr(made, "within", made), made
    await awaited(client.close())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_submission_commits_or_vanishes_with_the_transaction_of_the_caller(
    database, name, kind, end
):
    async def story():
        async with opened(database, kind) as (client, within, transaction):
            queue = Queue(name, requires={"gpus": 1})
            done = await awaited(
                client.submit(
                    queue, identity="Ω-1", payload={"n": 'a "b" \\ {c}, null'}, within=within,
                    priority=3, requires={"labels": {"site": "x"}},
                )
            )  # fmt: skip
            many = await awaited(
                client.submit_many(
                    queue, [Submission(f"m{n}", {"n": n}) for n in range(3)], within=within
                )
            )
            found = database.value(BATCHES, name)
            await awaited(getattr(transaction, end)())
            again = await awaited(
                client.submit(queue, identity="Ω-1", payload={"n": 'a "b" \\ {c}, null'})
            )
            return done, many, found, again

    done, many, value, again = asyncio.run(story())
    assert done.decision == "new"
    assert [item.decision for item in many] == ["new"] * 3
    assert value == 0  # not visible to others before the commit
    assert again.decision == ("duplicate" if end == "commit" else "new")
    assert again.receipt == done.receipt  # the same work, whether or not it came to be
    expected = 4 if end == "commit" else 1
    assert database.value(BATCHES, name) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_conflict_leaves_the_transaction_of_the_caller_usable(database, name, kind):
    async def story():
        async with opened(database, kind) as (client, within, transaction):
            queue = Queue(name)
            await awaited(client.submit(queue, identity="s", payload={"n": 1}))
            with pytest.raises(Conflict) as refused:
                await awaited(client.submit(queue, identity="s", payload={"n": 2}, within=within))
            with pytest.raises(InvalidIdentity):
                await awaited(client.submit(queue, identity="\u200b", payload={}, within=within))
            await awaited(client.submit(queue, identity="t", payload={"n": 2}, within=within))
            await awaited(transaction.commit())
            return refused.value.diff

    assert asyncio.run(story()) == [{"op": "replace", "path": "/n", "value": 2, "was": 1}]
    assert database.value(BATCHES, name) == 2
    # The refusal of an identity is on record whatever became of the transaction.
    end_minute(database)
    kinds = database.rows("select kind from helix.decision where queue = %s order by id", name)
    assert sorted(kinds) == [("conflict",), ("refused",), ("setting",)]


# --- no transaction ------------------------------------------------------------------------------

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


@asynccontextmanager
async def autocommit_psycopg(database):
    with psycopg.connect(database.dsn("pool"), autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def autocommit_psycopg_async(database):
    connect = psycopg.AsyncConnection.connect
    async with await connect(database.dsn("pool"), autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def idle_asyncpg(database):
    connection = await asyncpg.connect(database.dsn("pool"))
    yield connection
    await connection.close()


def autocommit(kind):
    return lambda database: KINDS[kind](database, **AUTOCOMMIT)


COMMITS_BY_ITSELF = {
    kind: autocommit(kind) for kind in KINDS if kind.startswith(("Session", "Conn", "Async"))
} | {
    "psycopg": autocommit_psycopg,
    "psycopg async": autocommit_psycopg_async,
    "asyncpg": idle_asyncpg,
}


@pytest.mark.parametrize("kind", COMMITS_BY_ITSELF)
def test_autocommit_connection_without_a_transaction_is_refused(database, name, kind):
    async def story():
        make = AsyncHelixQueue if kind in ASYNC else HelixQueue
        client = make(database.dsn("pool"), tenant="a")
        async with COMMITS_BY_ITSELF[kind](database) as within:
            with pytest.raises(NotInTransaction, match="expected a connection in a transaction"):
                await awaited(client.submit(Queue(name), identity="s", payload={}, within=within))
        await awaited(client.close())

    asyncio.run(story())
    assert database.value(BATCHES, name) == 0


def test_autocommit_with_an_explicit_block_is_a_transaction(database, helix, name):
    with psycopg.connect(database.dsn("pool"), autocommit=True) as connection:
        with connection.transaction():
            helix.submit(Queue(name), identity="s", payload={}, within=connection)
        assert helix.submit(Queue(name), identity="s", payload={}).decision == "duplicate"


def test_failed_transaction_of_the_caller_is_refused(database, helix, name):
    with psycopg.connect(database.dsn("pool")) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("select 1 / 0")
        with pytest.raises(NotInTransaction, match="roll back"):
            helix.submit(Queue(name), identity="s", payload={}, within=connection)
        connection.rollback()


def test_session_whose_flush_failed_is_refused(database, helix, name):
    engine = create_engine(url(database, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        with pytest.raises(Exception, match="division by zero"):
            session.execute(text("select 1 / 0"))
        with pytest.raises(NotInTransaction):
            helix.submit(Queue(name), identity="s", payload={}, within=session)


def test_session_without_a_begun_transaction_is_refused(database, helix, name):
    engine = create_engine(url(database, "psycopg"), poolclass=NullPool)
    with Session(engine, autobegin=False) as session:
        with pytest.raises(NotInTransaction, match="begin"):
            helix.submit(Queue(name), identity="s", payload={}, within=session)
        with session.begin():
            helix.submit(Queue(name), identity="s", payload={}, within=session)
    assert helix.submit(Queue(name), identity="s", payload={}).decision == "duplicate"


# --- the wrong connection ------------------------------------------------------------------------


def test_connection_of_the_other_kind_is_refused_by_sync_and_async_clients(database, name):
    async def story():
        sync = HelixQueue(database.dsn("pool"), tenant="a")
        other = AsyncHelixQueue(database.dsn("pool"), tenant="a")
        async with ASYNC["asyncpg"](database) as made:
            with pytest.raises(Refused, match="use it with AsyncHelixQueue"):
                sync.submit(Queue(name), identity="s", payload={}, within=made.within)
        async with SYNC["Session psycopg"](database) as session:
            with pytest.raises(Refused, match="use it with HelixQueue"):
                await other.submit(Queue(name), identity="s", payload={}, within=session)
        sync.close()
        await other.close()

    asyncio.run(story())


def test_connection_of_another_database_system_is_refused(helix, name):
    engine = create_engine("sqlite://")
    with (
        Session(engine) as session,
        pytest.raises(Refused, match=r"expected SQLAlchemy on PostgreSQL .* got sqlite"),
    ):
        helix.submit(Queue(name), identity="s", payload={}, within=session)
    engine.dispose()


def test_database_without_the_schema_is_reported(server, helix, name):
    with (
        psycopg.connect(server.bootstrap_dsn) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        helix.submit(Queue(name), identity="s", payload={}, within=connection)


@pytest.mark.parametrize("kind", ["psycopg", "Session psycopg", "asyncpg", "AsyncSession asyncpg"])
def test_lost_connection_of_the_caller_leaves_nothing_in_doubt(database, name, kind):
    """Its transaction is gone with it, so nothing of it can have committed."""

    async def story():
        async with opened(database, kind) as (client, within, _):
            await awaited(client.submit(Queue(name), identity="s", payload={}, within=within))
            [(pid,)] = database.rows(
                "select pid from pg_stat_activity where state = 'idle in transaction' "
                "and datname = %s",
                database.name,
            )
            database.rows("select pg_terminate_backend(%s, 10000)", pid)
            with pytest.raises(Unavailable) as away:
                await awaited(client.submit(Queue(name), identity="t", payload={}, within=within))
            return away.value.outcome_unknown

    assert asyncio.run(story()) is False
    assert database.value(BATCHES, name) == 0


# --- objects of an ORM ---------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Sample(Base):
    __tablename__ = "lab_sample"
    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def sessions(database):
    with database.connect("helix_bootstrap") as connection:
        connection.execute("create table if not exists lab_sample (name text primary key)")
        connection.execute("grant all on lab_sample to pool")
    engine = create_engine(url(database, "psycopg"), poolclass=NullPool)
    return sessionmaker(engine)


def test_orm_object_and_its_submission_are_one_commit(database, helix, sessions, name):
    queue = Queue(name)
    with sessions.begin() as session:
        session.add(Sample(name=f"{name}-kept"))
        helix.submit(queue, identity="kept", payload={}, within=session)
    with suppress(RuntimeError), sessions.begin() as session:
        session.add(Sample(name=f"{name}-lost"))
        helix.submit(queue, identity="lost", payload={}, within=session)
        raise RuntimeError
    # A row that breaks a constraint takes the work with it.
    with suppress(IntegrityError), sessions.begin() as session:
        helix.submit(queue, identity="third", payload={}, within=session)
        session.add(Sample(name=f"{name}-kept"))
    samples = database.rows("select name from lab_sample where name like %s", f"{name}-%")
    assert samples == [(f"{name}-kept",)]
    assert [batch.identity for batch in helix.batches(queue=name)] == [("kept",)]


def test_rolled_back_savepoint_removes_the_submission(helix, sessions, name):
    with sessions.begin() as session:
        with suppress(RuntimeError), session.begin_nested():
            helix.submit(Queue(name), identity="lost", payload={}, within=session)
            raise RuntimeError
        helix.submit(Queue(name), identity="kept", payload={}, within=session)
    assert [batch.identity for batch in helix.batches(queue=name)] == [("kept",)]


def test_scoped_sessions_are_sessions(database, helix, sessions, name):
    scoped = scoped_session(sessions)
    helix.submit(Queue(name), identity="s", payload={}, within=scoped)
    scoped.commit()
    scoped.remove()

    async def story():
        engine = create_async_engine(url(database, "asyncpg"), poolclass=NullPool)
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with AsyncHelixQueue(database.dsn("pool"), tenant="a") as client:
            await client.submit(Queue(name), identity="t", payload={}, within=scoped)
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()

    asyncio.run(story())
    assert {batch.identity for batch in helix.batches(queue=name)} == {("s",), ("t",)}


def test_row_and_cursor_factories_of_the_caller_change_nothing(database, helix, name):
    with psycopg.connect(
        database.dsn("pool"),
        row_factory=psycopg.rows.dict_row,
        cursor_factory=psycopg.ClientCursor,
    ) as connection:
        made = helix.submit(Queue(name), identity="s", payload={}, within=connection)
    assert helix.state(made.receipt) == "PENDING"


@pytest.mark.parametrize("kind", ["psycopg", "Session psycopg", "asyncpg", "AsyncSession psycopg"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_settling_commits_with_the_callers_rows(database, name, kind, end):
    async def story():
        async with opened(database, kind) as (client, within, transaction):
            made = await awaited(client.submit(Queue(name), identity="s", payload={}))
            [lease] = await awaited(client.claim("w", [name], start=True))
            done = Settlement(lease.batch, lease.token, "completed", result='{"reads":7}')
            [answer] = await awaited(client.settle("w", [done], within=within))
            await awaited(getattr(transaction, end)())
            return answer.answer, await awaited(client.state(made.receipt))

    assert asyncio.run(story()) == ("ok", "COMPLETED" if end == "commit" else "RUNNING")
