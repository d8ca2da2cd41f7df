"""User ledgers: declare, list, append, read entities."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import Path, Query

from helixqueue.engine import ledgers as calls
from helixqueue.identity import identity_texts
from helixqueue.operations import ledgers
from helixqueue.records.ledger import (
    Appended,
    EntityState,
    LedgerDeclaration,
    LedgerRow,
)
from helixqueue.records.machine import Machine
from helixqueue.service.compute_threads import MAX_LOOP_BYTES
from helixqueue.service.models import ledgers as models
from helixqueue.service.models.requests import NAME_PATTERN, IdentityText
from helixqueue.service.principal import Principal
from helixqueue.service.problems import Problem
from helixqueue.service.routing import (
    BodyBytesDep,
    PrincipalDep,
    RequestLogDep,
    operation,
    router,
)
from helixqueue.service.settings import MAX_PAGE

routes = router("ledgers")
LedgerName = Annotated[
    str, Path(pattern=NAME_PATTERN, description="Name of the ledger.", examples=["dispatch"])
]
EntityQuery = Annotated[
    list[IdentityText],
    Query(min_length=1, max_length=16, description="The entity; repeated for several parts."),
]


@routes.get(
    "/v1/ledgers",
    response_model=models.LedgersResponse,
    name="list_ledgers",
    summary="List ledgers",
    **operation("read"),
)
async def list_ledgers(principal: PrincipalDep) -> models.LedgersResponse:
    """The ledgers of the tenant with their rules, by name."""
    require_all_queues(principal)
    return models.LedgersResponse(
        ledgers=await principal.execute(calls.ledgers(tenant=principal.tenant))
    )


@routes.get(
    "/v1/ledgers/{ledger}",
    response_model=LedgerRow,
    name="show_ledger",
    summary="Show the rules of a ledger, for every token that may use it",
    **operation("any", "no-such-ledger"),
)
async def show_ledger(ledger: LedgerName, principal: PrincipalDep) -> LedgerRow:
    """Kinds, arrows and options."""
    require_all_queues(principal)
    rows = await principal.execute(calls.ledgers(tenant=principal.tenant, name=ledger))
    if not rows:
        raise no_such_ledger(ledger)
    return rows[0]


@routes.put(
    "/v1/ledgers/{ledger}",
    response_model=LedgerRow,
    name="declare_ledger",
    summary="Declare a ledger",
    **operation("operate", "refused", fenced=True),
)
async def declare_ledger(
    ledger: LedgerName, body: models.LedgerRequest, principal: PrincipalDep
) -> LedgerRow:
    """Declaring it again may add kinds and arrows; other changes are refused."""
    require_all_queues(principal)
    declared = LedgerDeclaration(
        ledger,
        Machine(body.arrows, initial=body.initial),
        body.strict,
        body.bind_payload,
        tuple(body.ignore),
    )
    return await principal.run_steps(ledgers.declare(principal.operations, declared))


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
    body_bytes: BodyBytesDep,
) -> models.AppendedResponse:
    """The status is 200 for every decision: read `decision`.

    `written` and `duplicate` mean that the event is stored. `conflict`, `illegal` and `undecided`
    mean that this event is not stored.
    """
    require_all_queues(principal)
    row = ledgers.prepare_event(body.event(), None)  # refuses an invalid event with its problem
    [answer] = await _append(ledger, [body], principal, body_bytes)
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
    body_bytes: BodyBytesDep,
) -> models.AppendManyResponse:
    """One answer per event, in the order of the request; an invalid event is `refused`."""
    require_all_queues(principal)
    answers = await _append(ledger, body.events, principal, body_bytes)
    request_log.add(ledger=ledger, count=len(answers))
    return models.AppendManyResponse(
        appended=[models.appended(answer, values=principal.sees_payloads) for answer in answers]
    )


@routes.get(
    "/v1/ledgers/{ledger}/state",
    response_model=EntityState,
    name="show_entity",
    summary="Show the state of an entity",
    **operation("read", "no-such-ledger", "no-such-entity", "invalid-identity"),
)
async def show_entity(
    ledger: LedgerName, principal: PrincipalDep, entity: EntityQuery
) -> EntityState:
    """The kind of its event with the greatest seq, the number of its events and their hash."""
    require_all_queues(principal)
    found = await principal.run_steps(ledgers.state(principal.operations, ledger, tuple(entity)))
    if found is None:
        await _find(ledger, principal)
        raise Problem("no-such-entity", "the ledger has no event of this entity")
    return found


@routes.get(
    "/v1/ledgers/{ledger}/events",
    response_model=models.EntityEventsResponse,
    name="list_events",
    summary="List the events of an entity",
    **operation("read", "no-such-ledger", "invalid-identity"),
)
async def list_events(
    ledger: LedgerName,
    principal: PrincipalDep,
    entity: EntityQuery,
    after: Annotated[
        int, Query(ge=0, lt=2**31, description="`version` of the last event of the previous page.")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> models.EntityEventsResponse:
    """In the order in which they were written. A page has at most 16 MiB of payloads.

    The list has ended when a page is empty.
    """
    require_all_queues(principal)
    text, _ = identity_texts(tuple(entity), "text-v1")
    events = await principal.execute(
        calls.events(tenant=principal.tenant, ledger=ledger, entity=text, after=after, limit=limit)
    )
    if not events:
        await _find(ledger, principal)
    if not principal.sees_payloads:
        events = [replace(event, payload=None) for event in events]
    return models.EntityEventsResponse(events=events)


async def _append(
    ledger: str,
    bodies: list[models.AppendRequest],
    principal: Principal,
    body_bytes: int,
) -> list[Appended]:
    answers = await principal.run_steps(
        ledgers.append_many(principal.operations, ledger, [body.event() for body in bodies]),
        in_thread=body_bytes > MAX_LOOP_BYTES,
    )
    if all(answer.decision == "refused" for answer in answers):
        await _find(ledger, principal)
    return answers


async def _find(ledger: str, principal: Principal) -> None:
    if not await principal.execute(calls.ledgers(tenant=principal.tenant, name=ledger)):
        raise no_such_ledger(ledger)


def no_such_ledger(ledger: str) -> Problem:
    return Problem("no-such-ledger", f"the tenant has no ledger {ledger}", got=ledger)


def require_all_queues(principal: Principal) -> None:
    """A token that is restricted to queues has no ledgers."""
    if principal.grant.queues is not None:
        raise Problem(
            "forbidden",
            "the token is restricted to queues and does not permit ledgers",
            expected="a token without a list of queues",
            got="a token with one",
        )
