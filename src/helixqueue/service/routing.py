"""How routes are declared: what an operation requires stands in the OpenAPI document."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request

from helixqueue.fence.http.asgi import Disconnected
from helixqueue.log.requests import SCOPE_KEY, RequestLog
from helixqueue.service.admission import BODY_KEY, PRINCIPAL_KEY, OperationRoute
from helixqueue.service.hot_routes import HotRoute
from helixqueue.service.models.requests import NAME_PATTERN
from helixqueue.service.principal import Principal
from helixqueue.service.service import Service

T = TypeVar("T")


# Coroutines, because FastAPI runs plain functions in threads.
async def _principal(request: Request) -> Principal:
    principal: Principal = request.scope[PRINCIPAL_KEY]
    return principal


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _request_log(request: Request) -> RequestLog:
    request_log: RequestLog = request.scope[SCOPE_KEY]
    return request_log


async def _raw_body(request: Request) -> bytes:
    body: bytes = request.scope[BODY_KEY]
    return body


PrincipalDep = Annotated[Principal, Depends(_principal)]
ServiceDep = Annotated[Service, Depends(_service)]
RequestLogDep = Annotated[RequestLog, Depends(_request_log)]
RawBodyDep = Annotated[bytes, Depends(_raw_body)]
QueueName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Name of the queue.", examples=["basecall"])
]


def router(tag: str) -> APIRouter:
    return _router(tag, OperationRoute)


def hot_router(tag: str) -> APIRouter:
    return _router(tag, HotRoute)


def _router(tag: str, route_class: type[OperationRoute]) -> APIRouter:
    return APIRouter(
        tags=[tag],
        route_class=route_class,
        generate_unique_id_function=lambda route: route.operation_id or route.name,
    )


def operation(
    scope: str, *problems: str, fenced: bool = False, signed: bool = False
) -> dict[str, Any]:
    """What an operation requires, as arguments of a route decorator.

    `problems` are those that not every operation has (openapi/document.py adds the common ones).
    `fenced` operations accept an idempotency key. Operations that return secrets must not, because
    their responses would be stored. A `signed` operation is open and checks a signature.
    """
    return {
        "openapi_extra": {
            "x-scope": scope,
            "x-problems": list(problems),
            "x-fenced": fenced,
            **({"x-signed": True} if signed else {}),
            **({} if scope == "open" else {"security": [{"token": []}]}),
        },
    }


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it when the client disconnects."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait([task, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Disconnected
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
