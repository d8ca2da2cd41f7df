"""The sender of a request in doubt or in progress can read its state, and no other client can."""

from __future__ import annotations

import asyncio

import pytest

from helixqueue import AsyncHelixQueue
from helixqueue.engine import fences as calls
from helixqueue.engine.fences import Times
from helixqueue.fence.http.problem import PREFIX
from tests.support.fence_shop import fences_of, fresh, kind_of, open_shop, run, status_link

PATH = "/idempotency"


async def resolved(database, row):
    async with AsyncHelixQueue(database.dsn("operator"), tenant="a") as operator:
        call = calls.resolve(
            row.key, row.version, Times(), actor="ann", reason="looked", result=None
        )
        await operator.fences.run(call)


def test_doubt_links_to_its_status(database):
    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as fenced:
            fenced.shop.goes_on.clear()
            fenced.shop.fails = RuntimeError("password of the bank")
            first = asyncio.create_task(fenced.post())
            await fenced.shop.going.wait()
            busy = await fenced.post()
            assert kind_of(busy) == "in-progress"
            link = status_link(busy)
            assert (await fenced.client.get(link)).json()["state"] == "EFFECT_STARTED"
            fenced.shop.goes_on.set()
            await first
            doubted = await fenced.post()
            assert (kind_of(doubted), status_link(doubted)) == ("in-doubt", link)
            assert link == f"{PATH}/{doubted.json()['fence']}"
            response = await fenced.client.get(link)
            assert (response.status_code, response.json()["state"]) == (200, "IN_DOUBT")
            assert "do not send the request with a new key" in response.json()["means"]
            assert "password" not in response.text
            assert response.headers["cache-control"] == "no-store"
            [row] = await fences_of(fenced)
            await resolved(database, row)
            assert (await fenced.client.get(link)).json()["state"] == "RELEASED"
            fenced.shop.fails = None
            done = await fenced.post()
            response = (await fenced.client.get(link)).json()
            assert response["receipt"] == done.headers["idempotency-receipt"]
            assert response["answer_until"]
            assert len(fenced.shop.effects) == 2

    run(story())


def test_status_of_another_owners_fence_is_not_found(database):
    async def story():
        def owner(header):
            return lambda scope: dict(scope["headers"]).get(header, b"").decode() or None

        policy = fresh(status_path=PATH)
        owners = {"tenant": owner(b"x-tenant"), "principal": owner(b"x-user")}
        async with open_shop(database, policy, **owners) as fenced:

            async def ask(path, tenant="a", user="ann"):
                headers = {"x-tenant": tenant, "x-user": user}
                return await fenced.client.get(path, headers=headers)

            await fenced.post(headers={"x-tenant": "a", "x-user": "ann"})
            [row] = await fences_of(fenced)
            path = f"{PATH}/v1:{row.key[1:].hex()}"
            assert (await ask(path)).json()["state"] == "SEALED"
            for role in (("a", "bob"), ("b", "ann")):
                assert kind_of(await ask(path, *role)) == "no-such-fence"
            assert kind_of(await ask(path, "a", "")) == "scope-unavailable"
            for wrong in ("v1:00", "v1:" + "0" * 64, "v1:" + "é" * 64, "x"):
                answer = await ask(f"{PATH}/{wrong}")
                assert (answer.status_code, kind_of(answer)) == (404, "no-such-fence")

    run(story())


def test_status_of_a_function_fence_is_not_found(database, helix, name):
    with helix.fence(name, key="k") as fence:
        fence.seal(1)

    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as fenced:
            assert kind_of(await fenced.client.get(f"{PATH}/{fence.key}")) == "no-such-fence"

    run(story())


@pytest.mark.parametrize("path", ["/idempotency", "/idempotency/a/b", "/other/v1:00"])
def test_other_paths_reach_the_application(database, path):
    async def story():
        async with open_shop(database, fresh(status_path=PATH)) as fenced:
            answer = await fenced.client.get(path)
            assert PREFIX not in answer.text

    run(story())
