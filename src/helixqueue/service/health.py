"""Whether it lives, whether it can serve, its counts, and the document that describes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from helixqueue.engine import duties
from helixqueue.engine.duties import DutyRow
from helixqueue.service import answers
from helixqueue.service.metrics import duties_text
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Here, demands, router

routes = router("service")


class DutyAnswer(BaseModel):
    """A background duty, whichever replica does it."""

    duty: str
    last_at: datetime | None
    lag_seconds: float
    failed: str | None  # SQLSTATE of its last run, if that failed


class ReadyAnswer(answers.HealthAnswer):
    duties: list[DutyAnswer]


@routes.get(
    "/health/live",
    response_model=answers.HealthAnswer,
    summary="The process answers",
    **demands("open"),
)
async def live() -> answers.HealthAnswer:
    """For a supervisor: restart the process when this fails. It says nothing of the database."""
    return answers.HealthAnswer(status="live")


@routes.get(
    "/health/ready",
    response_model=ReadyAnswer,
    summary="It can serve, and how its duties stand; else 503 with the reason",
    **demands("open", "not-ready"),
)
async def ready(here: Here) -> ReadyAnswer:
    """For a load balancer: the database is there, its schema fits, and so does the login.

    Duties that are behind are told and no reason to send nobody here: any replica may do them.
    """
    reason = await here.why_not_ready()
    if reason is not None:
        raise Problem("not-ready", reason, retry_after=1)
    return ReadyAnswer(status="ready", duties=[_duty(one) for one in here.duty_rows])


@routes.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Counts of this process, and how the duties stand, for Prometheus",
    **demands("operate"),
)
async def metrics(here: Here, asker: Asker) -> Response:
    """Prometheus' text form. No tenant, key or real path is a label.

    Counts are of this process; gauges of fences are of the token's tenant.
    """
    fences = await asker.fences.metrics()  # asks also whether the token is good
    rows = await here.served.run_without_tenant(duties.list_duties())
    text = here.metrics.text() + duties_text(rows) + fences
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@routes.get(
    "/v1/openapi.json",
    response_model=dict[str, Any],
    summary="This document",
    **demands("any"),
)
async def document(request: Request, asker: Asker) -> dict[str, Any]:
    """OpenAPI 3.1; every operation has its scope, its problems and an example."""
    await asker.demand_good()
    found: dict[str, Any] = request.app.openapi()
    return found


def _duty(row: DutyRow) -> DutyAnswer:
    return DutyAnswer(
        duty=row.duty, last_at=row.last_at, lag_seconds=row.lag_seconds, failed=row.failed
    )
