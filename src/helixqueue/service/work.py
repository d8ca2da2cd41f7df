"""What workers do: claim, start, renew, settle, release. A lease's token is its only proof.

The answers are the engine's, batch by batch: ok, repeat, refused (somebody else has it now), busy,
illegal. So a refused write is an answer of 200 with the new owner's name, not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.identity import canonical_text
from helixqueue.service import answers, bodies
from helixqueue.service.bodies import (
    ClaimBody,
    HelloBody,
    LeasesBody,
    ReleaseBody,
    SettleBody,
)
from helixqueue.service.routing import Asker, Here, Note, demands, router
from helixqueue.store import calls, serving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helixqueue.store.rows import Answer, Settlement
    from helixqueue.store.serving import Name

routes = router("work")


@routes.post(
    "/v1/work/hello",
    status_code=204,
    summary="A worker says that it is there, and what it has free",
    **demands("work"),
)
async def hello(body: HelloBody, asker: Asker, note: Note) -> None:
    """For people: nothing rests on it, and a worker that never says it gets work all the same."""
    note.know(worker=body.worker)
    free = None if body.free is None else body.free.model_dump()
    await asker.ask(calls.hello(worker=serving.worker_name(asker.tenant, body.worker), free=free))


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
            settle=settle,
        )
    )
    settled = _told("settle", claimed.settled, names, here, note)
    here.names.learn(asker, claimed.leases)
    for row in claimed.leases:
        note.step("claim", batch=row.batch_id, queue=row.queue, attempt=row.attempt, decision="ok")
    note.know(count=len(claimed.leases))
    return answers.ClaimAnswer(
        leases=[answers.lease(row) for row in claimed.leases], settled=settled
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
    told = await asker.ask(calls.start(worker=body.worker, held=held))
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
    told = await asker.ask(calls.renew(worker=body.worker, held=held))
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
    told = await asker.ask(calls.release(worker=body.worker, held=held, detail=body.detail))
    return answers.HeldsAnswer(answers=_told("release", told, names, here, note))


def _settlements(given: Sequence[bodies.SettlementBody]) -> list[Settlement]:
    return [
        bodies.settlement(one, None if one.outcome == "failed" else canonical_text(one.result))
        for one in given
    ]


def _told(
    operation: str,
    told: Sequence[Answer],
    names: Mapping[int, Name | None],
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
        )
    if told:
        note.know(decision=sorted({one.answer for one in told}), count=len(told))
    return [answers.held(one) for one in told]
