"""The end of an attempt on connections of the handler's own, of every kind."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from sqlalchemy import text

from helixqueue import AsyncLease, Lease, LeaseLost, Queue
from tests.client.connections import ASYNC, SYNC
from tests.worker.conftest import effects, proven
from tests.worker.test_handlers import take_over


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
def test_any_connection_ends_the_attempt_or_writes_nothing(helix, database, name, kind):
    queue, then = Queue(name, lease=60), Queue(f"{name}.then")
    helix.know(then)
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
