"""A shop that refunds over HTTP, for FastAPI, Starlette and plain ASGI; it counts effects."""

from __future__ import annotations

import asyncio
import itertools
import json
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.responses import JSONResponse as StarletteJSON
from starlette.routing import Route

from helixqueue import AsyncHelixQueue
from helixqueue.engine import fences as calls
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.http.problem import PREFIX
from helixqueue.fence.policy import Policy
from helixqueue.fence.policy import Route as PolicyRoute
from tests.support.lab import POOLED

KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"
KINDS = ["fastapi", "starlette", "bare"]
_numbers = itertools.count(1)


def fresh(**options):
    """A policy whose fences no other test meets."""
    route = {"wait_ms": 0, "min_key_chars": 1} | options.pop("route", {})
    path = route.setdefault("path", f"/orders/{{order{next(_numbers)}}}/refunds")
    return Policy(routes=(PolicyRoute(**(route | {"path": path})),), **options)


def run(story):
    """Run an async test; one that hangs fails by the suite's time limit."""
    return asyncio.run(story)


def kind_of(response):
    return response.json()["type"].removeprefix(PREFIX)


def status_link(answer):
    [link] = [item for item in answer.headers.get_list("link") if 'rel="status"' in item]
    return link[1 : link.index(">")]


async def fences_of(fenced):
    name = fenced.middleware.policy.routes[0].name
    return [*(await fenced.helix.fences.run(calls.list_fences(name=name))).rows]


class Shop:
    """Effects, and the ways in which an application can behave."""

    def __init__(self):
        self.effects = []
        self.going = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.status = 201
        self.headers = {}
        self.fails = None

    async def refund(self, order, body):
        self.effects.append((order, body))
        self.going.set()
        await self.goes_on.wait()
        if self.fails is not None:
            raise self.fails
        number = len(self.effects)
        return {"refund": number, "order": order}, {
            "Location": f"/refunds/{number}",
            "Set-Cookie": "session=secret",
            "X-Request-Id": str(number),
            **self.headers,
        }

    def fastapi(self):
        app = FastAPI()

        @app.post("/orders/{order}/refunds")
        async def refund(order: str, request: Request):
            answer, headers = await self.refund(order, await request.body())
            return JSONResponse(answer, self.status, headers)

        return app

    def starlette(self):
        async def refund(request):
            answer, headers = await self.refund(request.path_params["order"], await request.body())
            return StarletteJSON(answer, self.status, headers)

        return Starlette(routes=[Route("/orders/{order}/refunds", refund, methods=["POST"])])

    def bare(self):
        async def app(scope, receive, send):
            body, more = b"", True
            while more:
                message = await receive()
                body += message.get("body", b"")
                more = message.get("more_body", False)
            order = scope["path"].split("/")[2]
            answer, headers = await self.refund(order, body)
            pairs = [(n.lower().encode(), v.encode()) for n, v in headers.items()]
            pairs.append((b"content-type", b"application/json"))
            await send({"type": "http.response.start", "status": self.status, "headers": pairs})
            await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

        return app


class FencedShop:
    """A client of the shop behind the middleware."""

    def __init__(self, client, shop, helix, middleware):
        self.client = client
        self.shop = shop
        self.helix = helix
        self.middleware = middleware

    async def post(self, body=None, key=KEY, order="o1", **options):
        headers = dict(options.pop("headers", {}))
        if key is not None:
            headers["Idempotency-Key"] = key
        if "content" not in options and "data" not in options and "files" not in options:
            options["json"] = {"cents": 500} if body is None else body
        return await self.client.post(f"/orders/{order}/refunds", headers=headers, **options)


@asynccontextmanager
async def open_shop(
    database, policy=None, kind="bare", *, app=None, role="pool", settings=None, **options
):
    shop = Shop()
    settings = {"pooled": POOLED} | (settings or {})
    async with AsyncHelixQueue(database.dsn(role), tenant="a", **settings) as helix:
        inner = getattr(shop, kind)() if app is None else app
        middleware = IdempotencyMiddleware(inner, helix=helix, policy=policy, **options)
        transport = httpx.ASGITransport(middleware, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield FencedShop(client, shop, helix, middleware)
