"""Queues and their settings, and the list of workers."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query

from helixqueue.engine import calls, reads, service_calls
from helixqueue.queues import checked_requires
from helixqueue.queues.schema_bounds import check_bounds
from helixqueue.schemas import Schema
from helixqueue.service.models import responses
from helixqueue.service.models.requests import QueueRequest, ReasonRequest, Time, Worker
from helixqueue.service.problems import Problem, no_such_queue
from helixqueue.service.routing import (
    PrincipalDep,
    QueueName,
    RequestLogDep,
    ServiceDep,
    operation,
    router,
)
from helixqueue.service.settings import MAX_PAGE

routes = router("queues")
CountTo = Annotated[int, Query(ge=0, le=10_000, description="Counts stop at this number.")]
# Per page: counting hundreds of deep queues could exceed the statement timeout.
COUNTED_MAX: Final = 500_000


@routes.get(
    "/v1/queues",
    response_model=responses.QueuePageResponse,
    name="list_queues",
    summary="List queues with their settings and counts",
    **operation("read"),
)
async def list_queues(
    principal: PrincipalDep,
    count_to: CountTo = 1_000,
    after: Annotated[
        str | None, Query(max_length=130, description="`next` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> responses.QueuePageResponse:
    """Sorted by name. A count that stopped at `count_to` has `more`.

    A page of more than 50 queues counts less far: to 1,000 with 500 queues.
    """
    bound = min(count_to, COUNTED_MAX // limit)
    page = await principal.execute(
        reads.queues(tenant=principal.tenant, bound=bound, after=after, limit=limit)
    )
    rows = [responses.queue(row.settings, row) for row in page.rows]
    return responses.QueuePageResponse(queues=rows, next=page.next)


@routes.get(
    "/v1/queues/{queue}",
    response_model=responses.QueueResponse,
    name="show_queue",
    summary="Show a queue",
    **operation("read", "no-such-queue"),
)
async def show_queue(
    queue: QueueName, principal: PrincipalDep, request_log: RequestLogDep, count_to: CountTo = 1_000
) -> responses.QueueResponse:
    """Settings, schemas, and counts of batches by state."""
    request_log.add(queue=queue)
    page = await principal.execute(
        reads.queues(tenant=principal.tenant, queue=queue, bound=count_to)
    )
    if not page.rows:
        raise no_such_queue(queue)
    return responses.queue(page.rows[0].settings, page.rows[0])


@routes.get(
    "/v1/queues/{queue}/settings",
    response_model=responses.QueueResponse,
    name="show_settings",
    summary="Show the settings of a queue, for every token that may use it",
    **operation("any", "no-such-queue"),
)
async def show_settings(
    queue: QueueName, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.QueueResponse:
    """For clients that prepare submissions and workers that check results; without counts."""
    request_log.add(queue=queue)
    principal.require_queue(queue)
    row = await principal.execute(calls.queue(tenant=principal.tenant, queue=queue))
    if row is None:
        raise no_such_queue(queue)
    return responses.queue(row)


@routes.put(
    "/v1/queues/{queue}",
    response_model=responses.QueueResponse,
    summary="Create a queue, or change its settings",
    **operation("operate", "invalid-payload", fenced=True),
)
async def set_queue(
    queue: QueueName,
    body: QueueRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
) -> responses.QueueResponse:
    """Settings that are left out stay unchanged.

    The profile of a queue that had a batch cannot be changed: known identities would look new.
    """
    settings = body.model_dump(exclude={"reason"}, exclude_none=True)
    if "requires" in settings:
        settings["requires"] = checked_requires(settings["requires"])
    for name in ("payload_schema", "result_schema"):
        if name in settings:
            await service.compute.run(principal.tenant, _check_schema, name, settings[name])
    return await _set(queue, settings, body.reason, principal, request_log)


@routes.post(
    "/v1/queues/{queue}/pause",
    response_model=responses.QueueResponse,
    name="pause_queue",
    summary="Pause a queue: no new claims; leased work continues",
    **operation("operate", "no-such-queue", fenced=True),
)
async def pause_queue(
    queue: QueueName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.QueueResponse:
    """The queue still accepts submissions. The reason is stored with the token's name."""
    return await _set_paused(queue, body, principal, request_log, paused=True)


@routes.post(
    "/v1/queues/{queue}/resume",
    response_model=responses.QueueResponse,
    name="resume_queue",
    summary="Resume a paused queue",
    **operation("operate", "no-such-queue", fenced=True),
)
async def resume_queue(
    queue: QueueName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.QueueResponse:
    """Pending batches keep their order."""
    return await _set_paused(queue, body, principal, request_log, paused=False)


@routes.post(
    "/v1/queues/{queue}/delete",
    response_model=responses.QueueDeletedResponse,
    name="delete_queue",
    summary="Delete a queue that never had a batch",
    **operation("operate", "no-such-queue", "queue-not-empty", fenced=True),
)
async def delete_queue(
    queue: QueueName, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> responses.QueueDeletedResponse:
    """A queue that had a batch can only be closed: the keys of its batches contain its name."""
    request_log.add(queue=queue, reason=body.reason)
    answer = await principal.run(
        calls.delete_queue(
            tenant=principal.tenant, queue=queue, actor=principal.grant.name, reason=body.reason
        )
    )
    principal.operations.forget(queue)
    if answer == "absent":
        raise no_such_queue(queue)
    if answer == "not_empty":
        raise Problem(
            "queue-not-empty", f"queue {queue} has or had batches, so it stays", got=queue
        )
    return responses.QueueDeletedResponse(queue=queue, answer=answer)


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


def _check_schema(name: str, document: dict[str, Any]) -> None:
    check_bounds(document, name)
    Schema(document).check_compiles()


async def _set_paused(
    queue: str,
    body: ReasonRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
    *,
    paused: bool,
) -> responses.QueueResponse:
    # Only PUT creates queues.
    if await principal.execute(calls.queue(tenant=principal.tenant, queue=queue)) is None:
        raise no_such_queue(queue)
    return await _set(queue, {"paused": paused}, body.reason, principal, request_log)


async def _set(
    queue: str,
    settings: dict[str, Any],
    reason: str,
    principal: PrincipalDep,
    request_log: RequestLogDep,
) -> responses.QueueResponse:
    request_log.add(queue=queue, reason=reason)
    row = await principal.run(
        calls.set_queue(
            tenant=principal.tenant,
            queue=queue,
            actor=principal.grant.name,
            reason=reason,
            **settings,
        )
    )
    principal.operations.forget(queue)
    return responses.queue(row)
