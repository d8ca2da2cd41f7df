"""Calls of workers: claim, start, renew, settle, release. A sealed lease is its only proof.

Each batch has its own answer: ok, repeat, refused (another worker owns it), busy or illegal. So a
refused write is a 200 response that names the new owner, not an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from helixqueue.engine import calls, service_calls
from helixqueue.identity import canonical_text
from helixqueue.records.lease import LeaseRef, Settlement, WriteResult
from helixqueue.service.models import leases as models
from helixqueue.service.models import responses
from helixqueue.service.models.requests import (
    ClaimLeasesRequest,
    ExpectRequest,
    HelloRequest,
    LeasesRequest,
    ReleaseRequest,
    SettlementItem,
    SettleRequest,
    WaitRequest,
)
from helixqueue.service.result_checks import check_results
from helixqueue.service.routing import (
    PrincipalDep,
    RawBodyDep,
    RequestLogDep,
    ServiceDep,
    hot_router,
    operation,
    unless_disconnected,
)

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call
    from helixqueue.service.tenant_cipher import OpenedLease, TenantCipher

routes = hot_router("workers")
Opened: TypeAlias = "dict[str, OpenedLease | None]"  # None: this tenant's key did not seal it
UNKNOWN_LEASE: Final = WriteResult(0, "refused", None, None, late=False)
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
    free = {} if body.free is None else body.free.model_dump(exclude_none=True)
    free |= body.model_dump(mode="json", include={"health", "progress"}, exclude_none=True)
    report = None if body.ended and not free else free
    await principal.execute(calls.hello(worker=body.worker, free=report, ended=body.ended))


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
    raw_body: RawBodyDep,
) -> Response:
    """Returns at most `count` leases on batches that fit the free resources, each with its token.

    If the response was lost, repeat the claim with the same `request` to get the same leases.
    Expired leases end first, so the batches of dead workers become claimable.
    """
    request_log.add(worker=body.worker, queue=body.queues)
    principal.require_queue(*body.queues)
    cipher = await principal.cipher()
    opened = open_leases(principal, cipher, [item.lease for item in body.settle])
    settle = await _settlements(principal, service, body.settle, opened, raw_body)
    claim_call = partial(
        calls.claim,
        worker=body.worker,
        request=body.request,
        queues=body.queues,
        count=body.count,
        free=None if body.free is None else body.free.model_dump(exclude_none=True),
        start=body.start,
        lease_seconds=body.lease_seconds,
    )
    hints = service.claim_hints.of_worker(principal.tenant, body.worker)
    marks = hints.now(time.monotonic())
    claimed = await principal.execute(claim_call(hints=marks, settle=settle))
    answers = _answers("settle", opened, claimed.settled, request_log)
    if marks and not claimed.leases:
        # There may be work before the hints. Nothing was claimed, so the request id is unused.
        claimed = await principal.execute(claim_call())
    hints.learn(claimed.hints, short=len(claimed.leases) < body.count and not claimed.more)
    for row in claimed.leases:
        request_log.add_line(
            "claim", batch=row.batch_id, queue=row.queue, attempt=row.attempt, decision="ok"
        )
    request_log.add(count=len(claimed.leases))
    return responses.json_response(
        {
            "leases": [models.lease(row, cipher) for row in claimed.leases],
            "settled": [answer.model_dump() for answer in answers],
            "more": claimed.more,
            "former": [row._asdict() for row in claimed.former],
        }
    )


@routes.post(
    "/v1/work/start",
    response_model=models.LeaseWritesResponse,
    summary="Start leases: ASSIGNED becomes RUNNING",
    **operation("work"),
)
async def start(
    body: LeasesRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """Each answer is ok, repeat, refused (with the current owner), busy or illegal."""
    return await _write(calls.start, body, principal, request_log)


@routes.post(
    "/v1/work/renew",
    response_model=models.LeaseWritesResponse,
    summary="Extend the deadline of leases; never waits for a lock",
    **operation("work"),
)
async def renew(
    body: LeasesRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """After the answer `refused` the worker should stop: another worker owns the batch.

    A batch that is being settled has the answer `busy`; renew it again.
    """
    return await _write(calls.renew, body, principal, request_log)


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
    raw_body: RawBodyDep,
) -> models.LeaseWritesResponse:
    """A repeat has the answer `repeat`.

    A result that breaks the result schema of its queue is not stored: the attempt fails with the
    failure `result`, and the answer has the state that follows, PENDING or FAILED.
    A stale token is `refused` in any state, and the refusal is stored with the names of both
    workers.
    """
    request_log.add(worker=body.worker)
    cipher = await principal.cipher()
    opened = open_leases(principal, cipher, [item.lease for item in body.settlements])
    settlements = await _settlements(principal, service, body.settlements, opened, raw_body)
    writes = await principal.execute(calls.settle(worker=body.worker, settlements=settlements))
    answers = _answers("settle", opened, writes, request_log)
    return models.LeaseWritesResponse(answers=answers)


@routes.post(
    "/v1/work/release",
    response_model=models.LeaseWritesResponse,
    summary="Release leases; the attempt does not count",
    **operation("work"),
)
async def release(
    body: ReleaseRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.LeaseWritesResponse:
    """For a worker that shuts down or cannot do the work; the batch is claimable at once."""
    call = partial(calls.release, detail=body.detail)
    return await _write(call, body, principal, request_log)


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
    await principal.require_valid_token()  # waiting makes no other call that checks it
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


def open_leases(principal: PrincipalDep, cipher: TenantCipher, leases: Iterable[str]) -> Opened:
    """Open leases; a token for some queues may not touch leases of others."""
    opened = {lease: cipher.open_lease(lease) for lease in leases}
    principal.require_queue(*{lease.queue for lease in opened.values() if lease is not None})
    return opened


async def _write(
    call: Callable[..., Call[list[WriteResult]]],
    body: LeasesRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
) -> models.LeaseWritesResponse:
    request_log.add(worker=body.worker)
    opened = open_leases(principal, await principal.cipher(), body.leases)
    leases = [LeaseRef(lease.batch, lease.token) for lease in opened.values() if lease is not None]
    writes = await principal.execute(call(worker=body.worker, leases=leases))
    answers = _answers(request_log.operation, opened, writes, request_log)
    return models.LeaseWritesResponse(answers=answers)


async def _settlements(
    principal: PrincipalDep,
    service: ServiceDep,
    items: Sequence[SettlementItem],
    opened: Opened,
    raw_body: bytes,
) -> list[Settlement]:
    """The settlements of opened leases; a result that breaks its schema becomes a failure."""
    settlements = await service.compute.run_if_large(
        raw_body, principal.tenant, _read_settlements, items, opened
    )
    queues = {lease.batch: lease.queue for lease in opened.values() if lease is not None}
    return await check_results(principal, service.compute, settlements, queues, raw_body)


def _read_settlements(items: Sequence[SettlementItem], opened: Opened) -> list[Settlement]:
    settlements = []
    for item in items:
        lease = opened[item.lease]
        if lease is not None:
            # A null result is a result; a missing one is not.
            has_result = item.outcome == "completed" and "result" in item.model_fields_set
            settlements.append(
                Settlement(
                    lease.batch,
                    lease.token,
                    item.outcome,
                    result=canonical_text(item.result) if has_result else None,
                    failure=item.failure,
                    detail=item.detail,
                    permanent=item.permanent,
                    after_seconds=item.after_seconds,
                )
            )
    return settlements


def _answers(
    verb: str,
    opened: Opened,
    writes: Iterable[WriteResult],
    request_log: RequestLogDep,
) -> list[models.LeaseWriteResponse]:
    """Count and log each write, above all refusals with both workers.

    A lease that could not be opened is refused, as the engine refuses an unknown one.
    """
    texts = {lease.batch: text for text, lease in opened.items() if lease is not None}
    written = [(texts[write.batch], write) for write in writes]
    written += [(text, UNKNOWN_LEASE) for text, lease in opened.items() if lease is None]
    for text, write in written:
        lease = opened[text]
        request_log.add_line(
            verb,
            batch=None if lease is None else lease.batch_id,
            queue=None if lease is None else lease.queue,
            attempt=None if lease is None else lease.attempt,
            conflicting_worker=write.owner if write.answer == "refused" else None,
            decision=write.answer,
            state=None if write.state is None else write.state.value,
            mismatch=write.mismatch or None,
        )
    if written:
        words = sorted({write.answer for _, write in written})
        request_log.add(decision=words, count=len(written))
    return [
        models.LeaseWriteResponse(
            lease=text,
            answer=write.answer,
            owner=write.owner,
            state=write.state,
            late=write.late,
            mismatch=write.mismatch,
        )
        for text, write in written
    ]
