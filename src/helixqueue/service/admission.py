"""The way in: every request passes here before anything of it is read.

Is there room (503), who is it (401), how often (429), is there such a path (404, 405), has its
tenant room (503), may it (403), in which form (415), how much (413, 408): in this order, so that a
stranger learns nothing and costs little. What an operation demands stands in the OpenAPI document,
`x-scope`; one that names none cannot be reached.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastapi.routing import APIRoute

from helixqueue.errors import HelixError
from helixqueue.fence.http import IdempotencyMiddleware
from helixqueue.fence.http.asgi import App, Disconnected, Message, Receive, Scope, Send
from helixqueue.fence.http.header import values
from helixqueue.fence.http.recorder import EFFECT_HEADER
from helixqueue.service.problems import Problem, problem_of
from helixqueue.service.request_log import SCOPE_KEY, RequestLog, masked, where
from helixqueue.service.strict_request import body_of, demand_clear_query, demand_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastapi import APIRouter, FastAPI

    from helixqueue.fence.policy import Policy
    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service

log = logging.getLogger("helixqueue.service")
OPEN: Final = "open"  # asks for no token
ANY: Final = "any"  # for every good token
PRINCIPAL_KEY: Final = "helixqueue.principal"
OPERATION_KEY: Final = "helixqueue.operation"
CLIENT_LEFT: Final = 499
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
# Said once for all answers: they are data, never a page, and nobody's to keep.
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as the OpenAPI document has it."""

    name: str
    path: str
    pattern: re.Pattern[str]
    method: str
    scope: str | None
    fenced: bool
    takes_json: bool
    query: frozenset[str]  # the names that it reads there
    lists: frozenset[str]  # of those, which may come more than once


def operations(document: dict[str, Any]) -> list[Operation]:
    found = []
    for path, methods in document["paths"].items():
        parts = re.split(r"(\{[^{}/]+\})", path)
        named = [f"(?P<{p[1:-1]}>[^/]+)" if p.startswith("{") else re.escape(p) for p in parts]
        pattern = re.compile("".join(named))
        for method, told in methods.items():
            query = [one for one in told.get("parameters", ()) if one["in"] == "query"]
            found.append(
                Operation(
                    name=told["operationId"],
                    path=path,
                    pattern=pattern,
                    method=method.upper(),
                    scope=told.get("x-scope"),
                    fenced=bool(told.get("x-fenced")),
                    takes_json="requestBody" in told,
                    query=frozenset(one["name"] for one in query),
                    lists=frozenset(one["name"] for one in query if _is_list(one["schema"])),
                )
            )
    return found


def _is_list(schema: dict[str, Any]) -> bool:
    return any(one.get("type") == "array" for one in (schema, *schema.get("anyOf", ())))


def pages(router: APIRouter) -> list[Operation]:
    """Pages for people, which the document of the API does not have; they say what they demand."""
    return [
        Operation(
            name=one.name,
            path=one.path,
            pattern=re.compile(re.escape(one.path)),
            method=method,
            scope=(one.openapi_extra or {}).get("x-scope"),
            fenced=False,
            takes_json=False,  # forms, if anything
            lists=frozenset(),
            query=frozenset(parameter.alias for parameter in one.dependant.query_params),
        )
        for one in router.routes
        if isinstance(one, APIRoute) and not one.include_in_schema
        for method in one.methods or ()
    ]


class Admission:
    """Wraps the application; this is what a server runs."""

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        policy: Policy,
        direct: Mapping[str, App],
        more: Sequence[Operation] = (),
    ) -> None:
        self.app = app
        self.service = service
        self._policy = policy
        self._direct = direct
        self._asking = 0  # requests that need a token
        self._operations = [*operations(app.openapi()), *more]
        self._by_path: dict[str, list[Operation]] = {}
        for one in self._operations:
            self._by_path.setdefault(one.path, []).append(one)
        self._fences = {
            one: policy.route(one.method, one.path) for one in self._operations if one.fenced
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        journal = RequestLog(_request_id(scope), scope["method"], _trace(scope))
        scope[SCOPE_KEY] = journal
        answer = _Answer(send, journal)
        metrics = self.service.metrics
        metrics.under_way += 1
        try:
            await self._answered(scope, receive, answer, journal)
        finally:
            metrics.under_way -= 1
            metrics.answered(journal.method, journal.route, answer.status, journal.seconds)
            journal.write(answer.status)

    async def _answered(
        self, scope: Scope, receive: Receive, answer: _Answer, journal: RequestLog
    ) -> None:
        try:
            await self._admitted(scope, receive, answer, journal)
        except Disconnected:
            return
        except Problem as problem:
            await self._refuse(problem, scope, receive, answer)
        except HelixError as error:
            journal.know(fault=f"{type(error).__name__}: {error}")
            await self._refuse(problem_of(error), scope, receive, answer)
        except Exception as error:  # noqa: BLE001 - the last handler of the request
            log.error("request %s: %s", journal.request_id, where(error))  # noqa: TRY400
            journal.know(fault=type(error).__name__)
            if answer.status == CLIENT_LEFT:
                fault = Problem("internal", "it is on record under the request's id")
                await self._refuse(fault, scope, receive, answer)

    async def _admitted(
        self, scope: Scope, receive: Receive, answer: _Answer, journal: RequestLog
    ) -> None:
        operation, allowed = self._find(scope)
        if operation is not None:
            journal.route = operation.path
            journal.operation = operation.name
        if operation is not None and operation.scope == OPEN:
            await self._served(operation, None, scope, receive, answer)
            return
        with self._room():
            principal = await self._principal(scope, journal)
            principal.take()
            if operation is None:
                raise _nowhere(scope, allowed)
            with self.service.requests.place(principal.tenant):
                await self._served(operation, principal, scope, receive, answer)

    async def _served(
        self,
        operation: Operation,
        principal: Principal | None,
        scope: Scope,
        receive: Receive,
        answer: _Answer,
    ) -> None:
        if principal is not None:
            if operation.scope is None:
                raise Problem("forbidden", "this operation names no scope, so nobody may")
            if operation.scope != ANY:
                principal.demand(operation.scope)
            demand_clear_query(operation, scope["query_string"])
        if operation.takes_json:
            demand_json(scope)
        body = await body_of(scope, receive, self.service.settings.body_seconds)
        given = _Given(body, receive)
        scope[OPERATION_KEY] = operation
        if scope["method"] == "HEAD":
            scope = {**scope, "method": operation.method}  # the server sends no body
        inner = self._direct.get(operation.name, self.app)
        if principal is not None and self._keyed(operation, scope):
            fence = IdempotencyMiddleware(
                inner, principal, self._policy, principal=lambda _: principal.grant.name
            )
            await fence(scope, given, answer)
        else:
            await inner(scope, given, answer)

    def _find(self, scope: Scope) -> tuple[Operation | None, list[str]]:
        """The operation asked for; else the methods that the path does know."""
        method, path = scope["method"], scope["path"]
        # A path that is named is not also somebody's id.
        known = self._by_path.get(path, self._operations)
        for one in known:
            # Whoever only looks whether somebody is there may leave the answer's body out.
            meant = "GET" if method == "HEAD" and one.scope == OPEN else method
            if one.method == meant and one.pattern.fullmatch(path):
                return one, []
        return None, sorted({one.method for one in known if one.pattern.fullmatch(path)})

    async def _principal(self, scope: Scope, journal: RequestLog) -> Principal:
        try:
            principal = await self.service.principals.of(values(scope["headers"], "authorization"))
        except Problem:
            self.service.strangers.take(scope)
            raise
        scope[PRINCIPAL_KEY] = principal
        name = f"{principal.grant.name}.{principal.grant.generation}"
        journal.know(tenant=principal.tenant, token=name)
        return principal

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Not of those who need no token: they look whether it lives, and it does, or log in.

        Nor do they take any: anybody can begin to log in, and be slow, as often as he connects.
        """
        bound = self.service.settings.max_requests
        if self._asking >= bound:
            raise Problem(
                "too-busy",
                f"{bound} requests are under way",
                expected=f"at most {bound} at a time",
                got="one more",
                retry_after=1,
            )
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def _keyed(self, operation: Operation, scope: Scope) -> bool:
        route = self._fences.get(operation)
        if route is None:
            return False
        return route.required or bool(values(scope["headers"], self._policy.header))

    async def _refuse(
        self, problem: Problem, scope: Scope, receive: Receive, answer: _Answer
    ) -> None:
        journal: RequestLog = scope[SCOPE_KEY]
        journal.know(problem=problem.kind)
        self.service.metrics.turned_away(problem.kind)
        await problem.response(journal.request_id)(scope, receive, answer)


class _Given:
    """The body that was read, then what the server says: that the client left."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._message: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive

    async def __call__(self) -> Message:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()


class _Answer:
    """The server's `send`, which learns the status and adds what every answer has."""

    def __init__(self, send: Send, journal: RequestLog) -> None:
        self._send = send
        self._journal = journal
        self.status = CLIENT_LEFT  # until something was answered

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [(n, v) for n, v in message["headers"] if n.lower() != EFFECT_HEADER.encode()]
            if any(name == b"idempotency-replayed" for name, _ in headers):
                self._journal.know(decision="repeated")
            headers += [*_HEADERS, (b"x-request-id", self._journal.request_id.encode())]
            if not any(name.lower() == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)


def _request_id(scope: Scope) -> str:
    """The client's, if it is fit to be written down; else one of ours."""
    said = values(scope["headers"], "x-request-id")
    if len(said) == 1 and _REQUEST_ID.fullmatch(said[0]):
        return masked(said[0].decode("ascii"))
    return uuid.uuid4().hex


def _trace(scope: Scope) -> str | None:
    """The trace that the request belongs to, as W3C Trace Context says it."""
    said = values(scope["headers"], "traceparent")
    found = _TRACEPARENT.fullmatch(said[0]) if len(said) == 1 else None
    return found[1].decode("ascii") if found else None


def _nowhere(scope: Scope, allowed: list[str]) -> Problem:
    if allowed:
        return Problem(
            "method-not-allowed",
            f"this path knows {', '.join(allowed)}",
            expected=", ".join(allowed),
            got=scope["method"][:20],
            headers={"Allow": ", ".join(allowed)},
        )
    return Problem("not-found", "there is no such path")
