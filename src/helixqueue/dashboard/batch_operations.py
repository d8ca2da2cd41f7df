"""Reads of batches for pages, redacted as the API redacts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.engine import reads
from helixqueue.service.models import responses
from helixqueue.service.problems import no_such_batch

if TYPE_CHECKING:
    from uuid import UUID

    from helixqueue.dashboard.page import PageRequest
    from helixqueue.records.batch import BatchPage
    from helixqueue.service.models.responses import BatchDetailResponse


async def list_batches(page: PageRequest, *, after: str | None = None, **filters: Any) -> BatchPage:  # noqa: ANN401
    page.principal.require_scope("read")
    identity = filters.pop("identity", None)
    found = await page.principal.execute(
        reads.batches(
            tenant=page.principal.tenant,
            after=await page.principal.open_cursor(after),
            identity=identity,
            **filters,
        )
    )
    return type(found)(found.rows, await page.principal.seal_cursor(found.next))


async def show_batch(page: PageRequest, batch_id: UUID, *, payload: bool) -> BatchDetailResponse:
    page.principal.require_scope("read")
    row = await page.principal.execute(reads.batch_detail(batch_id, payload=payload))
    if row is None:
        raise no_such_batch(batch_id)
    return responses.batch_detail(
        row, values=page.principal.sees_payloads, cipher=await page.principal.cipher()
    )
