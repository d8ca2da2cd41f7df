"""The service with its dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request

from helixqueue.dashboard import session
from helixqueue.dashboard.live import LivePages
from helixqueue.dashboard.navigation import Navigation
from helixqueue.dashboard.page import PageRequest, PageRoute, page_routes
from helixqueue.dashboard.pages import (
    activity,
    batch,
    batches,
    docs,
    feeds,
    fences,
    identities,
    intakes,
    ledgers,
    letters,
    live,
    login,
    overview,
    proof,
    queue,
    queues,
    refusals,
    runs,
    search,
    selection,
    static_files,
    tokens,
    webhooks,
    workers,
)
from helixqueue.service import app as service_app

if TYPE_CHECKING:
    from starlette.responses import Response

    from helixqueue.fence.http.asgi import Scope
    from helixqueue.service.principal import Principal
    from helixqueue.service.problems import Problem
    from helixqueue.service.service import Service
    from helixqueue.service.settings import ServiceSettings

ROUTERS = (
    overview.routes, queues.routes, queue.routes, batches.routes, batch.routes, selection.routes,
    runs.routes, workers.routes, proof.routes, refusals.routes, identities.routes, fences.routes,
    ledgers.routes, feeds.routes, intakes.routes, webhooks.routes, letters.routes,
    activity.routes, tokens.routes,
    search.routes, docs.routes, live.routes, login.routes, static_files.routes,
)  # fmt: skip


def create_app(settings: ServiceSettings) -> FastAPI:
    """Build the ASGI application of the service, with the dashboard."""
    dashboard = Dashboard()
    app = service_app.create_app(settings, dashboard)
    app.state.navigation = Navigation()
    app.state.live = LivePages(dashboard.routes)
    return app


class Dashboard:
    """The pages, as the service admits them."""

    def __init__(self) -> None:
        self.routes: list[PageRoute] = page_routes(ROUTERS)

    async def authenticate(self, scope: Scope, service: Service) -> Principal:
        return await session.authenticate(scope, service)

    async def error(self, scope: Scope, problem: Problem, request_id: str) -> Response:
        """The page of an error; without a session, the page for signing in."""
        page = PageRequest(Request(scope))
        if problem.kind == "unauthenticated":
            return await login.sign_in(page)
        return await page.show(
            "error.html", problem.status_code, problem=problem, request_id=request_id
        )
