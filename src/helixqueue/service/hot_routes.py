"""Serves an operation without the framework's layers, where it takes names in its path and a body.

FastAPI describes every operation, and serves those that people call. Of a single submit its layers
were more than half of all that the service did, so what programs call in bulk comes here: the same
functions, the same models and the same refusals.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, get_type_hints

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from helixqueue.errors import HelixError
from helixqueue.fence.http.asgi import Receive, Scope, Send, whole_body
from helixqueue.service.admission import OPERATION_KEY, Operation
from helixqueue.service.problems import Problem
from helixqueue.service.routing import strict_json
from helixqueue.service.service import journal_of, principal_of, service_of
from helixqueue.service.settings import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from fastapi import FastAPI
    from fastapi.routing import APIRoute


def _itself(request: Request) -> Request:
    return request


_OURS = {
    "asker": principal_of,
    "here": service_of,
    "note": journal_of,
    "request": _itself,
}


class HotRoute:
    """One operation, as an ASGI application."""

    def __init__(
        self,
        route: APIRoute,
        app: FastAPI,
        tell: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app = app
        self._tell = tell
        self._endpoint: Callable[..., Awaitable[Any]] = route.endpoint
        self._status = route.status_code or 200
        hints = get_type_hints(route.endpoint, include_extras=True)
        names = inspect.signature(route.endpoint).parameters
        self._body = TypeAdapter(hints["body"])
        self._ours = {name: find for name, find in _OURS.items() if name in names}
        self._path = {name: TypeAdapter(hints[name]) for name in route.param_convertors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self._app
        request = Request(scope, receive)
        try:
            body = await whole_body(receive, MAX_BODY_BYTES)
            response = await self._answered(request, body or b"")
        except (Problem, HelixError, RequestValidationError) as error:
            response = await self._tell(request, error)
        await response(scope, receive, send)

    async def _answered(self, request: Request, body: bytes) -> Response:
        operation: Operation = request.scope[OPERATION_KEY]
        found = operation.pattern.fullmatch(request.scope["path"])
        said = {} if found is None else found.groupdict()
        given = {name: _valid(kind, said[name], "path", name) for name, kind in self._path.items()}
        if not body:
            raise RequestValidationError(
                [{"type": "missing", "loc": ("body",), "msg": "Field required"}]
            )
        given["body"] = _valid(self._body, strict_json(body), "body")
        answer = await self._endpoint(
            **given, **{name: find(request) for name, find in self._ours.items()}
        )
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, BaseModel):
            text = answer.__pydantic_serializer__.to_json(answer)
            return Response(text, self._status, media_type="application/json")
        return Response(status_code=self._status)


def fits(route: APIRoute) -> bool:
    """Whether an operation takes nothing but names in its path and a body."""
    names = set(inspect.signature(route.endpoint).parameters)
    return "body" in names and names - set(_OURS) - {"body"} == set(route.param_convertors)


def directly(
    routes: Iterable[APIRoute],
    app: FastAPI,
    tell: Callable[[Request, Exception], Awaitable[Response]],
) -> Mapping[str, HotRoute]:
    """By the names of operations."""
    return {
        route.operation_id or route.name: HotRoute(route, app, tell)
        for route in routes
        if fits(route)
    }


def _valid(kind: TypeAdapter[Any], value: object, *where: str) -> Any:  # noqa: ANN401 - as it says
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        faults = [{**one, "loc": (*where, *one["loc"])} for one in error.errors()]
        raise RequestValidationError(faults) from None
