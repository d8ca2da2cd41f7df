"""Who was told `in-doubt` or `in-progress` can ask how it stands, and nobody else can."""

from __future__ import annotations

import asyncio

import pytest

from helixqueue import AsyncHelixQueue
from helixqueue.engine import fences as calls
from helixqueue.engine.fences import Times
from helixqueue.fence.http.problem import PREFIX
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop, run

PATH = "/idempotency"


def status_link(answer):
    [link] = [one for one in answer.headers.get_list("link") if 'rel="status"' in one]
    return link[1 : link.index(">")]


async def resolved(database, row):
    async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
        call = calls.resolve(
            row.key, row.version, Times(), actor="ann", reason="looked", answer=None
        )
        await operator.fences.run(call)


def test_a_doubt_has_a_link_to_where_its_state_is_told(database):
    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as door:
            door.shop.goes_on.clear()
            door.shop.fails = RuntimeError("password of the bank")
            first = asyncio.create_task(door.post())
            await door.shop.going.wait()
            busy = await door.post()
            assert kind_of(busy) == "in-progress"
            link = status_link(busy)
            assert (await door.client.get(link)).json()["state"] == "EFFECT_STARTED"
            door.shop.goes_on.set()
            await first
            doubted = await door.post()
            assert (kind_of(doubted), status_link(doubted)) == ("in-doubt", link)
            assert link == f"{PATH}/{doubted.json()['fence']}"
            told = await door.client.get(link)
            assert (told.status_code, told.json()["state"]) == (200, "IN_DOUBT")
            assert "do not send it under a new key" in told.json()["means"]
            assert "password" not in told.text
            assert told.headers["cache-control"] == "no-store"
            [row] = await fences_of(door)
            await resolved(database, row)
            assert (await door.client.get(link)).json()["state"] == "RELEASED"
            door.shop.fails = None
            done = await door.post()
            told = (await door.client.get(link)).json()
            assert told["receipt"] == done.headers["idempotency-receipt"]
            assert told["answer_until"]
            assert len(door.shop.effects) == 2

    run(story())


def test_a_fence_of_somebody_else_is_no_fence(database):
    async def story():
        def owner(header):
            return lambda scope: dict(scope["headers"]).get(header, b"").decode() or None

        policy = fresh(status_path=PATH)
        owners = {"tenant": owner(b"x-tenant"), "principal": owner(b"x-user")}
        async with open_shop(database, policy, **owners) as door:

            async def ask(path, tenant="a", user="ann"):
                headers = {"x-tenant": tenant, "x-user": user}
                return await door.client.get(path, headers=headers)

            await door.post(headers={"x-tenant": "a", "x-user": "ann"})
            [row] = await fences_of(door)
            path = f"{PATH}/v1:{row.key[1:].hex()}"
            assert (await ask(path)).json()["state"] == "SEALED"
            for who in (("a", "bob"), ("b", "ann")):
                assert kind_of(await ask(path, *who)) == "no-such-fence"
            assert kind_of(await ask(path, "a", "")) == "scope-unavailable"
            for wrong in ("v1:00", "v1:" + "0" * 64, "v1:" + "é" * 64, "x"):
                answer = await ask(f"{PATH}/{wrong}")
                assert (answer.status_code, kind_of(answer)) == (404, "no-such-fence")

    run(story())


def test_a_functions_fence_is_not_told_to_http_clients(database, helix, name):
    with helix.fence(name, key="k") as fence:
        fence.seal(1)

    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as door:
            assert kind_of(await door.client.get(f"{PATH}/{fence.key}")) == "no-such-fence"

    run(story())


@pytest.mark.parametrize("path", ["/idempotency", "/idempotency/a/b", "/other/v1:00"])
def test_other_paths_are_the_applications(database, path):
    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as door:
            answer = await door.client.get(path)
            assert PREFIX not in answer.text

    run(story())
