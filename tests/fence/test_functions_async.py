"""The async twin of `helix.fence`."""

from __future__ import annotations

import asyncio

import pytest

from helixqueue import AsyncHelixQueue
from helixqueue.errors import (
    InDoubt,
)
from helixqueue.fence import Applied
from tests.support.fence_reads import Refund, fence_of
from tests.support.lab import POOLED


def test_two_surfaces_that_write_one_record_have_one_effect(database, helix, name):
    """A batch worker and an API, or two regions after a failover: the key is the record's."""
    effects = []

    @helix.fence(name, key=lambda record: record)
    def by_worker(record: str) -> dict[str, int]:
        effects.append("worker")
        return {"n": len(effects)}

    async def by_api():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as api:

            @api.fence(name, key=lambda record: record)
            async def write(record: str) -> dict[str, int]:
                effects.append("api")
                return {"n": len(effects)}

            return await write("r1")

    assert by_worker("r1") == asyncio.run(by_api()) == {"n": 1}
    assert effects == ["worker"]


def test_async_client_behaves_like_the_sync_client(database, name):
    async def story():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            ran = []

            async def find(order):
                return Applied(Refund(id="found", cents=order))

            @helix.fence(name, key=lambda order: order, probe=find, wait=60)
            async def refund(order: int) -> Refund:
                ran.append(order)
                await asyncio.sleep(0)
                if order == 2:
                    raise TimeoutError
                return Refund(id=f"re_{len(ran)}", cents=order)

            first = await asyncio.gather(*(refund(1) for _ in range(100)))
            assert {item.id for item in first} == {"re_1"}
            with pytest.raises(TimeoutError):
                await refund(2)
            assert (await refund.outcome(2)).result == Refund(id="found", cents=2)
            assert ran == [1, 2]
            async with helix.fence(name, key="block", payload=1) as fence:
                fence.seal([])
            async with helix.fence(name, key="block", payload=1) as fence:
                assert (fence.first, fence.result) == (False, [])
            with pytest.raises(TypeError, match="HelixQueue"):
                helix.fence(name, key="x")(lambda: None)

    asyncio.run(story())


def test_cancelled_async_effect_is_in_doubt(database, name):
    async def story():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            going = asyncio.Event()

            @helix.fence(name, key=lambda: "k")
            async def act() -> None:
                going.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(act())
            await going.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(InDoubt):
                await act()

    asyncio.run(story())


def test_cancellation_during_the_seal_does_not_stop_it(database, name):
    async def story():
        locker = database.connect("helix_bootstrap", autocommit=False)
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:

            @helix.fence(name, key=lambda: "k")
            async def act() -> str:
                lock = "select 1 from helix.fence where name = %s for update"
                locker.execute(lock, (name,))
                return "done"

            task = asyncio.create_task(act())
            waits = (
                "select 1 from pg_stat_activity where wait_event_type = 'Lock' "
                "and query like '%%seal_fence_v1%%' and datname = %s"
            )
            while not database.rows(waits, database.name):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0)
            locker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await act() == "done"
        locker.close()

    asyncio.run(story())
    assert fence_of(database, name).state == "SEALED"
