"""Liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from helixqueue.engine import duties
from helixqueue.engine.duties import DutyRow
from helixqueue.service.metrics import duties_text
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
    summary="Prometheus metrics of this process and of the duties",
    **operation("operate"),
)
async def metrics(service: ServiceDep, principal: PrincipalDep) -> Response:
    """In the Prometheus text format. Labels never contain tenants, keys or actual paths.

    Counters cover this process; gauges of fences cover the token's tenant.
    """
    fences = await principal.fences.metrics()  # checks the token as well
    rows = await service.sessions.run_without_tenant(duties.list_duties())
    text = service.metrics.text() + duties_text(rows) + fences
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.get(
    "/v1/openapi.json",
    response_model=dict[str, Any],
    summary="The OpenAPI document",
    **operation("any"),
)
async def document(request: Request, principal: PrincipalDep) -> dict[str, Any]:
    """OpenAPI 3.1, with scope, problems and an example of every operation."""
    await principal.require_valid_token()
    schema: dict[str, Any] = request.app.openapi()
    return schema


def _duty(row: DutyRow) -> DutyResponse:
    return DutyResponse(
        duty=row.duty, last_at=row.last_at, lag_seconds=row.lag_seconds, failed=row.failed
    )
