"""Effects in the caller's own transaction: they commit with their fence, or vanish with it."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.errors import (
    NotInTransaction,
    Retryable,
    Unavailable,
)
from helixqueue.fence import NotApplied
from tests.support.fence_reads import counted, effects
from tests.support.lab import POOLED


def test_local_effect_and_its_fence_commit_together_or_not_at_all(helix, database, name, table):
    def act(connection):
        with helix.fence(name, key="k", within=connection) as fence:
            if fence.first:
                connection.execute(f"insert into public.{table} values (1)".encode())
                fence.seal("inserted")
        return fence.result

    with database.connect("pool") as connection:
        with connection.transaction(force_rollback=True):
            assert act(connection) == "inserted"
        assert (effects(database, table), counted(helix, name)) == (0, {"new": 1})
        with connection.transaction():
            assert act(connection) == "inserted"
        with connection.transaction():
            assert act(connection) == "inserted"
        with pytest.raises(NotInTransaction):
            act(connection)
    assert effects(database, table) == 1


@pytest.mark.parametrize("kind", ["psycopg", "session", "connection"])
def test_failed_local_effect_is_undone_though_the_caller_commits(
    helix, database, name, table, kind
):
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database.dsn())
    )
    insert = f"insert into public.{table} values (1)"
    if kind == "psycopg":
        opened = psycopg.connect(database.dsn(), prepare_threshold=None)
    else:
        opened = Session(engine) if kind == "session" else engine.connect()
    with opened as within:

        def act(*, fail):
            with helix.fence(name, key="k", within=within) as fence:
                if fence.first:
                    within.execute(insert if kind == "psycopg" else sqlalchemy.text(insert))
                    if fail:
                        raise ValueError("boom")
                    fence.seal(1)

        with pytest.raises(ValueError, match="boom"):
            act(fail=True)
        within.commit()
        assert effects(database, table) == 0
        act(fail=False)
        within.commit()
        act(fail=False)
        within.commit()
    engine.dispose()
    assert effects(database, table) == 1


def test_decorated_function_takes_its_connection_from_its_arguments(helix, database, name, table):
    @helix.fence(
        name, key=lambda _, n: n, payload=lambda _, n: n, within=lambda connection, _: connection
    )
    def act(connection, n) -> int:
        connection.execute(f"insert into public.{table} values (%s)".encode(), (n,))
        return n

    with database.connect("pool") as connection:
        for _ in range(3):
            with connection.transaction():
                assert act(connection, 7) == 7
    assert effects(database, table) == 1


def test_async_local_effect_is_undone_with_its_fence(database, name, table):
    async def story():
        engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: psycopg.AsyncConnection.connect(database.dsn()),
        )
        insert = sqlalchemy.text(f"insert into public.{table} values (1)")
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            for fail in (True, False, False):
                async with AsyncSession(engine) as session:
                    try:
                        async with helix.fence(name, key="k", within=session) as fence:
                            if fence.first:
                                await session.execute(insert)
                                if fail:
                                    raise ValueError("boom")
                    except ValueError:
                        assert fail
                    await session.commit()
        await engine.dispose()

    asyncio.run(story())
    assert effects(database, table) == 1


def test_local_effect_through_asyncpg_is_fenced(database, name, table):
    async def story():
        sockets = str(database.server.socket_dir)
        connection = await asyncpg.connect(user="pool", host=sockets, database=database.name)
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            for fail in (True, False, False):
                async with connection.transaction():
                    try:
                        fence = helix.fence(name, key="k", within=connection, result=list[int])
                        async with fence as held:
                            if held.first:
                                await connection.execute(f"insert into public.{table} values (1)")
                                if fail:
                                    raise ValueError("boom")
                                held.seal([1, 2])
                        assert held.result == [1, 2]
                    except ValueError:
                        assert fail
        await connection.close()

    asyncio.run(story())
    assert effects(database, table) == 1


@pytest.mark.parametrize("kind", ["psycopg", "session", "asyncpg"])
def test_connection_lost_inside_a_local_effect_raises_unavailable_and_leaves_nothing(
    helix, database, name, table, kind
):
    """Nothing of the transaction has committed, so the outcome is not unknown: begin it again."""
    insert = f"insert into public.{table} values (1)"
    pid = "select pg_backend_pid()"

    def end(number):
        assert database.value("select pg_terminate_backend(%s, 5000)", number)

    def plain():
        connection = psycopg.connect(database.dsn(direct=True))
        with connection, helix.fence(name, key="k", within=connection) as fence:
            connection.execute(insert.encode())
            fence.seal(1)
            end(connection.execute(pid).fetchone()[0])

    def session():
        engine = sqlalchemy.create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(database.dsn(direct=True))
        )
        with Session(engine) as session, helix.fence(name, key="k", within=session) as fence:
            session.execute(sqlalchemy.text(insert))
            fence.seal(1)
            end(session.execute(sqlalchemy.text(pid)).scalar())

    async def through_asyncpg():
        sockets = str(database.server.socket_dir)
        connection = await asyncpg.connect(user="pool", host=sockets, database=database.name)
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as twin:
            await connection.transaction().start()
            try:
                async with twin.fence(name, key="k", within=connection) as fence:
                    await connection.execute(insert)
                    fence.seal(1)
                    await asyncio.to_thread(end, await connection.fetchval(pid))
            finally:
                connection.terminate()

    stories = {
        "psycopg": plain,
        "session": session,
        "asyncpg": lambda: asyncio.run(through_asyncpg()),
    }
    with pytest.raises(Unavailable, match="unreachable") as opened:
        stories[kind]()
    assert not opened.value.outcome_unknown
    assert effects(database, table) == 0
    with helix.fence(name, key="k") as again:
        assert again.first


def test_serialization_failure_raises_retryable(helix, database, name):
    """Its snapshot is older than the seal: it can neither see the fence nor make another."""
    with database.connect(autocommit=False) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from pg_catalog.pg_class")  # takes the snapshot
        with helix.fence(name, key="k") as first:
            first.seal("once")
        with pytest.raises(Retryable), helix.fence(name, key="k", within=connection):
            pytest.fail("ran twice")
        connection.rollback()
        with helix.fence(name, key="k", within=connection) as again:
            assert (again.first, again.result) == (False, "once")


@pytest.mark.skipif(POOLED, reason="a pooler does not take settings in the DSN")
def test_claim_is_retried_after_a_lock_timeout(database, name):
    dsn = f"{database.dsn()}&options=-c%20lock_timeout%3D20ms"
    with HelixQueue(dsn, tenant="a") as helix, database.connect("helix_bootstrap") as locker:
        with pytest.raises(NotApplied), helix.fence(name, key="k"):
            raise NotApplied
        ask, failures = helix.fences.run, []

        def watched(call):
            try:
                return ask(call)
            except Retryable as error:
                failures.append(error)
                locker.rollback()
                raise

        helix.fences.run = watched
        locker.autocommit = False
        locker.execute("select 1 from helix.fence where name = %s for update", (name,))
        with helix.fence(name, key="k") as fence:
            assert fence.first
        assert len(failures) == 1
