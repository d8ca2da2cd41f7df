"""Appending to user ledgers. The other operations are declared in `operations/ledgers.py`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import AfterValidator, BaseModel, Field, StrictInt

from helixqueue.operations import ledgers
from helixqueue.records.ledger import AppendDecision, Appended, NewEvent
from helixqueue.records.machine import KIND_PATTERN
from helixqueue.service.compute_threads import is_large
from helixqueue.service.models.requests import (
    NAME_PATTERN,
    IdentityText,
    Json,
    RequestModel,
    printable,
)
from helixqueue.service.principal import Principal
from helixqueue.service.problems import Problem
from helixqueue.service.routing import (
    PrincipalDep,
    RawBodyDep,
    RequestLogDep,
    operation,
    router,
)
from helixqueue.service.settings import MAX_ROWS

routes = router("ledgers")
LedgerName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Name of the ledger.", examples=["dispatch"])
]

KindText = Annotated[str, Field(pattern=KIND_PATTERN, examples=["CONFIRMED"])]
EntityValue = IdentityText | Annotated[tuple[IdentityText, ...], Field(min_length=1, max_length=16)]


class AppendRequest(RequestModel):
    entity: EntityValue = Field(examples=["drone-7"])
    seq: Annotated[StrictInt, Field(ge=1, lt=2**53)]  # JSON has no greater exact numbers
    kind: KindText
    payload: Json = Field(None, description="Any JSON.", examples=[{"pad": "north"}])
    node: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)] | None = (
        Field(None, description="Where the event was observed.", examples=["alp-1"])
    )

    def event(self) -> NewEvent:
        return NewEvent(self.entity, self.seq, self.kind, self.payload, self.node)


class AppendManyRequest(RequestModel):
    events: Annotated[list[AppendRequest], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]


class AppendedResponse(BaseModel):
    decision: AppendDecision
    key: str | None
    version: int | None = Field(description="Number of the event within its entity.")
    state: str | None = Field(description="State of the entity now.")
    seq: int | None = Field(description="Greatest seq of the entity.")
    rules: list[str] = Field(description="Violated rules.")
    diff: list[dict[str, Any]] = Field(description="Of a conflict; values need the scope payloads.")


class AppendManyResponse(BaseModel):
    appended: list[AppendedResponse]


def appended(answer: Appended, *, values: bool) -> AppendedResponse:
    """`values` includes those of payloads."""
    changes = answer.diff
    if not values:
        changes = tuple({name: op[name] for name in ("op", "path")} for op in changes)
    return AppendedResponse(
        **answer._asdict() | {"rules": list(answer.rules), "diff": list(changes)}
    )


@routes.post(
    "/v1/ledgers/{ledger}/events",
    response_model=AppendedResponse,
    name="append_event",
    summary="Append an event",
    **operation(
        "submit", "no-such-ledger", "invalid-identity", "invalid-payload", "refused", fenced=True
    ),
)
async def append_event(
    ledger: LedgerName,
    body: AppendRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
) -> AppendedResponse:
    """The status is 200 for every decision: read `decision`.

    `written` and `duplicate_suppressed_by_db` mean that the event is stored. `conflict`, `illegal`
    and `undecided` mean that this event is not stored.
    """
    ledgers.require_all_queues(principal.operations)
    row = ledgers.prepare_event(body.event(), None)  # refuses an invalid event with its problem
    [answer] = await _append(ledger, [body], principal, raw_body)
    request_log.add(ledger=ledger, decision=answer.decision)
    if answer.decision == "refused":
        raise Problem("refused", "; ".join(answer.rules), got=row.kind)
    return appended(answer, values=principal.sees_payloads)


@routes.post(
    "/v1/ledgers/{ledger}/chunks",
    response_model=AppendManyResponse,
    name="append_events",
    summary="Append up to 1,000 events",
    **operation("submit", "no-such-ledger", fenced=True),
)
async def append_events(
    ledger: LedgerName,
    body: AppendManyRequest,
    principal: PrincipalDep,
    request_log: RequestLogDep,
    raw_body: RawBodyDep,
) -> AppendManyResponse:
    """One answer per event, in the order of the request; an invalid event is `refused`."""
    ledgers.require_all_queues(principal.operations)
    answers = await _append(ledger, body.events, principal, raw_body)
    request_log.add(ledger=ledger, count=len(answers))
    return AppendManyResponse(
        appended=[appended(answer, values=principal.sees_payloads) for answer in answers]
    )


async def _append(
    ledger: str,
    bodies: list[AppendRequest],
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
