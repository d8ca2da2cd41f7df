"""The middleware among others: in applications, documents, logs and counts."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import httpx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Route as StarletteRoute

from helixqueue.fence.http import IdempotencyMiddleware, describe
from helixqueue.fence.http.problem import PREFIX, PROBLEMS
from helixqueue.fence.policy import Policy, Route
from tests.support.fence_shop import KEY, fresh, kind_of, open_shop, run


def test_middleware_works_between_other_middleware(database):
    """Also around BaseHTTPMiddleware, which runs its application in a task of its own."""

    async def story():
        ran = []

        async def answer(request):
            ran.append(await request.json())
            return JSONResponse({"n": len(ran)})

        class Stamp(BaseHTTPMiddleware):
            async def dispatch(self, request, call_next):
                response = await call_next(request)
                response.headers["x-stamp"] = "1"
                return response

        app = Starlette(routes=[StarletteRoute("/orders/{o}/refunds", answer, methods=["POST"])])
        app.add_middleware(Stamp)
        policy = fresh(route={"keep_headers": ("x-stamp",)})
        async with open_shop(database, policy, app=app) as fenced:
            first, again = await fenced.post(), await fenced.post()
            assert first.json() == again.json() == {"n": 1}
            assert first.headers["x-stamp"] == again.headers["x-stamp"] == "1"

    run(story())


def test_middleware_is_added_with_add_middleware(database):
    async def story():
        async with open_shop(database, fresh(), "fastapi") as fenced:
            app = fenced.shop.fastapi()
            app.add_middleware(IdempotencyMiddleware, helix=fenced.helix, policy=fresh())
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:

                async def ask(key):
                    headers = {"Idempotency-Key": key}
                    return await client.post("/orders/1/refunds", json={}, headers=headers)

                first, again = await ask(KEY), await ask(KEY)
                assert first.json() == again.json()
                fenced.shop.fails = RuntimeError("the bank hung up")
                assert (await ask("another-key")).status_code == 500
                assert kind_of(await ask("another-key")) == "in-doubt"
            assert len(fenced.shop.effects) == 2

    run(story())


def test_decisions_are_counted_and_logged_with_the_fields_of_the_policy(database, caplog):
    async def story():
        policy = fresh(log_fields=("decision", "source_type", "key", "diff_ops"))
        async with open_shop(database, policy) as fenced:
            with caplog.at_level(logging.INFO, "helixqueue.fence.http"):
                await fenced.post()
                await fenced.post()
                await fenced.post({"cents": 1})
            found = [record.event for record in caplog.records]
            assert [item["decision"] for item in found] == ["new", "duplicate", "conflict"]
            common = {"at", "level", "operation", "fence"}
            assert set(found[2]) - common == {"decision", "source_type", "key", "diff_ops"}
            assert found[2]["diff_ops"] == 1
            decisions = fenced.helix.fences.counters.snapshot().decisions
            assert sorted(word for _, _, word in decisions) == [
                "conflict",
                "duplicate",
                "new",
            ]
            assert not any(KEY in str(label) for label in decisions)

    run(story())


def test_openapi_document_has_the_key_header_and_the_problems():
    app = FastAPI()

    @app.post("/orders/{order}/refunds")
    async def refund(order: str):
        return order

    @app.get("/orders")
    async def orders():
        return []

    policy = Policy(routes=(Route(path="/orders/{id}/refunds"),))
    described = describe(app.openapi(), policy)
    operation = described["paths"]["/orders/{order}/refunds"]["post"]
    [header] = [p for p in operation["parameters"] if p["in"] == "header"]
    assert (header["name"], header["required"]) == ("Idempotency-Key", True)
    assert {"400", "409", "413", "503"} <= set(operation["responses"])
    assert "parameters" not in described["paths"]["/orders"]["get"]
    named = described["components"]["schemas"]["IdempotencyProblem"]["properties"]["type"]["enum"]
    assert set(named) == {PREFIX + kind for kind in PROBLEMS}


def test_guide_describes_every_problem():
    guide = Path(__file__).parents[2] / "docs" / "guides" / "idempotency.md"
    lines = re.findall(r"^\| `([a-z-]+)` \| (\d+)", guide.read_text(encoding="utf-8"), re.MULTILINE)
    assert {kind: int(status) for kind, status in lines} == {
        kind: status for kind, (status, _) in PROBLEMS.items()
    }
