"""Which requests the middleware fences: below a mount, and where the policy lists no route."""

from __future__ import annotations

import logging

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from helixqueue.errors import Refused
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.policy import Policy, Route
from tests.support.fence_shop import KEY, Shop, fresh, kind_of, open_shop, run, status_link

MOUNTS = ["starlette mount", "fastapi mount", "router mount", "root path of the server",
          "root path of the application"]  # fmt: skip


def placed(kind, shop, fence):
    """The fenced shop below /api; `fence` puts the middleware in front of an application."""
    if kind == "starlette mount":
        return Starlette(routes=[Mount("/api", fence(shop.starlette()))])
    if kind == "fastapi mount":
        outer, inner = FastAPI(), shop.fastapi()
        inner.add_middleware(fence)
        outer.mount("/api", inner)
        return outer
    if kind == "router mount":
        return Starlette(
            routes=[Mount("/{tenant}", Starlette(routes=[Mount("", fence(shop.starlette()))]))]
        )
    if kind == "root path of the application":
        inner = shop.fastapi()
        inner.root_path = "/api"
        return fence(inner)
    return fence(shop.fastapi())


@pytest.mark.parametrize("kind", MOUNTS)
def test_three_keyed_requests_below_a_mount_have_one_effect(database, kind):
    async def story():
        shop, policy = Shop(), fresh(status_path="/idempotency")
        async with open_shop(database, policy) as fenced:

            def fence(app):
                return IdempotencyMiddleware(app, helix=fenced.helix, policy=policy)

            root = "/api" if kind == "root path of the server" else ""
            transport = httpx.ASGITransport(
                placed(kind, shop, fence), raise_app_exceptions=False, root_path=root
            )
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

                async def ask(key):
                    headers = {"Idempotency-Key": key} if key else {}
                    return await client.post("/api/orders/1/refunds", json={}, headers=headers)

                answers = [await ask(KEY) for _ in range(3)]
                assert [answer.status_code for answer in answers] == [201, 201, 201]
                assert len(shop.effects) == 1
                assert kind_of(await ask(None)) == "missing-key"
                shop.fails = RuntimeError("the bank hung up")
                assert (await ask("another-key")).status_code == 500
                link = status_link(await ask("another-key"))
                assert link.startswith("/api/idempotency/")
                assert (await client.get(link)).json()["state"] == "IN_DOUBT"

    run(story())


def test_keyed_request_to_an_unlisted_route_is_refused_counted_and_logged(database, caplog):
    async def story():
        async with open_shop(database, Policy(routes=(Route("/orders/{o}/refunds"),))) as fenced:
            headers = {"Idempotency-Key": KEY}
            with caplog.at_level(logging.WARNING, "helixqueue.fence.http"):
                refused = await fenced.client.post("/orders/1/returns/2", headers=headers)
            assert (refused.status_code, kind_of(refused)) == (400, "key-not-accepted")
            deleted = await fenced.client.delete("/orders/1/refunds", headers=headers)
            assert kind_of(deleted) == "key-not-accepted"
            assert fenced.shop.effects == []
            line, _ = [record.event for record in caplog.records]
            assert (line["decision"], line["path"]) == ("key-not-accepted", "/orders/1/returns/2")
            label = ("http", "http (unlisted)", "key-not-accepted")
            assert fenced.helix.fences.counters.snapshot().decisions == {label: 2}

            # Without a key, and for methods without effect, nothing was promised.
            assert (await fenced.client.post("/orders/1/returns", json={})).status_code == 201
            assert (await fenced.client.get("/orders/1/returns", headers=headers)).is_success
            assert len(fenced.shop.effects) == 2

    run(story())


def test_keyed_request_to_an_unlisted_route_is_passed_by_setting_and_counted(database, caplog):
    async def story():
        policy = Policy(routes=(Route("/orders/{o}/refunds"),), unlisted="pass")
        async with open_shop(database, policy) as fenced:
            headers = {"Idempotency-Key": KEY}
            with caplog.at_level(logging.WARNING, "helixqueue.fence.http"):
                for _ in range(2):
                    assert (
                        await fenced.client.post("/orders/1/returns", headers=headers)
                    ).is_success
            assert len(fenced.shop.effects) == 2
            assert [record.event["decision"] for record in caplog.records] == ["unlisted"] * 2
            label = ("http", "http (unlisted)", "unlisted")
            assert fenced.helix.fences.counters.snapshot().decisions == {label: 2}

    run(story())


def refunds_below(prefix):
    router = APIRouter(prefix="/orders")

    @router.post("/{order}/refunds")
    async def refund(order: str):
        return order

    @router.get("/{order}/bills")
    async def bill(order: str):
        return order

    @router.put("/{order}/files/{name:path}")
    async def upload(order: str, name: str):
        return order, name

    app = FastAPI()
    app.include_router(router, prefix=prefix)
    return app


UNMATCHED = {
    "another prefix": ("/v1", "/orders/{o}/refunds", {"POST"}),
    "another method": ("/v1", "/v1/orders/{o}/bills", {"POST", "PATCH"}),
    "another depth": ("", "/orders/{o}/refunds/", {"POST"}),
    "the prefix of the mount": ("", "/api/orders/{o}/refunds", {"POST"}),
}


@pytest.mark.parametrize("case", UNMATCHED)
def test_policy_route_that_no_route_of_the_application_matches_is_refused_at_the_start(
    database, case
):
    prefix, path, methods = UNMATCHED[case]

    async def story():
        policy = Policy(routes=(Route(path, methods=frozenset(methods)),))
        with pytest.raises(Refused, match=r"expected routes that the application has, got .*/"):
            async with open_shop(database, policy, app=refunds_below(prefix)):
                pass

    run(story())


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/orders/{id}/refunds", "POST"),
        ("/v1/orders/special/refunds", "POST"),
        ("/v1/orders/{id}/files/a/{b}/c", "PUT"),
        ("*", "DELETE"),
    ],
)
def test_policy_route_that_a_route_of_the_application_can_match_starts(database, path, method):
    async def story():
        policy = Policy(routes=(Route(path, methods=frozenset({method})),))
        for app in (
            refunds_below("/v1"),
            Starlette(routes=[Mount("/v1", refunds_below(""))]),
            Starlette(routes=[Mount("/v1", open_shop)]),  # any ASGI application: unknown routes
        ):
            async with open_shop(database, policy, app=app):
                pass

    run(story())
