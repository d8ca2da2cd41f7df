"""Queues and workers, as people see and set them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query

from helixqueue.engine import calls, reads, service_calls
from helixqueue.queues import Schema, checked_requires
from helixqueue.service import answers
from helixqueue.service.bodies import QueueBody, ReasonBody, Time, Worker
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, QueueName, demands, router
from helixqueue.service.settings import MAX_PAGE

routes = router("queues")
CountTo = Annotated[
    int, Query(ge=0, le=10_000, description="Nothing is counted further than this.")
]
# What a page counts in all: hundreds of deep queues may outlast the time a statement has.
COUNTED_MAX: Final = 500_000


@routes.get(
    "/v1/queues",
    response_model=answers.QueuesAnswer,
    name="list_queues",
    summary="A page of queues with their settings, and how much stands where",
    **demands("read"),
)
async def queues(
    asker: Asker,
    count_to: CountTo = 1_000,
    after: Annotated[
        str | None, Query(max_length=130, description="The `next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> answers.QueuesAnswer:
    """By name. Counts stop at `count_to` and say so: what is deep is not counted to its end.

    A page of more than 50 queues counts less far: to 1,000 with 500 queues.
    """
    bound = min(count_to, COUNTED_MAX // limit)
    page = await asker.ask(reads.queues(tenant=asker.tenant, bound=bound, after=after, limit=limit))
    told = [answers.queue(one.settings, one) for one in page.rows]
    return answers.QueuesAnswer(queues=told, next=page.next)


@routes.get(
    "/v1/queues/{queue}",
    response_model=answers.QueueAnswer,
    name="show_queue",
    summary="One queue",
    **demands("read", "no-such-queue"),
)
async def queue(
    queue: QueueName, asker: Asker, note: Note, count_to: CountTo = 1_000
) -> answers.QueueAnswer:
    """Its settings and schemas, and how much of its work stands where."""
    note.know(queue=queue)
    page = await asker.ask(reads.queues(tenant=asker.tenant, queue=queue, bound=count_to))
    if not page.rows:
        raise no_such_queue(queue)
    return answers.queue(page.rows[0].settings, page.rows[0])


@routes.get(
    "/v1/queues/{queue}/settings",
    response_model=answers.QueueAnswer,
    name="show_settings",
    summary="One queue's settings, for every token that may use it",
    **demands("any", "no-such-queue"),
)
async def settings(queue: QueueName, asker: Asker, note: Note) -> answers.QueueAnswer:
    """What a client needs to prepare submissions, and a worker to check results; no counts."""
    note.know(queue=queue)
    asker.demand_queue(queue)
    row = await asker.ask(calls.queue(tenant=asker.tenant, queue=queue))
    if row is None:
        raise no_such_queue(queue)
    return answers.queue(row)


@routes.put(
    "/v1/queues/{queue}",
    response_model=answers.QueueAnswer,
    summary="Declare a queue, or change what is named",
    **demands("operate", "invalid-payload", fenced=True),
)
async def set_queue(
    queue: QueueName, body: QueueBody, asker: Asker, note: Note
) -> answers.QueueAnswer:
    """What is not named stays as it is.

    A profile is set once: another one would take known identities for new ones.
    """
    settings = body.model_dump(exclude={"reason"}, exclude_none=True)
    if "requires" in settings:
        settings["requires"] = checked_requires(settings["requires"])
    for name in ("payload_schema", "result_schema"):
        if name in settings:
            Schema(settings[name])  # says what is wrong with it, if anything is
    return await _set(queue, settings, body.reason, asker, note)


@routes.post(
    "/v1/queues/{queue}/pause",
    response_model=answers.QueueAnswer,
    name="pause_queue",
    summary="Hand out no more work; what is leased goes on",
    **demands("operate", "no-such-queue", fenced=True),
)
async def pause(
    queue: QueueName, body: ReasonBody, asker: Asker, note: Note
) -> answers.QueueAnswer:
    """Submissions are still taken. The reason is kept with the token's name."""
    return await _switch(queue, body, asker, note, paused=True)


@routes.post(
    "/v1/queues/{queue}/resume",
    response_model=answers.QueueAnswer,
    name="resume_queue",
    summary="Hand out work again",
    **demands("operate", "no-such-queue", fenced=True),
)
async def resume(
    queue: QueueName, body: ReasonBody, asker: Asker, note: Note
) -> answers.QueueAnswer:
    """What waited is handed out in its old order."""
    return await _switch(queue, body, asker, note, paused=False)


@routes.get(
    "/v1/workers",
    response_model=answers.WorkersAnswer,
    name="list_workers",
    summary="A page of workers that said hello over HTTP, by name",
    **demands("read"),
)
async def workers(
    asker: Asker,
    since: Annotated[Time | None, Query(description="Only those that said hello since.")] = None,
    after: Annotated[Worker | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> answers.WorkersAnswer:
    """With what they said they have free, and how many leases they hold now.

    A page looks at a bounded number of workers: it may be short, even empty, and have a `next`.
    """
    page = await asker.ask(
        service_calls.tenant_workers(tenant=asker.tenant, since=since, after=after, limit=limit)
    )
    told = [answers.worker(row) for row in page.rows]
    return answers.WorkersAnswer(workers=told, next=page.next)


async def _switch(
    queue: str, body: ReasonBody, asker: Asker, note: Note, *, paused: bool
) -> answers.QueueAnswer:
    # Pausing is of a queue that is there; PUT is what declares one. Queues are never deleted.
    if await asker.ask(calls.queue(tenant=asker.tenant, queue=queue)) is None:
        raise no_such_queue(queue)
    return await _set(queue, {"paused": paused}, body.reason, asker, note)


async def _set(
    queue: str, settings: dict[str, Any], reason: str, asker: Asker, note: Note
) -> answers.QueueAnswer:
    note.know(queue=queue, reason=reason)
    row = await asker.run(
        calls.set_queue(
            tenant=asker.tenant, queue=queue, actor=asker.grant.name, reason=reason, **settings
        )
    )
    asker.desk.forget(queue)
    return answers.queue(row)


def no_such_queue(queue: str) -> Problem:
    return Problem("no-such-queue", f"the tenant has no queue {queue}", got=queue)
