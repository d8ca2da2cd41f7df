"""Appending to user ledgers. The other operations are declared in `operations/ledgers.py`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from helixqueue.operations import ledgers
from helixqueue.records.ledger import Appended
from helixqueue.service.compute_threads import is_large
from helixqueue.service.models import ledgers as models
from helixqueue.service.models.requests import NAME_PATTERN
from helixqueue.service.principal import Principal
from helixqueue.service.problems import Problem
from helixqueue.service.routing import (
    PrincipalDep,
    RawBodyDep,
    RequestLogDep,
    operation,
    router,
)

routes = router("ledgers")
LedgerName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Name of the ledger.", examples=["dispatch"])
]


@routes.post(
    "/v1/ledgers/{ledger}/events",
    response_model=models.AppendedResponse,
    name="append_event",
    summary="Append an event",
    **operation(
        "submit", "no-such-ledger", "invalid-identity", "invalid-payload", "refused", fenced=True
    ),
)
async def append_event(
    ledger: LedgerName,
    body: models.AppendRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
) -> models.AppendedResponse:
    """The status is 200 for every decision: read `decision`.

    `written` and `duplicate` mean that the event is stored. `conflict`, `illegal` and `undecided`
    mean that this event is not stored.
    """
    ledgers.require_all_queues(principal.operations)
    row = ledgers.prepare_event(body.event(), None)  # refuses an invalid event with its problem
    [answer] = await _append(ledger, [body], principal, raw_body)
    request_log.add(ledger=ledger, decision=answer.decision)
    if answer.decision == "refused":
        raise Problem("refused", "; ".join(answer.rules), got=row.kind)
    return models.appended(answer, values=principal.sees_payloads)


@routes.post(
    "/v1/ledgers/{ledger}/chunks",
    response_model=models.AppendManyResponse,
    name="append_events",
    summary="Append up to 1,000 events",
    **operation("submit", "no-such-ledger", fenced=True),
)
async def append_events(
    ledger: LedgerName,
    body: models.AppendManyRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
) -> models.AppendManyResponse:
    """One answer per event, in the order of the request; an invalid event is `refused`."""
    ledgers.require_all_queues(principal.operations)
    answers = await _append(ledger, body.events, principal, raw_body)
    request_log.add(ledger=ledger, count=len(answers))
    return models.AppendManyResponse(
        appended=[models.appended(answer, values=principal.sees_payloads) for answer in answers]
    )


async def _append(
    ledger: str,
    bodies: list[models.AppendRequest],
    principal: Principal,
    raw_body: bytes,
) -> list[Appended]:
    answers = await principal.run_instructions(
        ledgers.append_many(principal.operations, ledger, [body.event() for body in bodies]),
        in_thread=is_large(raw_body),
    )
    if all(answer.decision == "refused" for answer in answers):
        await principal.run_instructions(ledgers.show_ledger(principal.operations, ledger))
    return answers
