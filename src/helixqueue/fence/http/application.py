"""What the middleware knows about the application behind it: its routes, and the paths it sees."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from helixqueue.errors import Refused
from helixqueue.fence.policy import Route

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import App, Scope
    from helixqueue.fence.policy import Policy

_ANY_PATH = "/{path:path}"
_CONVERTOR = re.compile(r":\w+\}")  # of a parameter such as {order:int}
MAX_SERIES: Final = 100  # as in the database, per tenant


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of the application; `methods` is None for all methods."""

    path: str
    methods: frozenset[str] | None
    # Of FastAPI: whether it depends on `helix_session`. None: unknown.
    takes_session: bool | None = None


def path_seen(scope: Scope) -> str:
    """The path that the application matches with its routes: without the prefix of its mount."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path


def innermost(app: App) -> Any:  # noqa: ANN401 - any application
    """The application inside its own middleware."""
    inner: Any = app
    while not hasattr(inner, "routes") and hasattr(inner, "app"):
        inner = inner.app
    return inner


class EndpointNames:
    """The names under which requests are counted: of `*`, those of the application's endpoints.

    Keys stay unique within `*`: an application may rename the parameters of its paths.
    """

    def __init__(self, app: App) -> None:
        paths = dict.fromkeys(_CONVERTOR.sub("}", endpoint.path) for endpoint in _endpoints(app))
        self._routes: list[Route] = []
        for path in islice(paths, MAX_SERIES):
            with suppress(ValidationError):  # of a path that no policy can name
                self._routes.append(Route(path=path, methods=frozenset({"POST"})))

    def of(self, route: Route, path: str) -> str:
        if route.path != "*":
            return route.name
        parts = path.split("/")
        return next((end.name for end in self._routes if end.fits("POST", parts)), route.name)


def demand_matches(policy: Policy, app: App, *, has_sessions: bool) -> None:
    """Raises `Refused` for a route of the policy that no route of the application can match.

    Routes are read from Starlette and FastAPI; another application may have any route.
    """
    endpoints = list(_endpoints(app))
    for route in policy.routes:
        if route.effect == "session" and not has_sessions:
            raise Refused(
                f"sessions: expected a sessionmaker for the route {route.path} with "
                "`effect: session`, got none"
            )
    for endpoint in endpoints:
        _demand_effect(policy, endpoint)
    for route in policy.routes:
        if route.path != "*" and not any(
            (end.methods is None or route.methods & end.methods) and route.can_match(end.path)
            for end in endpoints
        ):
            raise Refused(
                "idempotency policy: expected routes that the application has, got "
                f"{', '.join(sorted(route.methods))} {route.path}, which would fence nothing; "
                "write paths as the application declares them, without the prefix of its mount, "
                "and add its routes before you wrap it"
            )


def _demand_effect(policy: Policy, endpoint: Endpoint) -> None:
    """An effect outside of the session would be repeated with what was rolled back."""
    if endpoint.takes_session is None:
        return
    for method in endpoint.methods or ():
        route = policy.route(method, endpoint.path)
        effect = "no route" if route is None else f"`effect: {route.effect}`"
        if endpoint.takes_session != (effect == "`effect: session`"):
            takes = "takes helix_session" if endpoint.takes_session else "takes no helix_session"
            raise Refused(
                f"idempotency policy: expected `effect: session` for exactly the endpoints with "
                f"Depends(helix_session), got {effect} for {method} {endpoint.path}, which {takes}"
            )


def _endpoints(app: App, prefix: str = "") -> Iterator[Endpoint]:
    routes = getattr(innermost(app), "routes", None)
    if routes is None:
        yield Endpoint(prefix + _ANY_PATH, None)
        return
    for route in _flat(routes):
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if path is not None and getattr(route, "endpoint", None) is not None:
            dependant = getattr(route, "dependant", None)
            yield Endpoint(
                prefix + path,
                None if methods is None else frozenset(methods),
                None if dependant is None else _takes_session(dependant),
            )
        elif hasattr(route, "app"):  # a mount, or a host without a path
            yield from _endpoints(route.app, prefix + (path or ""))
        else:
            yield Endpoint(prefix + _ANY_PATH, None)


def _takes_session(dependant: Any) -> bool:  # noqa: ANN401 - of FastAPI
    session = getattr(sys.modules.get("helixqueue.fence.http.session"), "helix_session", None)
    return session is not None and (
        dependant.call is session or any(map(_takes_session, dependant.dependencies))
    )


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """With the routes of included routers in place of these, which newer FastAPI keeps whole."""
    iterate = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if iterate is None else iterate(routes)
