"""Puts the service together: routes, the answers to errors, the document, the gate before all."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from helixqueue import __version__
from helixqueue.errors import HelixError
from helixqueue.fence.http.recorder import EFFECT_HEADER
from helixqueue.fence.policy import BEFORE_THE_EFFECT, Policy, Route
from helixqueue.service import (
    batch_actions,
    batches,
    changes,
    check_routes,
    fences,
    health,
    login,
    queues,
    token_routes,
    work,
)
from helixqueue.service.admission import PRINCIPAL_KEY, Admission, operations, pages
from helixqueue.service.document import document, plain_document
from helixqueue.service.hot_routes import directly
from helixqueue.service.problems import Problem, invalid_request, problem_of
from helixqueue.service.service import Service, journal_of, service_of
from helixqueue.service.settings import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.responses import Response

    from helixqueue.service.settings import ServiceSettings

# Everything below 500 that we answer with says that nothing was done: it may be asked again.
_NOTHING_DONE = BEFORE_THE_EFFECT | {400, 404, 408, 409, 422}


def create_app(settings: ServiceSettings) -> Admission:
    """The ASGI application."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if settings.duties:
            service.duties.start()
        yield
        await service.close()

    app = _routed(lifespan)
    app.state.service = service
    for kind in (Problem, HelixError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _tell)
    policy = _policy(settings.policy)
    app.openapi = lambda: _document(app, policy)  # type: ignore[method-assign]
    hot = [one for family in (batches, batch_actions, work) for one in family.routes.routes]
    direct = directly([one for one in hot if isinstance(one, APIRoute)], app, _tell)
    return Admission(app, service, policy, direct, pages(login.routes))


def _routed(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None) -> FastAPI:
    app = FastAPI(
        title="HelixQueue",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # behind the gate as everything else: /v1/openapi.json
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    for module in (
        batches, batch_actions, queues, work, changes, fences, check_routes, token_routes,
        login, health,
    ):  # fmt: skip
        app.include_router(module.routes)
    return app


@cache
def _plain_text() -> str:
    """The plain document, which every application has; to make it takes half a second."""
    return json.dumps(plain_document(_routed(None)))


def _policy(given: Policy | None) -> Policy:
    """The policy, one route for each operation that may be fenced: keys are unique within one."""
    base = given or Policy(routes=(Route(required=False),))
    if given is None:
        base = replace(base, routes=(replace(base.routes[0], methods=frozenset({"POST", "PUT"})),))
    found = []
    for operation in operations(json.loads(_plain_text())):
        route = base.route(operation.method, operation.path) if operation.fenced else None
        if route is not None:
            found.append(
                replace(
                    route,
                    path=operation.path,
                    methods=frozenset({operation.method}),
                    max_body_bytes=min(route.max_body_bytes, MAX_BODY_BYTES),
                    before_the_effect=route.before_the_effect | _NOTHING_DONE,
                )
            )
    return replace(base, routes=tuple(found), status_path=fences.STATUS_PATH)


def _document(app: FastAPI, policy: Policy) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(json.loads(_plain_text()), policy)
    return app.openapi_schema


async def _tell(request: Request, error: Exception) -> Response:
    """The answer to whatever went wrong while a request was served."""
    match error:
        case Problem():
            return _told(request, error)
        case HelixError():
            return _told(request, _of_engine(request, error))
        case RequestValidationError():
            return _told(request, invalid_request(error.errors()))
        case HTTPException():
            # What the framework itself refuses; the gate has refused nearly all of it before.
            kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "not-json")
            return _told(request, Problem(kind, "the request could not be read"))
    # Told of in the gate, which the error goes on to.
    return _told(request, Problem("internal", "it is on record under the request's id"))


def _of_engine(request: Request, error: HelixError) -> Problem:
    principal = request.scope.get(PRINCIPAL_KEY)
    problem = problem_of(error, values=principal is not None and principal.sees_payloads)
    if problem.status_code >= 500:
        journal = journal_of(request)
        journal.know(fault=f"{type(error).__name__}: {error}")
        if not (journal.unrepeatable and getattr(error, "outcome_unknown", False)):
            # Nothing happened, or what happened will be recognised when it is asked again.
            problem.extra[EFFECT_HEADER] = "none"
    return problem


def _told(request: Request, problem: Problem) -> Response:
    journal = journal_of(request)
    journal.know(problem=problem.kind)
    service_of(request).metrics.turned_away(problem.kind)
    return problem.response(journal.request_id)
