"""What every page gets: the person, the operations that the person may run, the templates.

    routes = page_router()

    @view(routes, "/queues")
    async def queues(page: PageDep) -> Response: ...

A page without a scope cannot be opened, as any operation (`service/admission.py`). A page function
that changes something is an `action`: its form was checked before it runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from helixqueue.dashboard import session
from helixqueue.dashboard.rendering import render
from helixqueue.errors import Refused
from helixqueue.log.requests import SCOPE_KEY, RequestLog
from helixqueue.operations.operation import Operation
from helixqueue.service.admission import BODY_KEY, PRINCIPAL_KEY, OperationRoute
from helixqueue.service.derived_routes import run_operation
from helixqueue.service.principal import Principal
from helixqueue.service.routing import operation as requirements
from helixqueue.service.service import Service

if TYPE_CHECKING:
    from helixqueue.dashboard.navigation import Navigation
    from helixqueue.fence.http.asgi import Receive, Scope, Send

P = ParamSpec("P")
T = TypeVar("T")
FORM_KEY: Final = "helixqueue.form"
LIVE: Final = "x-live"
PAGE_ROWS: Final = 50
THEME_COOKIE: Final = "helix-theme"
THEMES: Final = ("light", "dark")
# Referrer: with `no-referrer` browsers would send `Origin: null` with every form.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
After = Annotated[str | None, Query(max_length=300, description="Cursor of the page before.")]


class PageRoute(OperationRoute):
    """A route of a page: drops empty filters, and checks the form of every write."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = _without_empty(scope["query_string"])
        await super().handle({**scope, "query_string": query}, receive, send)

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            scope[FORM_KEY] = session.read_form(scope, scope[BODY_KEY])
        await super().run(scope, receive, send)


def _without_empty(query: bytes) -> bytes:
    """A filter form sends every field; an empty one is no filter."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="utf-8")
    kept = [(name, value) for name, value in pairs if value.strip()]
    return query if len(kept) == len(pairs) else urlencode(kept).encode()


class PageRequest:
    """A request of a person for a page."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.scope: Scope = request.scope
        self.service: Service = request.app.state.service
        self.navigation: Navigation = request.app.state.navigation
        self.log: RequestLog = request.scope[SCOPE_KEY]
        self.now = datetime.now(UTC)

    @property
    def principal(self) -> Principal:
        return cast("Principal", self.scope[PRINCIPAL_KEY])

    @property
    def person(self) -> Principal | None:
        """Who is signed in; None on the page for signing in."""
        return self.scope.get(PRINCIPAL_KEY)

    @property
    def form(self) -> dict[str, str]:
        return cast("dict[str, str]", self.scope[FORM_KEY])

    @property
    def reason(self) -> str:
        """Why a person acts; the operation refuses an empty one."""
        return self.form.get("reason", "")

    def number(self, field: str, kind: type[float]) -> float:
        """A field of the form as a number."""
        try:
            return kind(self.form[field])
        except ValueError:
            raise Refused(f"{field}: expected a number, got {self.form[field]!a:.80}") from None

    def may(self, scope: str) -> bool:
        return self.person is not None and scope in self.person.grant.scopes

    async def ask(self, operation: Operation[Any, T], **values: Any) -> T:  # noqa: ANN401
        """Run a declared operation as the API does: scope, redaction, sealed cursors."""
        if operation.scope != "any":
            self.principal.require_scope(operation.scope)
        values = operation.checked((), values)
        return cast("T", await run_operation(operation, values, self.principal))

    async def show(self, template: str, status_code: int = 200, **values: Any) -> Response:  # noqa: ANN401
        """The page that a template makes of these values."""
        counts = await self.navigation.counts(self.person)
        html = render(template, page=self, now=self.now, counts=counts, **values)
        return HTMLResponse(html, status_code, HEADERS)

    @property
    def form_token(self) -> str:
        return session.form_token(self.scope)

    @property
    def theme(self) -> str:
        theme = session.cookie(self.scope, THEME_COOKIE)
        return theme if theme in THEMES else ""

    @property
    def path(self) -> str:
        return cast("str", self.scope["path"])

    @property
    def url(self) -> str:
        """Path and query, to come back to."""
        query = self.scope["query_string"].decode("latin-1")
        return f"{quote(self.path)}?{query}" if query else quote(self.path)

    def link(self, **changes: object) -> str:
        """The URL of this page with other parameters; None removes one. The cursor goes too."""
        query = dict(parse_qsl(self.scope["query_string"].decode("latin-1"), encoding="utf-8"))
        for name in ("after", "act", *changes):
            query.pop(name, None)
        query |= {name: str(value) for name, value in changes.items() if value is not None}
        return f"{quote(self.path)}?{urlencode(query)}" if query else quote(self.path)


async def _page(request: Request) -> PageRequest:
    return PageRequest(request)


PageDep = Annotated[PageRequest, Depends(_page)]


def page_router() -> APIRouter:
    return APIRouter(
        route_class=PageRoute,
        include_in_schema=False,
        generate_unique_id_function=lambda route: f"page_{route.name}",
    )


def view(
    routes: APIRouter, path: str, scope: str = "read", *, live: bool = True
) -> Callable[[Callable[P, Awaitable[Response]]], Callable[P, Awaitable[Response]]]:
    """Declare a page; `live` pages are kept up to date while they are open."""
    required = requirements(scope)
    required["openapi_extra"][LIVE] = live
    return routes.get(path, response_class=HTMLResponse, **required)


def action(
    routes: APIRouter, path: str, scope: str = "operate"
) -> Callable[[Callable[P, Awaitable[Response]]], Callable[P, Awaitable[Response]]]:
    """Declare what a form of a page does; it answers with the page to go on with."""
    return routes.post(path, response_class=HTMLResponse, **requirements(scope))


def go_to(path: str, **query: object) -> Response:
    """To another page; `path` is made of quoted parts."""
    text = urlencode({name: str(value) for name, value in query.items() if value is not None})
    return RedirectResponse(f"{path}?{text}" if text else path, 303, HEADERS)


def page_routes(routers: Iterable[APIRouter]) -> list[PageRoute]:
    routes = [route for router in routers for route in router.routes]
    for route in routes:
        if not isinstance(route, PageRoute):
            raise TypeError(f"expected a PageRoute, got {route}: it would skip the checks of forms")
    return [route for route in routes if isinstance(route, PageRoute)]
