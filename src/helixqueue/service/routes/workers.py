"""The list of workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from helixqueue.engine import service_calls
from helixqueue.service.models import responses
from helixqueue.service.models.requests import Time, Worker
from helixqueue.service.routing import PrincipalDep, operation, router
from helixqueue.service.settings import MAX_PAGE

routes = router("queues")


@routes.get(
    "/v1/workers",
    response_model=responses.WorkerPageResponse,
    name="list_workers",
    summary="List workers that registered over HTTP, by name",
    **operation("read"),
)
async def list_workers(
    principal: PrincipalDep,
    since: Annotated[Time | None, Query(description="Only workers that registered since.")] = None,
    after: Annotated[Worker | None, Query(description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> responses.WorkerPageResponse:
    """With their free resources and the number of leases they hold.

    A page reads a limited number of workers: it may be short or empty and still have a `next`.
    """
    page = await principal.execute(
        service_calls.tenant_workers(tenant=principal.tenant, since=since, after=after, limit=limit)
    )
    return responses.WorkerPageResponse(
        workers=[responses.worker(row) for row in page.rows], next=page.next
    )
