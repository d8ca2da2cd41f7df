"""What the middleware knows about the application behind it: its routes, and the paths it sees."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from helixqueue.fence.http.asgi import App, Scope
    from helixqueue.fence.policy import Policy

_ANY_PATH = "/{path:path}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of the application; `methods` is None for all methods."""

    path: str
    methods: frozenset[str] | None


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


def demand_matches(policy: Policy, app: App) -> None:
    """Raises `Refused` for a route of the policy that no route of the application can match.

    Routes are read from Starlette and FastAPI; another application may have any route.
    """
    endpoints = list(_endpoints(app))
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


def _endpoints(app: App, prefix: str = "") -> Iterator[Endpoint]:
    routes = getattr(innermost(app), "routes", None)
    if routes is None:
        yield Endpoint(prefix + _ANY_PATH, None)
        return
    for route in _flat(routes):
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if path is not None and getattr(route, "endpoint", None) is not None:
            yield Endpoint(prefix + path, None if methods is None else frozenset(methods))
        elif hasattr(route, "app"):  # a mount, or a host without a path
            yield from _endpoints(route.app, prefix + (path or ""))
        else:
            yield Endpoint(prefix + _ANY_PATH, None)


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    """With the routes of included routers in place of these, which newer FastAPI keeps whole."""
    iterate = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", None)
    return routes if iterate is None else iterate(routes)
