"""Calls of workers: claim, start, renew, settle, release. A lease's token is its only proof.

Each batch has its own answer: ok, repeat, refused (another worker owns it), busy or illegal. So a
refused write is a 200 response that names the new owner, not an error.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from helixqueue.engine import calls, service_calls
from helixqueue.identity import canonical_text
from helixqueue.service.models import leases as models
from helixqueue.service.models import requests, responses
from helixqueue.service.models.requests import (
    ClaimLeasesRequest,
    ExpectRequest,
    HelloRequest,
    LeasesRequest,
    ReleaseRequest,
    SettleRequest,
    WaitRequest,
)
from helixqueue.service.result_checks import check_results
from helixqueue.service.routing import (
    BodyBytesDep,
    PrincipalDep,
    RequestLogDep,
    ServiceDep,
    hot_router,
    operation,
    unless_disconnected,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.engine.service_calls import LeaseName
    from helixqueue.records.lease import LeaseRef, Settlement, WriteResult
    from helixqueue.service.tenant_cipher import TenantCipher

routes = hot_router("workers")
EXPECT_SECONDS: Final = 60.0


@routes.post(
    "/v1/work/hello",
    status_code=204,
    summary="Register a worker and its free resources",
    **operation("work"),
)
async def hello(body: HelloRequest, principal: PrincipalDep, request_log: RequestLogDep) -> None:
    """For display only: a worker that never registers gets work as well."""
    request_log.add(worker=body.worker)
    free = {} if body.free is None else body.free.model_dump()
    free |= body.model_dump(mode="json", include={"health", "progress"}, exclude_none=True)
    worker = service_calls.worker_name(principal.tenant, body.worker)
    await principal.execute(calls.hello(worker=worker, free=free))


@routes.post(
    "/v1/work/claim",
    response_model=models.ClaimResponse,
    summary="Settle finished leases and claim new ones, in one commit",
    **operation("work"),
)
async def claim(
    *,
    body: ClaimLeasesRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
    body_bytes: BodyBytesDep,
) -> Response:
    """Returns at most `count` leases on batches that fit the free resources, each with its token.

    If the response was lost, repeat the claim with the same `request` to get the same leases.
    Expired leases end first, so the batches of dead workers become claimable.
    """
    request_log.add(worker=body.worker, queue=body.queues)
    principal.require_queue(*body.queues)
    cipher = await principal.cipher()
    settle = await service.compute.run_if_large(
        body_bytes, principal.tenant, _settlements, body.settle, cipher
    )
    names = await _names(principal, service, settle)
    settle = await check_results(principal, service.compute, settle, names, body_bytes)
    claim_call = partial(
        calls.claim,
        worker=body.worker,
        request=body.request,
        queues=body.queues,
        count=body.count,
        free=None if body.free is None else body.free.model_dump(),
        start=body.start,
        lease_seconds=body.lease_seconds,
    )
    hints = service.claim_hints.of_worker(principal.tenant, body.worker)
    marks = hints.now(time.monotonic())
    claimed = await principal.execute(claim_call(hints=marks, settle=settle))
    settled = claimed.settled
    _log_writes("settle", settled, names, service, request_log)
    if marks and not claimed.leases:
        # There may be work before the hints. Nothing was claimed, so the request id is unused.
        claimed = await principal.execute(claim_call())
    hints.learn(claimed.hints, short=len(claimed.leases) < body.count and not claimed.more)
    service.lease_names.add(principal, claimed.leases)
    for row in claimed.leases:
        request_log.add_step(
            "claim", batch=row.batch_id, queue=row.queue, attempt=row.attempt, decision="ok"
        )
    request_log.add(count=len(claimed.leases))
    return responses.json_response(
        {
            "leases": [models.lease(row, cipher) for row in claimed.leases],
            "settled": [row.model_dump() for row in models.lease_writes(settled, cipher)],
            "more": claimed.more,
        }
    )


@routes.post(
    "/v1/work/start",
    response_model=models.LeaseWritesResponse,
    summary="Start leases: ASSIGNED becomes RUNNING",
    **operation("work"),
)
async def start(
    body: LeasesRequest, principal: PrincipalDep, service: ServiceDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """Each answer is ok, repeat, refused (with the current owner), busy or illegal."""
    request_log.add(worker=body.worker)
    cipher = await principal.cipher()
    leases = [item.lease_ref(cipher) for item in body.leases]
    names = await _names(principal, service, leases)
    writes = await principal.execute(calls.start(worker=body.worker, leases=leases))
    _log_writes("start", writes, names, service, request_log)
    return models.LeaseWritesResponse(answers=models.lease_writes(writes, cipher))


@routes.post(
    "/v1/work/renew",
    response_model=models.LeaseWritesResponse,
    summary="Extend the deadline of leases; never waits for a lock",
    **operation("work"),
)
async def renew(
    body: LeasesRequest, principal: PrincipalDep, service: ServiceDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """After the answer `refused` the worker should stop: another worker owns the batch.

    A batch that is being settled has the answer `busy`; renew it again.
    """
    request_log.add(worker=body.worker)
    cipher = await principal.cipher()
    leases = [item.lease_ref(cipher) for item in body.leases]
    names = await _names(principal, service, leases)
    writes = await principal.execute(calls.renew(worker=body.worker, leases=leases))
    _log_writes("renew", writes, names, service, request_log)
    return models.LeaseWritesResponse(answers=models.lease_writes(writes, cipher))


@routes.post(
    "/v1/work/settle",
    response_model=models.LeaseWritesResponse,
    summary="Complete or fail leases; durable before the response",
    **operation("work"),
)
async def settle(
    body: SettleRequest,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
    body_bytes: BodyBytesDep,
) -> models.LeaseWritesResponse:
    """A repeat has the answer `repeat`.

    A result that breaks the result schema of its queue is not stored: the attempt fails with the
    failure `result`, and the answer has the state that follows, PENDING or FAILED.
    A stale token is `refused` in any state, and the refusal is stored with the names of both
    workers.
    """
    request_log.add(worker=body.worker)
    cipher = await principal.cipher()
    settlements = await service.compute.run_if_large(
        body_bytes, principal.tenant, _settlements, body.settlements, cipher
    )
    names = await _names(principal, service, settlements)
    settlements = await check_results(principal, service.compute, settlements, names, body_bytes)
    writes = await principal.execute(calls.settle(worker=body.worker, settlements=settlements))
    _log_writes("settle", writes, names, service, request_log)
    return models.LeaseWritesResponse(answers=models.lease_writes(writes, cipher))


@routes.post(
    "/v1/work/release",
    response_model=models.LeaseWritesResponse,
    summary="Release leases; the attempt does not count",
    **operation("work"),
)
async def release(
    body: ReleaseRequest, principal: PrincipalDep, service: ServiceDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """For a worker that shuts down or cannot do the work; the batch is claimable at once."""
    request_log.add(worker=body.worker)
    cipher = await principal.cipher()
    leases = [item.lease_ref(cipher) for item in body.leases]
    names = await _names(principal, service, leases)
    writes = await principal.execute(
        calls.release(worker=body.worker, leases=leases, detail=body.detail)
    )
    _log_writes("release", writes, names, service, request_log)
    return models.LeaseWritesResponse(answers=models.lease_writes(writes, cipher))


@routes.post(
    "/v1/work/expect",
    response_model=models.ExpectResponse,
    summary="Subscribe a worker to submissions to queues",
    **operation("work"),
)
async def expect(
    body: ExpectRequest, principal: PrincipalDep, service: ServiceDep, request_log: RequestLogDep
) -> models.ExpectResponse:
    """For an idle worker, which then claims once more: earlier submissions sent no wake-up.

    An optimization only: a worker without wake-ups polls.
    """
    request_log.add(worker=body.worker, queue=body.queues)
    principal.require_queue(*body.queues)
    await _subscribe(principal, service, body.worker, body.queues, body.seconds)
    wakeups = service.wakeups
    mark = None if wakeups is None else wakeups.mark(principal.tenant, body.queues)
    return models.ExpectResponse(mark=mark)


@routes.post(
    "/v1/work/wait",
    response_model=models.WaitResponse,
    summary="Wait for a submission to one of the queues",
    **operation("work", "too-many-streams"),
)
async def wait(
    body: WaitRequest,
    request: Request,
    principal: PrincipalDep,
    service: ServiceDep,
    request_log: RequestLogDep,
) -> models.WaitResponse:
    """With the mark of the previous response, submissions since then count as well."""
    request_log.add(worker=body.worker, queue=body.queues)
    principal.require_queue(*body.queues)
    tenant, wakeups = principal.tenant, service.wakeups
    with service.waits.hold(tenant):
        if wakeups is None:
            await unless_disconnected(request, asyncio.sleep(body.seconds))
            return models.WaitResponse(woken=False, mark=None)
        if not wakeups.knows(tenant, body.queues):
            # The worker subscribed in another process.
            await _subscribe(principal, service, body.worker, body.queues, EXPECT_SECONDS)
        waiting = wakeups.wait(tenant, body.queues, body.mark, body.seconds)
        woken = await unless_disconnected(request, waiting)
        return models.WaitResponse(woken=woken, mark=wakeups.mark(tenant, body.queues))


async def _subscribe(
    principal: PrincipalDep, service: ServiceDep, worker: str, queues: list[str], seconds: float
) -> None:
    worker = service_calls.worker_name(principal.tenant, worker)
    channels = await principal.execute(calls.wait(worker=worker, queues=queues, seconds=seconds))
    if service.wakeups is not None and seconds > 0:
        service.wakeups.listen(principal.tenant, dict(zip(queues, channels, strict=True)))


async def _names(
    principal: PrincipalDep, service: ServiceDep, leases: Sequence[LeaseRef | Settlement]
) -> Mapping[int, LeaseName | None]:
    """The names of leases; a token for some queues may not touch leases of others."""
    names = await service.lease_names.get(principal, leases)
    principal.require_queue(*(name.queue for name in names.values() if name is not None))
    return names


def _settlements(
    items: Sequence[requests.SettlementItem], cipher: TenantCipher
) -> list[Settlement]:
    return [
        requests.settlement(
            item, canonical_text(item.result) if _has_result(item) else None, cipher
        )
        for item in items
    ]


def _has_result(item: requests.SettlementItem) -> bool:
    """A null result is a result; a missing one is not."""
    return item.outcome == "completed" and "result" in item.model_fields_set


def _log_writes(
    verb: str,
    writes: Sequence[WriteResult],
    names: Mapping[int, LeaseName | None],
    service: ServiceDep,
    request_log: RequestLogDep,
) -> None:
    """Log and count each write, above all refusals with both workers."""
    for write in writes:
        service.metrics.count_worker_write(verb, write.answer)
        name = names.get(write.batch)
        request_log.add_step(
            verb,
            batch=write.batch if name is None else name.batch_id,
            queue=None if name is None else name.queue,
            run=None if name is None else name.run,
            attempt=None if name is None else name.attempt,
            conflicting_worker=write.owner if write.answer == "refused" else None,
            decision=write.answer,
            state=None if write.state is None else write.state.value,
            mismatch=write.mismatch or None,
        )
    if writes:
        request_log.add(decision=sorted({write.answer for write in writes}), count=len(writes))
