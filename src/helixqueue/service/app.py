"""Builds the application: routes, error handlers, OpenAPI document, admission."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from helixqueue import __version__
from helixqueue.errors import HelixError, Refused
from helixqueue.fence import operations as fences
from helixqueue.fence.policy import BEFORE_THE_EFFECT, Policy, Route
from helixqueue.operations import (
    batch_actions,
    batch_reads,
    duties,
    feeds,
    identities,
    intakes,
    letters,
    outputs,
    overview,
    queues,
    runs,
    seals,
    workers,
)
from helixqueue.operations import checks as check_operations
from helixqueue.operations import ledgers as ledger_operations
from helixqueue.operations import tokens as token_operations
from helixqueue.service.admission import AdmissionMiddleware, OperationRoute
from helixqueue.service.derived_routes import routes_of
from helixqueue.service.errors import handle_error
from helixqueue.service.openapi.document import document, plain_document
from helixqueue.service.problems import Problem
from helixqueue.service.routes import (
    batches,
    changes,
    checks,
    health,
    leases,
    ledgers,
    login,
    output_leases,
    proof,
    webhooks,
)
from helixqueue.service.service import Service
from helixqueue.service.settings import MAX_BODY_BYTES
from helixqueue.webhook import operations as webhook_operations

if TYPE_CHECKING:
    from helixqueue.service.admission import Pages
    from helixqueue.service.settings import ServiceSettings

# Hot routes first: a path is compared with one route after the other.
ROUTERS = (
    batches.routes, leases.routes, output_leases.routes, routes_of(batch_actions, "batch actions"),
    routes_of(batch_reads, "batches"), routes_of(overview), routes_of(queues), routes_of(workers),
    changes.routes, routes_of(identities), routes_of(fences, "fences"), routes_of(letters),
    routes_of(outputs), routes_of(runs),
    routes_of(intakes), routes_of(duties),
    ledgers.routes, routes_of(ledger_operations), routes_of(feeds), checks.routes,
    routes_of(check_operations), routes_of(seals),
    routes_of(token_operations), webhooks.routes,
    routes_of(webhook_operations, "webhooks"), login.routes, proof.routes, health.routes,
)  # fmt: skip
# Every response below 500 means that nothing was done, so the key may be used again.
_NOTHING_DONE = BEFORE_THE_EFFECT | {400, 404, 408, 409, 422}


def create_app(settings: ServiceSettings, pages: Pages | None = None) -> FastAPI:
    """Build the ASGI application, with the pages of a web interface if there is one."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if settings.duties:
            service.duties.start()
            service.publisher.start()
        if service.sealing is not None:
            service.sealing.start()
        if service.stream_watch is not None:
            service.stream_watch.start()
        yield
        await service.close()

    app = FastAPI(
        title="HelixQueue",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # /v1/openapi.json needs a token like every other operation
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    operations = operation_routes()
    routes = operations if pages is None else [*operations, *pages.routes]
    app.router.routes.extend(routes)
    app.state.fixed_paths = frozenset(r.path for r in routes if not r.param_convertors)
    for error in (Problem, HelixError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, handle_error)
    app.add_middleware(AdmissionMiddleware, service=service, routes=routes, pages=pages)
    service.policy = idempotency_policy(settings.policy, operations)
    fenced = {(route.path, *route.methods): route for route in service.policy.routes}
    for route in operations:
        if (route.path, *route.methods) in fenced:
            service.policy_routes[route.operation] = fenced[route.path, *route.methods]
    schema = document(json.loads(_plain_document()), service.policy)
    app.openapi = lambda: schema  # type: ignore[method-assign]
    app.state.openapi = orjson.dumps(schema)
    return app


def operation_routes() -> list[OperationRoute]:
    routes = [route for router in ROUTERS for route in router.routes]
    for route in routes:
        if not isinstance(route, OperationRoute):
            raise TypeError(f"expected an OperationRoute, got {route}: it would skip admission")
    return [route for route in routes if isinstance(route, OperationRoute)]


@cache
def _plain_document() -> str:
    """Cached as text, because building it takes half a second."""
    return json.dumps(plain_document(operation_routes()))


def idempotency_policy(policy: Policy | None, routes: list[OperationRoute]) -> Policy:
    """One policy route per fenced operation: keys are unique within a policy route."""
    if policy is None:
        policy = Policy(routes=(Route(required=False),))
        writes = frozenset({"POST", "PUT"})
        policy = replace(policy, routes=(replace(policy.routes[0], methods=writes),))
    fenced = []
    for route in routes:
        [method] = route.methods
        match = policy.route(method, route.path) if route.fenced else None
        if match is not None:
            fenced.append(
                replace(
                    match,
                    path=route.path,
                    methods=frozenset({method}),
                    max_body_bytes=min(match.max_body_bytes, MAX_BODY_BYTES),
                    before_the_effect=match.before_the_effect | _NOTHING_DONE,
                )
            )
    if not fenced:
        paths = ", ".join(route.path for route in policy.routes)
        raise Refused(
            f"policy: expected a route that matches an operation of this service, got {paths}; the "
            "OpenAPI document lists the operations that can be fenced (x-fenced)"
        )
    # The log of the service has no keys; the source of a request is its key.
    logged = tuple(field for field in policy.log_fields if field not in {"key", "source_id"})
    return replace(
        policy, routes=tuple(fenced), status_path=fences.list_fences.path, log_fields=logged
    )
