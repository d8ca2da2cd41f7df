"""G9 for fences: Valkey down, frozen, empty or lying costs time, never a second effect."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from redis.asyncio import Redis

from helixqueue.embedded import Valkey
from helixqueue.errors import Refused
from helixqueue.fence.hint import PREFIX, SealedCache
from helixqueue.fence.metrics import Counters
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop
from tests.support.fence_time import expire
from tests.support.lab import wait_until

SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    with Valkey(tmp_path_factory.mktemp("hint") / "valkey", supervised=False) as valkey:
        yield valkey


def counts_of(counters):
    return counters.snapshot().hint


async def forget_in_postgres(database, fenced):
    """PostgreSQL cannot answer any more: what still comes, comes from the hint."""
    [row] = await fences_of(fenced)
    await asyncio.to_thread(expire, database, row.key, answer=True)


def test_sealed_answer_is_repeated_from_the_cache(database, valkey):
    async def story():
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        async with open_shop(database, fresh(), hint=hint) as fenced:
            first = await fenced.post()
            await forget_in_postgres(database, fenced)
            again = await fenced.post()
            assert again.content == first.content
            assert again.headers["idempotency-replayed"] == "true"
            for name in ("idempotency-receipt", "location"):
                assert again.headers[name] == first.headers[name]
            assert len(fenced.shop.effects) == 1
            assert counts_of(counters) == {"miss": 1, "hit": 1}
            # Another body finds nothing there, and PostgreSQL refuses it.
            assert kind_of(await fenced.post({"cents": 1})) == "key-reused"
        await hint.close()

    asyncio.run(story())


def test_cache_entry_is_not_found_by_another_tenant(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        policy = fresh()

        def tenant(scope):
            return dict(scope["headers"])[b"x-tenant"].decode()

        async with open_shop(database, policy, hint=hint, tenant=tenant) as fenced:
            for name in ("a", "b"):
                answer = await fenced.post(headers={"x-tenant": name})
                assert "idempotency-replayed" not in answer.headers
            assert len(fenced.shop.effects) == 2
        await hint.close()

    asyncio.run(story())


@pytest.mark.parametrize("lie", ["garbage", "swapped", "forged", "empty"])
def test_forged_or_missing_cache_entry_is_not_used(database, valkey, lie):
    async def story():
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        redis = Redis.from_url(valkey.url)
        async with open_shop(database, fresh(), hint=hint) as fenced:
            await redis.flushall()
            right = await fenced.post()
            [name] = await redis.keys(f"{PREFIX}*")
            await fenced.post({"cents": 1}, key="another-key-of-sixteen")
            [other] = [key for key in await redis.keys(f"{PREFIX}*") if key != name]
            entry = {
                "garbage": b"x" * 100,
                "swapped": await redis.get(other),
                "forged": (await redis.get(name))[:-1] + b"!",
                "empty": None,
            }[lie]
            await (redis.delete(name) if entry is None else redis.set(name, entry))
            again = await fenced.post()
            assert again.content == right.content
            assert len(fenced.shop.effects) == 2
            assert ("forged" in counts_of(counters)) is (lie != "empty")
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_killed_or_frozen_valkey_costs_only_latency(database, tmp_path):
    async def story(valkey):
        counters = Counters()
        hint = SealedCache(valkey.url, SECRET, counters)
        pid = int((valkey.data / valkey.pid_file).read_text())
        async with open_shop(database, fresh(), hint=hint) as fenced:
            assert (await fenced.post()).status_code == 201
            os.kill(pid, signal.SIGSTOP)
            for _ in range(5):
                assert (await fenced.post()).headers["idempotency-replayed"] == "true"
            os.kill(pid, signal.SIGCONT)
            # Three that came late opened the circuit; from then on nobody asked.
            assert counts_of(counters)["open"] >= 2
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not valkey.is_ready())
            for number in range(5):
                answer = await fenced.post(key=f"after-the-kill-{number}-0000")
                assert answer.status_code == 201
                again = await fenced.post(key=f"after-the-kill-{number}-0000")
                assert again.headers["idempotency-replayed"] == "true"
            assert len(fenced.shop.effects) == 6
        await hint.close()

    with Valkey(tmp_path / "valkey", supervised=False) as valkey:
        asyncio.run(story(valkey))


def test_unsealed_answer_is_never_cached(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        redis = Redis.from_url(valkey.url)
        await redis.flushall()
        async with open_shop(database, fresh(), hint=hint) as fenced:
            fenced.shop.status = 500
            await fenced.post()
            fenced.shop.status = 401
            await fenced.post(key="another-key-of-sixteen")
            assert await redis.keys(f"{PREFIX}*") == []
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_cache_entry_expires_with_the_answer_in_postgresql(database, valkey):
    async def story():
        hint = SealedCache(valkey.url, SECRET)
        redis = Redis.from_url(valkey.url)
        await redis.flushall()
        policy = fresh()
        async with open_shop(database, policy, hint=hint) as fenced:
            await fenced.post()
            [name] = await redis.keys(f"{PREFIX}*")
            assert 0 < await redis.ttl(name) <= policy.ttl.api_hours * 3600
        await redis.aclose()
        await hint.close()

    asyncio.run(story())


def test_a_short_secret_is_refused():
    with pytest.raises(Refused, match="16 bytes"):
        SealedCache("redis://localhost", b"short")
