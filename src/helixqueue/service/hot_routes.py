"""Routes that programs call in bulk: submit, batch actions, and the calls of workers.

FastAPI documents them like every other route, but does not resolve their parameters: that took
more than half of the time of a single submit. Such an endpoint takes path parameters, a body, and
the values in `_PROVIDED`; nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from helixqueue.errors import HelixError
from helixqueue.log.requests import SCOPE_KEY
from helixqueue.service.admission import BODY_KEY, PRINCIPAL_KEY, OperationRoute
from helixqueue.service.errors import error_response
from helixqueue.service.problems import Problem
from helixqueue.service.strict_request import strict_json

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Receive, Scope, Send

_PROVIDED: Final = {"principal", "service", "request_log", "raw_body", "request"}


class HotRoute(OperationRoute):
    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
        super().__init__(path, endpoint, **options)
        hints = get_type_hints(endpoint, include_extras=True)
        names = set(inspect.signature(endpoint).parameters)
        unknown = names - _PROVIDED - set(self.param_convertors) - {"body"}
        if unknown or "body" not in names:
            raise TypeError(f"{self.name}: expected path parameters and a body, got {names}")
        self._body = TypeAdapter(hints["body"])
        self._result = TypeAdapter(self.response_model)
        self._path_params = {name: TypeAdapter(hints[name]) for name in self.param_convertors}
        self._provided = names & _PROVIDED

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(scope, receive)
        except (Problem, HelixError, RequestValidationError) as error:
            response = await error_response(scope, error)
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        provided = {
            "principal": scope[PRINCIPAL_KEY],
            "service": scope["app"].state.service,
            "request_log": scope[SCOPE_KEY],
            "raw_body": scope[BODY_KEY],
            "request": Request(scope, receive),
        }
        arguments = {name: provided[name] for name in self._provided}
        for name, adapter in self._path_params.items():
            arguments[name] = _validate(adapter, scope["path_params"][name], "path", name)
        if not scope[BODY_KEY]:
            raise RequestValidationError(
                [{"type": "missing", "loc": ("body",), "msg": "Field required"}]
            )
        body, tenant = scope[BODY_KEY], scope[PRINCIPAL_KEY].tenant
        compute = scope["app"].state.service.compute
        arguments["body"] = await compute.run_if_large(body, tenant, self._validated_body, body)
        result = await self.endpoint(**arguments)
        if isinstance(result, Response):
            return result
        status = self.status_code or 200
        if result is None:
            return Response(status_code=status)
        return Response(self._result.dump_json(result), status, media_type="application/json")

    def _validated_body(self, body: bytes) -> Any:  # noqa: ANN401 - of the body's type
        return _validate(self._body, strict_json(body), "body")


def _validate(adapter: TypeAdapter[Any], value: object, *location: str) -> Any:  # noqa: ANN401 - of the adapter's type
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        errors = [{**fault, "loc": (*location, *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(errors) from None
