"""Refused identities, and the identities of a queue, in which clients look for twins."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel

from helixqueue.engine import identities
from helixqueue.records.batch import identity_value
from helixqueue.records.identity import RefusedIdentityRow
from helixqueue.service.routing import PrincipalDep, QueueName, operation, router
from helixqueue.service.settings import MAX_PAGE

routes = router("identities")
After = Annotated[
    str | None,
    Query(pattern=r"^[0-9]{1,18}(-[0-9]{1,18})?$", description="`next` of the previous page."),
]


class RefusedPageResponse(BaseModel):
    refused: list[RefusedIdentityRow]
    next: str | None


class StoredIdentityResponse(BaseModel):
    """The identity of a batch; `raw` is null where it came in its canonical form."""

    batch_id: str
    identity: str | list[str]
    raw: str | list[str] | None


class IdentityPageResponse(BaseModel):
    identities: list[StoredIdentityResponse]
    next: str | None


@routes.get(
    "/v1/queues/{queue}/refused",
    response_model=RefusedPageResponse,
    name="list_refused",
    summary="List refused identities, newest first",
    **operation("read"),
)
async def list_refused(
    queue: QueueName,
    principal: PrincipalDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> RefusedPageResponse:
    """Submissions whose identity violates the queue's profile, with the raw bytes in hex."""
    page = await principal.execute(
        identities.refused(tenant=principal.tenant, queue=queue, after=after, limit=limit)
    )
    return RefusedPageResponse(refused=list(page.rows), next=page.next)


@routes.get(
    "/v1/queues/{queue}/identities",
    response_model=IdentityPageResponse,
    name="list_identities",
    summary="List the identities of a queue in the order of their arrival",
    **operation("read"),
)
async def list_identities(
    queue: QueueName,
    principal: PrincipalDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> IdentityPageResponse:
    """`helixq identity twins` reads all pages and groups identities that look alike.

    Batches without an identity are left out, so a page may be short and still have a `next`.
    """
    page = await principal.execute(
        identities.identities(tenant=principal.tenant, queue=queue, after=after, limit=limit)
    )
    rows = [
        StoredIdentityResponse(
            batch_id=str(row.batch_id),
            identity=identity_value(row.identity) or "",
            raw=identity_value(row.raw),
        )
        for row in page.rows
    ]
    return IdentityPageResponse(identities=rows, next=page.next)
