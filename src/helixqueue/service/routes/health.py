"""Liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from helixqueue.engine import duties
from helixqueue.engine import metrics as stored_metrics
from helixqueue.engine.tokens import METRICS_SCOPE
from helixqueue.records.duty import DutyRow
from helixqueue.service.metrics import duties_text, stored_text
from helixqueue.service.models import responses
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, ServiceDep, operation, router

routes = router("service")


class DutyResponse(BaseModel):
    """A background duty of all replicas."""

    duty: str
    last_at: datetime | None
    lag_seconds: float
    failed: str | None  # SQLSTATE of its last run, if that failed


class ReadyResponse(responses.HealthResponse):
    duties: list[DutyResponse]


@routes.get(
    "/health/live",
    response_model=responses.HealthResponse,
    summary="Check that the process responds",
    **operation("open"),
)
async def live() -> responses.HealthResponse:
    """For a supervisor: restart the process when this fails. Does not check the database."""
    return responses.HealthResponse(status="live")


@routes.get(
    "/health/ready",
    response_model=ReadyResponse,
    summary="Check that the service can handle requests; 503 with the reason if not",
    **operation("open", "not-ready"),
)
async def ready(service: ServiceDep) -> ReadyResponse:
    """For a load balancer: the database is reachable, and schema and login are correct.

    Overdue duties are listed but do not make a replica unready, because any replica may run them.
    """
    reason = await service.check_ready()
    if reason is not None:
        raise Problem("not-ready", reason, retry_after=1)
    return ReadyResponse(status="ready", duties=[_duty(row) for row in service.duty_rows])


@routes.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Prometheus metrics of this process, of the duties and of the queues",
    **operation("any", "forbidden"),
)
async def metrics(service: ServiceDep, principal: PrincipalDep) -> Response:
    """In the Prometheus text format. Labels never contain keys, batch ids or actual paths.

    A token with the scope `operate` reads the figures of its tenant. A token with the scope
    `metrics`, which only an operator grants, reads those of all tenants, with the label `tenant`.
    Counters of requests cover this process and all tenants; with `--metrics-tenant` only tokens of
    that tenant or with the scope `metrics` get them.
    """
    every_tenant = METRICS_SCOPE in principal.grant.scopes
    if not every_tenant:
        principal.require_scope("operate")
    of_process = every_tenant or service.settings.metrics_tenant in {None, principal.tenant}
    # Checks the token as well.
    fences = await principal.fences.metrics(with_counters=of_process)
    read = stored_metrics.read_metrics(every_tenant=every_tenant)
    sessions = service.sessions
    stored = await (sessions.run_without_tenant(read) if every_tenant else principal.execute(read))
    render = partial(stored_text, stored, tenants=every_tenant)
    text = fences + await service.compute.run(principal.tenant, render)
    if of_process:
        rows = await sessions.run_without_tenant(duties.list_duties())
        text = service.metrics.text() + duties_text(rows) + text
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.get(
    "/v1/openapi.json",
    response_model=dict[str, Any],
    summary="The OpenAPI document",
    **operation("any"),
)
async def document(request: Request, principal: PrincipalDep) -> Response:
    """OpenAPI 3.1, with scope, problems and an example of every operation."""
    await principal.require_valid_token()
    return Response(request.app.state.openapi, media_type="application/json")


def _duty(row: DutyRow) -> DutyResponse:
    return DutyResponse(
        duty=row.duty, last_at=row.last_at, lag_seconds=row.lag_seconds, failed=row.failed
    )
