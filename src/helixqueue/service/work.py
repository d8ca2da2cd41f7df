"""What workers do: claim, start, renew, settle, release. A lease's token is its only proof.

The answers are the engine's, batch by batch: ok, repeat, refused (somebody else has it now), busy,
illegal. So a refused write is an answer of 200 with the new owner's name, not an error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from helixqueue.engine import calls, service_calls
from helixqueue.identity import canonical_text
from helixqueue.records.claim_hints import Hint
from helixqueue.service import bodies
from helixqueue.service import work_answers as answers
from helixqueue.service.bodies import (
    ClaimBody,
    ExpectBody,
    HelloBody,
    LeasesBody,
    ReleaseBody,
    SettleBody,
    WaitBody,
)
from helixqueue.service.routing import Asker, Here, Note, demands, router, unless_left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.engine.service_calls import LeaseName
    from helixqueue.records.lease import Settlement, WriteResult

routes = router("work")
EXPECT_SECONDS: Final = 60.0


@routes.post(
    "/v1/work/hello",
    status_code=204,
    summary="A worker says that it is there, and what it has free",
    **demands("work"),
)
async def hello(body: HelloBody, asker: Asker, note: Note) -> None:
    """For people: nothing rests on it, and a worker that never says it gets work all the same."""
    note.know(worker=body.worker)
    free = {} if body.free is None else body.free.model_dump()
    free |= body.model_dump(mode="json", include={"health", "progress"}, exclude_none=True)
    await asker.ask(
        calls.hello(worker=service_calls.worker_name(asker.tenant, body.worker), free=free)
    )


@routes.post(
    "/v1/work/claim",
    response_model=answers.ClaimAnswer,
    summary="Settle what is finished, take leases that fit, start them: one commit",
    **demands("work"),
)
async def claim(body: ClaimBody, asker: Asker, here: Here, note: Note) -> answers.ClaimAnswer:
    """Gives at most `count` leases on batches that fit what is free, each with its token.

    Send the same `request` again when the answer was lost, and get the same leases. Whatever has a
    deadline behind it is taken back first, so nothing stays with the dead.
    """
    note.know(worker=body.worker, queue=body.queues)
    asker.demand_queue(*body.queues)
    settle = _settlements(body.settle)
    names = await here.names.of(asker, settle)
    claimed = await asker.ask(
        calls.claim(
            worker=body.worker,
            request=body.request,
            queues=body.queues,
            count=body.count,
            free=None if body.free is None else body.free.model_dump(),
            start=body.start,
            lease_seconds=body.lease_seconds,
            hints=[Hint(*one) for one in body.hints],
            settle=settle,
        )
    )
    settled = _told("settle", claimed.settled, names, here, note)
    here.names.learn(asker, claimed.leases)
    for row in claimed.leases:
        note.step("claim", batch=row.batch_id, queue=row.queue, attempt=row.attempt, decision="ok")
    note.know(count=len(claimed.leases))
    return answers.ClaimAnswer(
        leases=[answers.lease(row) for row in claimed.leases],
        settled=settled,
        hints=[list(hint) for hint in claimed.hints],
        more=claimed.more,
    )


@routes.post(
    "/v1/work/start",
    response_model=answers.HeldsAnswer,
    summary="ASSIGNED becomes RUNNING",
    **demands("work"),
)
async def start(body: LeasesBody, asker: Asker, here: Here, note: Note) -> answers.HeldsAnswer:
    """Each answer is ok, repeat, refused (with the owner that has it now), busy or illegal."""
    note.know(worker=body.worker)
    held = [one.held() for one in body.leases]
    names = await here.names.of(asker, held)
    told = await asker.ask(calls.start(worker=body.worker, leases=held))
    return answers.HeldsAnswer(answers=_told("start", told, names, here, note))


@routes.post(
    "/v1/work/renew",
    response_model=answers.HeldsAnswer,
    summary="A later deadline; never waits",
    **demands("work"),
)
async def renew(body: LeasesBody, asker: Asker, here: Here, note: Note) -> answers.HeldsAnswer:
    """A refused one is somebody else's now: its worker should stop.

    A batch that is being settled this moment answers `busy`: ask again.
    """
    note.know(worker=body.worker)
    held = [one.held() for one in body.leases]
    names = await here.names.of(asker, held)
    told = await asker.ask(calls.renew(worker=body.worker, leases=held))
    return answers.HeldsAnswer(answers=_told("renew", told, names, here, note))


@routes.post(
    "/v1/work/settle",
    response_model=answers.HeldsAnswer,
    summary="The end of attempts: durable before it is answered",
    **demands("work"),
)
async def settle(body: SettleBody, asker: Asker, here: Here, note: Note) -> answers.HeldsAnswer:
    """Sent again, it is answered `repeat`.

    A stale token is `refused` in any state, and the refusal is kept with the names of both workers.
    """
    note.know(worker=body.worker)
    settlements = _settlements(body.settlements)
    names = await here.names.of(asker, settlements)
    told = await asker.ask(calls.settle(worker=body.worker, settlements=settlements))
    return answers.HeldsAnswer(answers=_told("settle", told, names, here, note))


@routes.post(
    "/v1/work/release",
    response_model=answers.HeldsAnswer,
    summary="Give leases back, at no cost of an attempt",
    **demands("work"),
)
async def release(body: ReleaseBody, asker: Asker, here: Here, note: Note) -> answers.HeldsAnswer:
    """For a worker that shuts down or cannot do the work; the batch is claimable at once."""
    note.know(worker=body.worker)
    held = [one.held() for one in body.leases]
    names = await here.names.of(asker, held)
    told = await asker.ask(calls.release(worker=body.worker, leases=held, detail=body.detail))
    return answers.HeldsAnswer(answers=_told("release", told, names, here, note))


@routes.post(
    "/v1/work/expect",
    response_model=answers.MarkAnswer,
    summary="Tell this worker when something is submitted to one of these queues",
    **demands("work"),
)
async def expect(body: ExpectBody, asker: Asker, here: Here, note: Note) -> answers.MarkAnswer:
    """For a worker with nothing to do. It claims once more: what came before told nobody.

    A comfort only: a worker that is not told looks by itself now and then.
    """
    note.know(worker=body.worker, queue=body.queues)
    asker.demand_queue(*body.queues)
    await _expect(asker, here, body.worker, body.queues, body.seconds)
    mark = None if here.bell is None else here.bell.mark(asker.tenant, body.queues)
    return answers.MarkAnswer(mark=mark)


@routes.post(
    "/v1/work/wait",
    response_model=answers.WokenAnswer,
    summary="Answered when something was submitted to one of these queues, or after so long",
    **demands("work", "too-many-streams"),
)
async def wait(
    body: WaitBody, request: Request, asker: Asker, here: Here, note: Note
) -> answers.WokenAnswer:
    """With the mark of the answer before, what came in between counts too."""
    note.know(worker=body.worker, queue=body.queues)
    asker.demand_queue(*body.queues)
    with here.waits.place(asker.tenant):
        if here.bell is None:
            await unless_left(request, asyncio.sleep(body.seconds))
            return answers.WokenAnswer(woken=False, mark=None)
        if not here.bell.knows(asker.tenant, body.queues):
            # The worker announced itself to another process.
            await _expect(asker, here, body.worker, body.queues, EXPECT_SECONDS)
        waiting = here.bell.wait(asker.tenant, body.queues, body.mark, body.seconds)
        woken = await unless_left(request, waiting)
        return answers.WokenAnswer(woken=woken, mark=here.bell.mark(asker.tenant, body.queues))


async def _expect(asker: Asker, here: Here, worker: str, queues: list[str], seconds: float) -> None:
    worker = service_calls.worker_name(asker.tenant, worker)
    channels = await asker.ask(calls.wait(worker=worker, queues=queues, seconds=seconds))
    if here.bell is not None and seconds > 0:
        here.bell.listen(asker.tenant, dict(zip(queues, channels, strict=True)))


def _settlements(given: Sequence[bodies.SettlementBody]) -> list[Settlement]:
    return [
        bodies.settlement(one, canonical_text(one.result) if _has_result(one) else None)
        for one in given
    ]


def _has_result(one: bodies.SettlementBody) -> bool:
    """Null is a result, and none is none."""
    return one.outcome == "completed" and "result" in one.model_fields_set


def _told(
    operation: str,
    told: Sequence[WriteResult],
    names: Mapping[int, LeaseName | None],
    here: Here,
    note: Note,
) -> list[answers.HeldAnswer]:
    """As answers, and on record: above all who was refused, and in whose favour."""
    for one in told:
        here.metrics.worker_told(operation, one.answer)
        name = names.get(one.batch)
        note.step(
            operation,
            batch=one.batch if name is None else name.batch_id,
            queue=None if name is None else name.queue,
            run=None if name is None else name.run,
            attempt=None if name is None else name.attempt,
            conflicting_worker=one.owner if one.answer == "refused" else None,
            decision=one.answer,
            state=None if one.state is None else one.state.value,
            mismatch=one.mismatch or None,
        )
    if told:
        note.know(decision=sorted({one.answer for one in told}), count=len(told))
    return [answers.held(one) for one in told]
