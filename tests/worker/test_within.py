"""The end of an attempt on connections of the handler's own, of every kind."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from sqlalchemy import text

from helixqueue import AsyncLease, Lease, LeaseLost, Queue, State
from tests.client.connections import ASYNC, SYNC
from tests.worker.conftest import effects, proven
from tests.worker.test_handlers import take_over


async def awaited(value):
    return await value if inspect.isawaitable(value) else value


async def end_it(lease, then, made):
    """A row, the next step, the end, and the commit, whatever was raised; who had it instead."""
    async with made as opened:
        connection = getattr(opened, "within", opened)
        insert = f"insert into public.effect (queue, identity) values ('{lease.queue}', 's')"
        plain = type(connection).__module__.partition(".")[0] != "sqlalchemy"
        await awaited(connection.execute(insert if plain else text(insert)))
        end = lease.within(connection)
        await awaited(end.submit(then, identity="next", payload={}))
        owner = None
        try:
            await awaited(end.complete({"n": 1}))
        except LeaseLost as lost:
            owner = lost.owner
        await awaited(opened.commit())
        return owner


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
@pytest.mark.parametrize("zombie", [False, True], ids=["owner", "zombie"])
def test_any_connection_ends_the_attempt_or_writes_nothing(helix, database, name, kind, zombie):
    queue, then = Queue(name, lease=60), Queue(f"{name}.then")
    helix.know(then)
    owners = []

    def begin(lease):
        if zombie:
            take_over(helix, database, queue, lease.batch_id)

    if kind in ASYNC:

        @queue.handler
        async def run_async(lease: AsyncLease):
            await asyncio.to_thread(begin, lease)
            owners.append(await end_it(lease, then, ASYNC[kind](database)))
    else:

        @queue.handler
        def run(lease: Lease):
            begin(lease)
            owners.append(asyncio.run(end_it(lease, then, SYNC[kind](database))))

    one = helix.submit(queue, identity="s", payload={})
    done = helix.work(queue, until_idle=True)
    assert owners == ["thief" if zombie else None]
    assert (done.completed, done.lost) == ((0, 1) if zombie else (1, 0))
    assert helix.state(one.receipt) is State.COMPLETED
    assert helix.result(one.receipt) == ({"by": "thief"} if zombie else {"n": 1})
    assert effects(database, name) == ({} if zombie else {"s": 1})
    assert len(list(helix.batches(queue=then))) == (0 if zombie else 1)
    proven(database)
