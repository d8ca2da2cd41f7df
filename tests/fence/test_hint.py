"""G9 for fences: Valkey down, frozen, empty or lying costs time, never a second effect."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from redis.asyncio import Redis

from helixqueue.embedded import Valkey
from helixqueue.errors import Refused
from helixqueue.fence.counters import Counters
from helixqueue.fence.hint import PREFIX, SealedCache
from tests.support.fence_passing import let_time_pass
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop
from tests.support.lab import until

SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    with Valkey(tmp_path_factory.mktemp("hint") / "valkey", supervised=False) as valkey:
        yield valkey


def told(counters):
    return counters.snapshot().hint


async def forget_in_postgres(database, door):
    """PostgreSQL cannot answer any more: what still comes, comes from the hint."""
    [row] = await fences_of(door)
    await asyncio.to_thread(let_time_pass, database, row.key, answer=True)


def test_a_sealed_answer_is_repeated_from_the_hint(database, valkey):
    async def story():
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        async with open_shop(database, fresh(), hint=hint) as door:
            first = await door.post()
            await forget_in_postgres(database, door)
            again = await door.post()
            assert again.content == first.content
            assert again.headers["idempotency-replayed"] == "true"
            for name in ("idempotency-receipt", "location"):
                assert again.headers[name] == first.headers[name]
            assert len(door.shop.effects) == 1
            assert told(counters) == {"miss": 1, "hit": 1}
            # Another body finds nothing there, and PostgreSQL refuses it.
            assert kind_of(await door.post({"cents": 1})) == "key-reused"
        await hint.close()

    asyncio.run(story())


def test_another_tenant_finds_nothing(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        policy = fresh()

        def tenant(scope):
            return dict(scope["headers"])[b"x-tenant"].decode()

        async with open_shop(database, policy, hint=hint, tenant=tenant) as door:
            for who in ("a", "b"):
                answer = await door.post(headers={"x-tenant": who})
                assert "idempotency-replayed" not in answer.headers
            assert len(door.shop.effects) == 2
        await hint.close()

    asyncio.run(story())


@pytest.mark.parametrize("lie", ["garbage", "swapped", "forged", "empty"])
def test_a_hint_that_lies_or_forgot_is_not_believed(database, valkey, lie):
    async def story():
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        redis = Redis.from_url(valkey.url)
        async with open_shop(database, fresh(), hint=hint) as door:
            await redis.flushall()
            right = await door.post()
            [name] = await redis.keys(f"{PREFIX}*")
            await door.post({"cents": 1}, key="another-key-of-sixteen")
            [other] = [key for key in await redis.keys(f"{PREFIX}*") if key != name]
            entry = {
                "garbage": b"x" * 100,
                "swapped": await redis.get(other),
                "forged": (await redis.get(name))[:-1] + b"!",
                "empty": None,
            }[lie]
            await (redis.delete(name) if entry is None else redis.set(name, entry))
            again = await door.post()
            assert again.content == right.content
            assert len(door.shop.effects) == 2
            assert ("lie" in told(counters)) is (lie != "empty")
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_valkey_killed_and_frozen_costs_time_and_nothing_else(database, tmp_path):
    async def story(valkey):
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        pid = int((valkey.data / valkey.pid_file).read_text())
        async with open_shop(database, fresh(), hint=hint) as door:
            assert (await door.post()).status_code == 201
            os.kill(pid, signal.SIGSTOP)
            for _ in range(5):
                assert (await door.post()).headers["idempotency-replayed"] == "true"
            os.kill(pid, signal.SIGCONT)
            # Three that came late opened the circuit; from then on nobody asked.
            assert told(counters)["open"] >= 2
            os.kill(pid, signal.SIGKILL)
            until(lambda: not valkey.is_ready())
            for number in range(5):
                answer = await door.post(key=f"after-the-kill-{number}-0000")
                assert answer.status_code == 201
                again = await door.post(key=f"after-the-kill-{number}-0000")
                assert again.headers["idempotency-replayed"] == "true"
            assert len(door.shop.effects) == 6
        await hint.close()

    with Valkey(tmp_path / "valkey", supervised=False) as valkey:
        asyncio.run(story(valkey))


def test_what_is_not_sealed_is_never_in_the_hint(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        redis = Redis.from_url(valkey.url)
        await redis.flushall()
        async with open_shop(database, fresh(), hint=hint) as door:
            door.shop.status = 500
            await door.post()
            door.shop.status = 401
            await door.post(key="another-key-of-sixteen")
            assert await redis.keys(f"{PREFIX}*") == []
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_entries_do_not_outlive_the_answer_in_postgres(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        redis = Redis.from_url(valkey.url)
        await redis.flushall()
        policy = fresh()
        async with open_shop(database, policy, hint=hint) as door:
            await door.post()
            [name] = await redis.keys(f"{PREFIX}*")
            assert 0 < await redis.ttl(name) <= policy.ttl.api_hours * 3600
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_a_short_secret_is_refused():
    with pytest.raises(Refused, match="16 bytes"):
        SealedCache("redis://localhost", b"short")
