"""Submitting batches. Their reads are declared in `operations/batch_reads.py`."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from helixqueue.engine import calls
from helixqueue.errors import Conflict, InvalidIdentity, Refused
from helixqueue.fence.http.asgi import header_values
from helixqueue.log.lines import refused_fields
from helixqueue.log.requests import RequestLog
from helixqueue.operations import submit as submit_operation
from helixqueue.operations.prepare import MAX_SOURCE_BYTES, refused_identity
from helixqueue.records.submission import Source, Submission, Submitted
from helixqueue.service.models import responses
from helixqueue.service.models.requests import (
    RefusedIdentitiesRequest,
    SubmitManyRequest,
    SubmitRequest,
)
from helixqueue.service.principal import Principal
from helixqueue.service.problems import no_such_queue
from helixqueue.service.routing import (
    PrincipalDep,
    QueueName,
    RawBodyDep,
    RequestLogDep,
    ServiceDep,
    hot_router,
    operation,
)

routes = hot_router("batches")
_REQUIRED = {"identity", "payload"}


@routes.post(
    "/v1/queues/{queue}/batches",
    response_model=responses.SubmittedResponse,
    status_code=201,
    summary="Submit one batch",
    responses={200: {"model": responses.SubmittedResponse, "description": "A duplicate."}},
    **operation(
        "submit",
        "conflict",
        "invalid-identity",
        "invalid-payload",
        "no-such-queue",
        "queue-closed",
        "queue-full",
        fenced=True,
    ),
)
async def submit(
    *,
    queue: QueueName,
    body: SubmitRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
    request: Request,
) -> Response:
    """Any number of submissions of one identity create one batch and return equal receipts.

    The status is 201 for a new batch and 200 for a duplicate. Tenant, queue, identity (in any
    Unicode spelling) and revision identify a batch. The same identity with another payload is a
    `conflict`, with the differences.
    """
    request_log.add(queue=queue)
    request_log.unrepeatable = body.identity is None
    principal.require_queue(queue)
    await service.check_queue_capacity(principal, queue, 1)
    try:
        result = await principal.run_instructions(
            submit_operation.submit(
                principal.operations,
                queue,
                _submission(body, _request_key(request, principal)),
                create=False,
                within=None,
            ),
            in_thread=await principal.needs_thread(queue, raw_body),
        )
    except Refused as refused:
        decision = "conflict" if isinstance(refused, Conflict) else "refused"
        request_log.add(decision=decision)
        if isinstance(refused, InvalidIdentity):
            request_log.add(**refused_fields(*refused_identity(body.identity, refused)))
        raise
    if result.without_identity:
        request_log.warn(without_identity=1)
    content = responses.submitted(
        result, values=principal.sees_payloads, request_id=request_log.request_id
    )
    request_log.add(batch=content["receipt"]["batch_id"], decision=result.decision)
    return responses.json_response(content, 201 if result.decision == "new" else 200)


@routes.post(
    "/v1/queues/{queue}/chunks",
    response_model=responses.SubmitManyResponse,
    summary="Submit many batches",
    **operation("submit", "no-such-queue", "queue-full", fenced=True),
)
async def submit_many(
    *,
    queue: QueueName,
    body: SubmitManyRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
) -> Response:
    """Each row has its own result, in the order of the request: new, duplicate, conflict, refused.

    A refused row has its own `problem` and does not affect the others. Accepted rows are durable
    before the response.
    """
    request_log.add(queue=queue, count=len(body.submissions))
    request_log.unrepeatable = any(row.identity is None for row in body.submissions)
    principal.require_queue(queue)
    await service.check_queue_capacity(principal, queue, len(body.submissions))
    rows = [_submission(row, None) for row in body.submissions]
    results: list[Submitted] = await principal.run_instructions(
        submit_operation.submit_many(principal.operations, queue, rows, create=False, within=None),
        in_thread=await principal.needs_thread(queue, raw_body),
    )
    values, request_id = principal.sees_payloads, request_log.request_id
    content = [responses.submitted(row, values=values, request_id=request_id) for row in results]
    _log_results(request_log, queue, rows, results, content)
    without_identity = sum(result.without_identity for result in results)
    if without_identity:
        request_log.warn(without_identity=without_identity)
    request_log.add(decision=sorted({result.decision for result in results}))
    return responses.json_response({"submitted": content})


def _log_results(
    request_log: RequestLog,
    queue: str,
    rows: list[Submission],
    results: list[Submitted],
    content: list[dict[str, Any]],
) -> None:
    """Log one line per row, in their order."""
    answers = zip(rows, results, content, strict=True)
    for decision, group in groupby(answers, key=lambda answer: answer[1].decision):
        if decision != "refused":
            batch_ids = [item["receipt"]["batch_id"] for _, _, item in group]
            request_log.add_batches("submit", batch_ids, queue=queue, decision=decision)
            continue
        for row, result, _ in group:
            fields = {"queue": queue, "decision": decision}
            if isinstance(result.error, InvalidIdentity):
                fields |= refused_fields(*refused_identity(row.identity, result.error))
            request_log.add_line("submit", **fields)


@routes.post(
    "/v1/queues/{queue}/refused",
    status_code=204,
    summary="Record identities that the client refused",
    **operation("submit", "no-such-queue"),
)
async def note_refused(
    queue: QueueName,
    body: RefusedIdentitiesRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
) -> None:
    """Operators find submissions that never arrived here. `raw` contains the bytes in hex."""
    request_log.add(queue=queue, count=len(body.refused))
    principal.require_queue(queue)
    try:
        await principal.run_instructions(principal.operations.known(queue))
    except Refused as refused:
        if type(refused) is not Refused:
            raise  # about the token or the name
        raise no_such_queue(queue) from None
    refused_identities = [(bytes.fromhex(item.raw), item.why) for item in body.refused]
    await principal.execute(
        calls.note_refused(
            tenant=principal.tenant,
            queue=queue,
            refused=refused_identities,
            actor=principal.grant.name,
        )
    )
    for raw, why in refused_identities:
        request_log.add_line("submit", queue=queue, decision="refused", **refused_fields(raw, why))


def _request_key(request: Request, principal: Principal) -> Source | None:
    """The source that an idempotency key stands for: the token and the key."""
    values = header_values(request.scope["headers"], "idempotency-key")
    if len(values) != 1:
        return None
    key = values[0].decode("latin-1").strip().strip('"')
    is_valid = key.isprintable() and 1 <= len(key.encode()) <= MAX_SOURCE_BYTES
    return Source("http", principal.grant.name, key) if is_valid else None


def _submission(row: SubmitRequest, request_key: Source | None) -> Submission:
    # Without identity the key alone makes the request repeatable, and the fence keeps it.
    source = None if row.identity is None else request_key
    if row.source is not None:
        source = Source(row.source.kind, row.source.name, row.source.id)
    if source is None and row.model_fields_set == _REQUIRED:
        return Submission(row.identity, row.payload)  # most rows; half of the time
    values = {name: getattr(row, name) for name in row.model_fields_set}
    return Submission(**values | {"source": source})
