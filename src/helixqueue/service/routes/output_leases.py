"""Calls of workers about output files: open a manifest and register what was staged.

Workers without a database connection do not publish: the service does (`service/publisher.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from helixqueue.engine import outputs
from helixqueue.records.lease import LeaseRef
from helixqueue.records.output import OutputAnswer, StagedFile
from helixqueue.service.models.leases import OutputAnswerResponse
from helixqueue.service.models.requests import OpenOutputsRequest, RegisterOutputsRequest
from helixqueue.service.routes.leases import open_leases
from helixqueue.service.routing import PrincipalDep, RequestLogDep, hot_router, operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.postgres.call import Call

routes = hot_router("workers")


@routes.post(
    "/v1/work/outputs/open",
    response_model=OutputAnswerResponse,
    summary="Open the manifest of the output files of a lease",
    **operation("work"),
)
async def open_outputs(
    body: OpenOutputsRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> OutputAnswerResponse:
    """Returns where the worker stages its files: destination, `.helix`, manifest, number.

    The answer `none` means that the queue has no destination. A repeat returns the same manifest.
    """
    call = partial(outputs.open_outputs, size=body.size)
    return await _write(call, body, principal, request_log)


@routes.post(
    "/v1/work/outputs/register",
    response_model=OutputAnswerResponse,
    summary="Register staged output files of a lease, page by page",
    **operation("work"),
)
async def register_outputs(
    body: RegisterOutputsRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> OutputAnswerResponse:
    """Files are numbered from `first`; the last page has the number of all as `files`.

    A page may be repeated. The answer `conflict` means that a name belongs to another batch. The
    files are published when the batch is completed under this lease, by the service.
    """
    staged = [StagedFile(row.path, row.size, bytes.fromhex(row.sha256)) for row in body.staged]
    call = partial(outputs.register_outputs, first=body.first, staged=staged, files=body.files)
    return await _write(call, body, principal, request_log)


async def _write(
    call: Callable[..., Call[OutputAnswer]],
    body: OpenOutputsRequest | RegisterOutputsRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
) -> OutputAnswerResponse:
    request_log.add(worker=body.worker)
    [lease] = open_leases(principal, await principal.cipher(), [body.lease]).values()
    answer = OutputAnswer("refused")  # as for an unknown lease
    if lease is not None:
        ref = LeaseRef(lease.batch, lease.token)
        answer = await principal.execute(call(worker=body.worker, lease=ref))
        request_log.add(batch=lease.batch_id, queue=lease.queue, attempt=lease.attempt)
    is_other = answer.answer in {"refused", "conflict"}
    request_log.add(decision=answer.answer, conflicting_worker=answer.owner if is_other else None)
    return OutputAnswerResponse(**answer._asdict())
