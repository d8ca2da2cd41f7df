"""The end of an attempt on connections of the handler's own, of every kind."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from sqlalchemy import text

from helixqueue import AsyncLease, Lease, LeaseLost, NotInTransaction, Queue, State
from helixqueue.client.backend import backend_of
from tests.support.connections import ASYNC, SYNC
from tests.support.shift import proven
from tests.worker.conftest import effects, take_over


async def awaited(value):
    return await value if inspect.isawaitable(value) else value


async def end_it(lease, then, made):
    """A row, the next step, the end, and the commit, whatever was raised; who had it instead."""
    async with made as opened:
        connection = getattr(opened, "within", opened)
        row = f"'{lease.queue}', '{lease.identity}'"
        insert = f"insert into public.effect (queue, identity) values ({row})"
        plain = type(connection).__module__.partition(".")[0] != "sqlalchemy"
        await awaited(connection.execute(insert if plain else text(insert)))
        end = lease.within(connection)
        await awaited(end.submit(then, identity=f"after the {lease.identity}", payload={}))
        owner = None
        try:
            await awaited(end.complete({"n": 1}))
        except LeaseLost as lost:
            owner = lost.owner
        await awaited(opened.commit())
        return owner


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
def test_connection_of_any_driver_settles_with_its_rows_or_not_at_all(helix, database, name, kind):
    queue, then = Queue(name, lease=60), Queue(f"{name}.then")
    backend_of(helix).declare(then)
    owners = {}

    def begin(lease):
        if lease.identity == "zombie":
            take_over(helix, database, queue, lease.batch_id)

    if kind in ASYNC:

        @queue.handler
        async def run_async(lease: AsyncLease):
            await asyncio.to_thread(begin, lease)
            owners[lease.identity] = await end_it(lease, then, ASYNC[kind](database))
    else:

        @queue.handler
        def run(lease: Lease):
            begin(lease)
            made = SYNC[kind](database)
            owners[lease.identity] = asyncio.run(end_it(lease, then, made))

    made = {
        identity: helix.submit(queue, identity=identity, payload={}).receipt
        for identity in ("owner", "zombie")
    }
    done = helix.work(queue, slots=1, prefetch=1, until_idle=True)
    assert owners == {"owner": None, "zombie": "thief"}
    assert (done.completed, done.lost) == (1, 1)
    assert helix.result(made["owner"]) == {"n": 1}
    assert helix.result(made["zombie"]) == {"by": "thief"}
    assert effects(database, name) == {"owner": 1}
    [next_step] = helix.batches(queue=then)
    assert next_step.identity == ("after the owner",)
    proven(database)


async def in_savepoint(lease, made):
    """A row, and the end inside a savepoint; the error. Then out of it, and the commit."""
    async with made as opened:
        connection = getattr(opened, "within", opened)
        plain = type(connection).__module__.partition(".")[0] != "sqlalchemy"

        async def run(sql):
            await awaited(connection.execute(sql if plain else text(sql)))

        row = f"'{lease.queue}', '{lease.identity}'"
        await run(f"insert into public.effect (queue, identity) values ({row})")
        await run("savepoint first")
        await run("release savepoint first")  # one that has ended does no harm
        await run("savepoint second")
        error = None
        try:
            await awaited(lease.within(connection).complete({"inside": True}))
        except NotInTransaction as caught:
            error = str(caught)
        await run("rollback to savepoint second")
        await run("release savepoint second")
        await awaited(lease.within(connection).complete({"inside": False}))
        await awaited(opened.commit())
        return error


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
def test_end_inside_a_savepoint_is_refused_on_any_connection(helix, database, name, kind):
    """Also one that the driver knows nothing of, because it was made by a statement."""
    queue = Queue(name, lease=60, max_attempts=1)
    errors = []
    if kind in ASYNC:

        @queue.handler
        async def run_async(lease: AsyncLease):
            errors.append(await in_savepoint(lease, ASYNC[kind](database)))
    else:

        @queue.handler
        def run(lease: Lease):
            errors.append(asyncio.run(in_savepoint(lease, SYNC[kind](database))))

    receipt = helix.submit(queue, identity="s", payload={}).receipt
    done = helix.work(queue, slots=1, until_idle=True)
    assert (done.completed, done.failed) == (1, 0)
    [error] = errors
    assert "expected the top level of the transaction, got a savepoint" in error
    assert helix.result(receipt) == {"inside": False}
    assert effects(database, name) == {"s": 1}
    proven(database)


NESTED = {
    "Session psycopg": lambda session: session.begin_nested(),
    "Connection psycopg": lambda connection: connection.begin_nested(),
    "psycopg": lambda connection: connection.transaction(),
}
NESTED_ASYNC = {
    "AsyncSession asyncpg": lambda session: session.begin_nested(),
    "psycopg async": lambda connection: connection.transaction(),
    "asyncpg": lambda connection: connection.transaction(),
}


@pytest.mark.parametrize("kind", [*NESTED, *NESTED_ASYNC])
def test_end_inside_a_nested_block_of_the_library_is_refused(helix, database, name, kind):
    queue = Queue(name, lease=60, max_attempts=1)
    insert = f"insert into public.effect (queue, identity) values ('{name}', 's')"

    if kind in NESTED:

        @queue.handler
        def run(lease: Lease):
            async def end():
                async with SYNC[kind](database) as connection:
                    connection.execute(insert if kind == "psycopg" else text(insert))
                    with NESTED[kind](connection):
                        lease.within(connection).complete({})

            asyncio.run(end())
    else:

        @queue.handler
        async def run_async(lease: AsyncLease):
            async with ASYNC[kind](database) as opened:
                connection = getattr(opened, "within", opened)
                await connection.execute(text(insert) if "Session" in kind else insert)
                async with NESTED_ASYNC[kind](connection):
                    await lease.within(connection).complete({})

    receipt = helix.submit(queue, identity="s", payload={}).receipt
    assert helix.work(queue, slots=1, until_idle=True).failed == 1
    assert helix.state(receipt) is State.FAILED
    [failed] = [event for event in helix.history(receipt) if event.reason == "failed"]
    assert "got a savepoint" in failed.detail
    assert effects(database, name) == {}
    proven(database)
