"""Admission: the checks that every request passes, in the order in which they run.

Before routing, in `AdmissionMiddleware`:

1. request log and metrics     every request, whatever its response
2. host                        400 `invalid-host`
3. capacity                    503 `too-busy`
4. authentication              401 `unauthenticated`, 429 after too many failures
5. tenant limit                503 `too-busy`
6. turn of the tenant          waits (costs.py)
7. rate limit of the token     429 `too-many-requests`

FastAPI matches the path (404, 405). After routing, in `OperationRoute`:

8. scope                       403 `forbidden`
9. query                       422 `invalid-request`
10. content type               415 `unsupported-media-type`
11. body                       413 `body-too-large`, 408 `too-slow`
12. memory, turn for the body  waits, 503 `too-busy`
13. idempotency key            `execute_once`, as in the middleware

Pages (`Pages`, which the dashboard provides) pass the same checks. They authenticate by the cookie
of a session instead of a token, and answer errors with a page.

Without a valid token a client learns nothing and costs little. Access is denied by default: an
operation without a scope cannot be called, and only operations with the scope `open` skip 3 to 5,
7 to 9, 12 and 13. They share the turns of one tenant; their writes are counted per address, before
a body of at most 1 KiB is read. Of these, a signed operation checks the signature of its body
itself: it may have the largest body, and takes memory and turns (12) as one of that tenant.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args, get_origin

from fastapi.routing import APIRoute
from starlette.requests import Request

from helixqueue.fence.http.asgi import (
    App,
    BodyReceiver,
    Disconnected,
    Receive,
    Scope,
    Send,
    header_values,
)
from helixqueue.fence.http.execute import FencedApp
from helixqueue.fence.http.middleware import execute_once, is_refused_unlisted
from helixqueue.log.lines import masked
from helixqueue.log.requests import SCOPE_KEY, RequestLog
from helixqueue.service.address import check_host
from helixqueue.service.costs import (
    ANONYMOUS,
    HEALTH,
    MAX_LOOP_MICROSECONDS,
    PAGE_MICROSECONDS,
    REQUEST_MICROSECONDS,
    HeldMemory,
    cost_of,
)
from helixqueue.service.errors import PAGE_KEY, error_response
from helixqueue.service.problems import Problem
from helixqueue.service.response_sender import CLIENT_CLOSED, ResponseSender
from helixqueue.service.settings import MAX_BODY_BYTES, MAX_OPEN_BODY_BYTES
from helixqueue.service.strict_request import (
    body_size,
    check_content_type,
    check_query,
    read_body,
    strict_json,
)

if TYPE_CHECKING:
    from fastapi.dependencies.models import Dependant
    from pydantic.fields import FieldInfo
    from starlette.responses import Response

    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service

OPEN: Final = "open"  # needs no token
ANY: Final = "any"  # any valid token
PRINCIPAL_KEY: Final = "helixqueue.principal"
BODY_KEY: Final = "helixqueue.body"
OPEN_LIMIT_KEY: Final = "helixqueue.open_limit"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Pages(Protocol):
    """What a web interface adds to the service."""

    @property
    def routes(self) -> Sequence[OperationRoute]: ...

    async def authenticate(self, scope: Scope, service: Service) -> Principal:
        """The principal of the session; raises `unauthenticated`."""

    async def error(self, scope: Scope, problem: Problem, request_id: str) -> Response:
        """The page that tells a person about an error."""


class AdmissionMiddleware:
    """The checks before routing, and the last error handler of a request."""

    def __init__(
        self,
        app: App,
        service: Service,
        routes: Iterable[OperationRoute],
        pages: Pages | None = None,
    ) -> None:
        self._app = app
        self._service = service
        self._routes = list(routes)
        self._pages = pages
        self._open = {
            (method, route.path)
            for route in self._routes
            if route.scope == OPEN
            for method in route.methods
        }
        self._signed = [route for route in self._routes if route.signed]
        self._in_progress = 0  # requests that need a token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request_log = RequestLog(_request_id(scope), scope["method"], _trace_id(scope))
        scope[SCOPE_KEY] = request_log
        response = ResponseSender(send, request_log, self._service.loop_time)
        metrics = self._service.metrics
        metrics.requests_in_progress += 1
        try:
            await self._admit(scope, receive, response, request_log)
        except Disconnected:
            pass
        except Exception as error:  # noqa: BLE001 - the last handler of the request
            self._label(scope, request_log)
            if response.tenant == ANONYMOUS:
                await self._service.loop_time.take(ANONYMOUS)
            problem = await error_response(scope, error)
            if response.status == CLIENT_CLOSED:
                await problem(scope, receive, response)
        finally:
            metrics.requests_in_progress -= 1
            seconds = request_log.seconds
            metrics.count_request(scope["method"], request_log.route, response.status, seconds)
            request_log.write(response.status)

    async def _admit(
        self, scope: Scope, receive: Receive, send: ResponseSender, request_log: RequestLog
    ) -> None:
        if self._is_page(scope):
            scope[PAGE_KEY] = self._pages
        check_host(scope, self._service.settings.allowed_hosts)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if (method, scope["path"]) in self._open or (
            matching_route(self._signed, scope) is not None
        ):
            is_health = scope["path"].startswith("/health/")
            await self._service.loop_time.take(HEALTH if is_health else ANONYMOUS)
            # A copy: the server still sees HEAD and sends no body.
            await self._app({**scope, "method": method}, receive, send)
            return
        self._check_capacity()
        self._in_progress += 1
        try:
            principal = await self._authenticate(scope)
            send.tenant = principal.tenant
            request_log.add(tenant=principal.tenant, token=principal.token_name)
            cost = PAGE_MICROSECONDS if PAGE_KEY in scope else REQUEST_MICROSECONDS
            with self._service.requests.hold(principal.tenant):  # before the tenant's first wait
                await self._service.loop_time.take(principal.tenant, cost)
                principal.count_request()
                scope[PRINCIPAL_KEY] = principal
                await self._app(scope, receive, send)
        finally:
            self._in_progress -= 1

    def _is_page(self, scope: Scope) -> bool:
        """Whether the path is that of a page: only those accept the cookie of a session."""
        pages = () if self._pages is None else self._pages.routes
        return any(route.path_regex.match(scope["path"]) for route in pages)

    def _check_capacity(self) -> None:
        """Open operations are exempt and do not count: anyone can send any number of them."""
        limit = self._service.settings.max_requests
        if self._in_progress >= limit:
            raise Problem(
                "too-busy",
                f"{limit} requests are in progress",
                expected=f"at most {limit} at a time",
                got="one more",
                retry_after=1,
            )

    async def _authenticate(self, scope: Scope) -> Principal:
        try:
            pages: Pages | None = scope.get(PAGE_KEY)
            if pages is not None:
                return await pages.authenticate(scope, self._service)
            return await self._service.principals.get(
                header_values(scope["headers"], "authorization")
            )
        except Problem:
            self._service.anonymous_limit.count(scope)  # 429 in place of 401
            raise

    def _label(self, scope: Scope, request_log: RequestLog) -> None:
        """Name the route in the log and metrics of a request that was refused before routing."""
        if not request_log.is_routed:
            route = matching_route(self._routes, scope)
            if route is not None:
                request_log.set_route(route.path, route.operation)


class OperationRoute(APIRoute):
    """A route with the checks after routing. `operation()` declares what it requires."""

    methods: set[str]
    scope: str | None
    operation: str
    fenced: bool
    signed: bool

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - FastAPI's
        super().__init__(path, endpoint, **options)
        extra = self.openapi_extra or {}
        self.scope = extra.get("x-scope")
        self.fenced = bool(extra.get("x-fenced"))
        self.signed = bool(extra.get("x-signed"))
        self.operation = self.operation_id or self.name
        self.query = _query_parameters(self.dependant)
        self.lists = {name for name, info in self.query.items() if _is_list(info.annotation)}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_log: RequestLog = scope[SCOPE_KEY]
        request_log.set_route(self.path, self.operation)
        if scope["method"] not in self.methods or self._is_fixed_path(scope):
            raise _method_not_allowed(scope)
        if self.scope == OPEN:
            await self._serve(scope, receive, send)
            return
        principal: Principal = scope[PRINCIPAL_KEY]
        if self.scope is None:
            raise Problem("forbidden", "the operation declares no scope, so no token permits it")
        if self.scope != ANY:
            principal.require_scope(self.scope)
        check_query(self, scope["query_string"])
        await self._serve(scope, receive, send, principal)

    def _is_fixed_path(self, scope: Scope) -> bool:
        """Whether the path is that of another route: /v1/batches/retry is no batch id."""
        return scope["path"] != self.path and scope["path"] in scope["app"].state.fixed_paths

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, principal: Principal | None = None
    ) -> None:
        service: Service = scope["app"].state.service
        if self.scope == OPEN and scope["method"] != "GET":
            limit = service.webhook_limit if self.signed else service.login_limit
            scope[OPEN_LIMIT_KEY] = limit.count(scope)
        if self.body_field is not None:
            check_content_type(scope)
        seconds = service.settings.body_seconds
        if principal is None and not self.signed:
            scope[BODY_KEY] = await read_body(scope, receive, seconds, MAX_OPEN_BODY_BYTES)
            await self.run(scope, receive, send)
            return
        tenant = ANONYMOUS if principal is None else principal.tenant
        size = body_size(scope, MAX_BODY_BYTES)
        memory = HeldMemory(service.memory, tenant)
        try:
            await memory.take_arriving(size)
            body = await read_body(scope, receive, seconds, MAX_BODY_BYTES)
            await memory.take_parsed(body)
            cost = cost_of(body)
            if 0 < cost <= MAX_LOOP_MICROSECONDS:  # else in a thread
                await service.loop_time.take(tenant, cost)
            scope[BODY_KEY] = body
            if principal is None:
                await self.run(scope, receive, send)
            else:
                await self._run_fenced(scope, receive, send, principal)
        finally:
            memory.release()

    async def _run_fenced(
        self, scope: Scope, receive: Receive, send: Send, principal: Principal
    ) -> None:
        """Run the operation; inside a fence, if the request has an idempotency key."""
        service: Service = scope["app"].state.service
        route = service.policy_routes.get(self.operation)
        has_key = bool(header_values(scope["headers"], service.policy.header))
        if route is None or not (route.required or has_key):
            # The policy may leave an operation out; a key would protect nothing there.
            is_unlisted = has_key and self.fenced and route is None
            counters = principal.fences.counters
            if not is_unlisted or not await is_refused_unlisted(
                service.policy, counters, scope, send
            ):
                await self.run(scope, receive, send)
            return
        # Every effect of the service is in its database: it commits with its fence.
        transaction = principal.transaction()
        fenced = FencedApp(self.run, principal.fences, service.policy, principal.owners)
        inner = {**scope, PRINCIPAL_KEY: principal.within(transaction)}
        receiver = BodyReceiver(scope[BODY_KEY])
        await execute_once(fenced, route, inner, receiver, send, transaction=transaction)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the endpoint; FastAPI resolves its parameters."""
        await self.app(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_AdmittedRequest(request.scope, request.receive))

        return strict


class _AdmittedRequest(Request):
    """A request whose body admission has read."""

    async def body(self) -> bytes:
        body: bytes = self.scope[BODY_KEY]
        return body

    async def json(self) -> Any:  # noqa: ANN401 - JSON
        body: bytes = self.scope[BODY_KEY]
        service: Service = self.scope["app"].state.service
        principal: Principal | None = self.scope.get(PRINCIPAL_KEY)
        tenant = None if principal is None else principal.tenant
        return await service.compute.run_if_large(body, tenant, strict_json, body)


def _query_parameters(dependant: Dependant) -> dict[str, FieldInfo]:
    """The query parameters of an endpoint and of what it depends on."""
    found = {param.alias: param.field_info for param in dependant.query_params}
    for part in dependant.dependencies:
        found |= _query_parameters(part)
    return found


def matching_route(routes: Iterable[OperationRoute], scope: Scope) -> OperationRoute | None:
    """The route of a path and method."""
    for route in routes:
        if scope["method"] in route.methods and route.path_regex.match(scope["path"]):
            return route
    return None


def _method_not_allowed(scope: Scope) -> Problem:
    all_routes, path = scope["app"].routes, scope["path"]
    routes = [route for route in all_routes if route.path == path] or [
        route for route in all_routes if route.path_regex.match(path)
    ]
    allowed = ", ".join(sorted({method for route in routes for method in route.methods}))
    return Problem(
        "method-not-allowed",
        f"the path supports {allowed}",
        expected=allowed,
        got=scope["method"][:20],
        headers={"Allow": allowed},
    )


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id if it is valid, else a new one."""
    header = header_values(scope["headers"], "x-request-id")
    if len(header) == 1 and _REQUEST_ID.fullmatch(header[0]):
        return masked(header[0].decode("ascii"))
    return uuid.uuid4().hex


def _trace_id(scope: Scope) -> str | None:
    """The trace id of W3C Trace Context."""
    header = header_values(scope["headers"], "traceparent")
    match = _TRACEPARENT.fullmatch(header[0]) if len(header) == 1 else None
    return match[1].decode("ascii") if match else None


def _is_list(annotation: object) -> bool:
    return any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))
