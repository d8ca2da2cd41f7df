"""How operations are declared: what they demand stands in the document that clients read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path
from fastapi.routing import APIRoute
from starlette.requests import Request

from helixqueue.errors import InvalidPayload
from helixqueue.fence.http.asgi import Disconnected
from helixqueue.identity import loads
from helixqueue.service.bodies import NAME_PATTERN
from helixqueue.service.principal import Principal
from helixqueue.service.problems import Problem
from helixqueue.service.request_log import RequestLog
from helixqueue.service.service import Service, journal_of, principal_of, service_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response

T = TypeVar("T")


# Coroutines, though nothing waits: the framework would run plain functions in threads.
async def _asker(request: Request) -> Principal:
    return principal_of(request)


async def _here(request: Request) -> Service:
    return service_of(request)


async def _note(request: Request) -> RequestLog:
    return journal_of(request)


Asker = Annotated[Principal, Depends(_asker)]
Here = Annotated[Service, Depends(_here)]
Note = Annotated[RequestLog, Depends(_note)]
QueueName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="A queue.", examples=["basecall"])
]


def strict_json(body: bytes) -> Any:  # noqa: ANN401 - JSON
    """No doubled names, no NaN, no lone surrogates: a body has one meaning or none."""
    try:
        return loads(body)
    except InvalidPayload as refused:
        # The reader's word for what it reads; here it may be anything that was sent.
        told = f"body {str(refused).removeprefix('payload ')}"
        raise Problem("not-json", told, code=refused.code, pointer=refused.path) from None


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; nobody needs it any more when the client has left."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Disconnected
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _StrictRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401 - JSON
        return strict_json(await self.body())


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict


def router(tag: str) -> APIRouter:
    return APIRouter(tags=[tag], route_class=StrictRoute)


def demands(scope: str, *problems: str, fenced: bool = False) -> dict[str, Any]:
    """What an operation says of itself besides what its signature does.

    `problems`: those of its own (document.py knows which ones all have). `fenced`: it may come
    with an idempotency key. Not what hands out secrets: answers are kept.
    """
    return {
        "openapi_extra": {
            "x-scope": scope,
            "x-problems": list(problems),
            "x-fenced": fenced,
            **({} if scope == "open" else {"security": [{"token": []}]}),
        },
    }
