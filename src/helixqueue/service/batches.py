"""Submitting, and reading what became of it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from helixqueue.engine import calls, reads
from helixqueue.errors import Conflict, Refused
from helixqueue.operations import submit as submit_operation
from helixqueue.records.submission import Submission, Submitted
from helixqueue.service import answers
from helixqueue.service.bodies import (
    NAME_PATTERN,
    ChunkBody,
    Failure,
    RefusedBody,
    SubmitBody,
    Time,
)
from helixqueue.service.problems import Problem
from helixqueue.service.queues import no_such_queue
from helixqueue.service.routing import Asker, Here, Note, QueueName, demands, router
from helixqueue.service.settings import MAX_PAGE
from helixqueue.states import State

routes = router("batches")


@routes.post(
    "/v1/queues/{queue}/batches",
    response_model=answers.SubmittedAnswer,
    status_code=201,
    summary="Submit one piece of work, once, however often this is asked",
    responses={
        200: {"model": answers.SubmittedAnswer, "description": "It was there: a duplicate."}
    },
    **demands(
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
    queue: QueueName, body: SubmitBody, asker: Asker, here: Here, note: Note
) -> Response:
    """201 when it is new, 200 when it was there already; the receipts are equal.

    The work is known by tenant, queue, identity (in any spelling) and revision. The same identity
    with another payload is a `conflict`, with the differences.
    """
    note.know(queue=queue)
    note.unrepeatable = body.identity is None
    asker.demand_queue(queue)
    await _known(asker, queue)
    await here.make_room(asker, queue, 1)
    try:
        done = await asker.do(
            submit_operation.submit(asker.desk, queue, _submission(body), create=False, within=None)
        )
    except Refused as refused:
        decision = "conflict" if isinstance(refused, Conflict) else "refused"
        note.know(decision=decision)
        here.metrics.decided(decision)
        raise
    here.metrics.decided(done.decision)
    note.know(batch=done.receipt.batch_id, decision=done.decision)
    told = answers.submitted(done, values=asker.sees_payloads, request_id=note.request_id)
    return answers.as_json(told, 201 if done.decision == "new" else 200)


@routes.post(
    "/v1/queues/{queue}/chunks",
    response_model=answers.ChunkAnswer,
    summary="Submit many; each row gets its own answer, in the order they came",
    **demands("submit", "no-such-queue", "queue-full", fenced=True),
)
async def submit_many(
    queue: QueueName, body: ChunkBody, asker: Asker, here: Here, note: Note
) -> Response:
    """Rows are judged one by one: new, duplicate, conflict or refused, each with its receipt.

    A row that is refused has its own `problem`, and does not hinder the others. All that is
    accepted is durable before this answers.
    """
    note.know(queue=queue, count=len(body.submissions))
    note.unrepeatable = any(one.identity is None for one in body.submissions)
    asker.demand_queue(queue)
    await _known(asker, queue)
    await here.make_room(asker, queue, len(body.submissions))
    rows = [_submission(one) for one in body.submissions]
    done: list[Submitted] = await asker.do(
        submit_operation.submit_many(asker.desk, queue, rows, create=False, within=None)
    )
    for one in done:
        here.metrics.decided(one.decision)
        batch_id = None if one.receipt is None else one.receipt.batch_id
        note.step("submit", queue=queue, batch=batch_id, decision=one.decision)
    note.know(decision=sorted({one.decision for one in done}))
    told = [
        answers.submitted(one, values=asker.sees_payloads, request_id=note.request_id)
        for one in done
    ]
    return answers.as_json({"submitted": told})


@routes.post(
    "/v1/queues/{queue}/refused",
    status_code=204,
    summary="Keep identities on record that the client refused by itself",
    **demands("submit", "no-such-queue"),
)
async def note_refused(queue: QueueName, body: RefusedBody, asker: Asker, note: Note) -> None:
    """For people who look for what never arrived. `raw` are the bytes as they came, in hex."""
    note.know(queue=queue, count=len(body.refused))
    asker.demand_queue(queue)
    await _known(asker, queue)
    await asker.ask(
        calls.note_refused(
            tenant=asker.tenant,
            queue=queue,
            refused=[(bytes.fromhex(one.raw), one.why) for one in body.refused],
            actor=asker.grant.name,
        )
    )


def _submission(body: SubmitBody) -> Submission:
    identity = tuple(body.identity) if isinstance(body.identity, list) else body.identity
    return Submission(
        identity,
        body.payload,
        revision=body.revision,
        priority=body.priority,
        run_at=body.run_at,
        expires_at=body.expires_at,
        limit_key=body.limit_key,
        requires=body.requires,
    )


async def _known(asker: Asker, queue: str) -> None:
    try:
        await asker.do(asker.desk.known(queue))
    except Refused as refused:
        if type(refused) is not Refused:
            raise  # about the token, or the name
        raise no_such_queue(queue) from None


@routes.get(
    "/v1/batches",
    response_model=answers.PageAnswer,
    name="list_batches",
    summary="A page of batches, newest first",
    **demands("read", "invalid-identity"),
)
async def batches(
    *,
    asker: Asker,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    state: Annotated[State | None, Query()] = None,
    failure: Annotated[Failure | None, Query()] = None,
    identity: Annotated[
        list[str] | None,
        Query(max_length=16, description="In any spelling; again for further parts."),
    ] = None,
    worker: Annotated[str | None, Query(min_length=1, max_length=255)] = None,
    run: Annotated[int | None, Query(ge=1, lt=2**63, description="Its number.")] = None,
    since: Annotated[Time | None, Query()] = None,
    until: Annotated[Time | None, Query()] = None,
    after: Annotated[
        str | None, Query(max_length=100, description="The `next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> Response:
    """All filters apply; pass `next` of one page as `after` to get the following page.

    Finished states are listed by the time of their end, all others by the time of submission;
    `since` and `until` (exclusive) refer to that time. `failure` implies the state FAILED.
    A page looks at a bounded number of batches: it may be short, even empty, and have a `next`.
    Payloads are not shown here; what workers wrote about failures is, to the scope payloads.
    """
    named = None
    if identity:
        named = identity[0] if len(identity) == 1 else tuple(identity)
    page = await asker.ask(
        reads.batches(
            tenant=asker.tenant,
            queue=queue,
            state=state,
            failure=failure,
            identity=named,
            worker=worker,
            run=run,
            since=since,
            until=until,
            after=after,
            limit=limit,
        )
    )
    told = [answers.batch(row, details=asker.sees_payloads) for row in page.rows]
    return answers.as_json({"batches": told, "next": page.next})


@routes.get(
    "/v1/batches/{batch_id}",
    response_model=answers.StoryAnswer,
    name="show_batch",
    summary="One batch's whole story: attempts, events, refusals, decisions",
    **demands("read", "no-such-batch"),
)
async def batch(
    *,
    batch_id: UUID,
    asker: Asker,
    note: Note,
    payload: Annotated[
        bool, Query(description="With payload and result; needs the scope payloads.")
    ] = False,
) -> answers.StoryAnswer:
    """Also of a batch that ended long ago, as far as the ledger is kept.

    Refusals are writes that came with a stale token, and name both workers.
    """
    note.know(batch=batch_id)
    if payload:
        asker.demand("payloads")
    told = await asker.ask(reads.batch_detail(batch_id, payload=payload))
    if told is None:
        raise no_such_batch(batch_id)
    note.know(attempt=told.attempt, worker=told.worker)
    return answers.story(told, values=asker.sees_payloads)


@routes.get(
    "/v1/batches/{batch_id}/outcome",
    response_model=answers.OutcomeAnswer,
    name="show_outcome",
    summary="Where a batch stands, and what it ended with",
    **demands("read", "no-such-batch"),
)
async def outcome(
    *,
    batch_id: UUID,
    asker: Asker,
    note: Note,
    result: Annotated[
        bool | None,
        Query(description="With its result; needs the scope payloads. Unless said: as it may."),
    ] = None,
) -> answers.OutcomeAnswer:
    """What to ask while waiting: cheap, and without the story.

    The result is shown to the scope payloads.
    """
    note.know(batch=batch_id)
    if result:
        asker.demand("payloads")
    wanted = asker.sees_payloads and result is not False
    [found] = await asker.ask(reads.outcomes(ids=[batch_id], results=wanted))
    if found is None:
        raise no_such_batch(batch_id)
    return answers.outcome(found, values=asker.sees_payloads)


def no_such_batch(batch_id: UUID) -> Problem:
    return Problem("no-such-batch", f"the tenant has no batch {batch_id}", got=str(batch_id))
