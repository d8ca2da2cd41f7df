"""Dead letters: list, show, redrive, discard."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import Path, Query
from starlette.responses import Response

from helixqueue.engine import letters
from helixqueue.operations import letters as operation_letters
from helixqueue.records.letter import LetterDetail, LetterReason, LetterStatus
from helixqueue.service.models import letters as models
from helixqueue.service.models import responses
from helixqueue.service.models.letters import RedriveRequest
from helixqueue.service.models.requests import NAME_PATTERN, Cursor, ReasonRequest
from helixqueue.service.problems import Problem
from helixqueue.service.routing import PrincipalDep, RequestLogDep, operation, router
from helixqueue.service.settings import MAX_PAGE

routes = router("letters")
LetterNumber = Annotated[int, Path(ge=1, lt=2**63, description="Number of the dead letter.")]
REASONS = get_args(LetterReason)


@routes.get(
    "/v1/letters",
    response_model=models.LetterPageResponse,
    name="list_letters",
    summary="List dead letters, newest first",
    **operation("read"),
)
async def list_letters(
    *,
    principal: PrincipalDep,
    status: Annotated[LetterStatus | None, Query()] = None,
    reason: Annotated[LetterReason | None, Query()] = None,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    after: Annotated[Cursor | None, Query(description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> models.LetterPageResponse:
    """Messages of intakes that could not become batches. Details need the scope payloads.

    A page reads a limited number of letters: it may be short or empty and still have a `next`.
    """
    page = await principal.run_steps(
        operation_letters.list_page(
            principal.operations,
            status=status,
            reason=reason,
            queue=queue,
            after=after,
            limit=limit,
        )
    )
    return models.LetterPageResponse(
        letters=[models.letter(row, details=principal.sees_payloads) for row in page.rows],
        next=page.next,
    )


@routes.get(
    "/v1/letters/{letter}",
    response_model=models.LetterDetailResponse,
    name="show_letter",
    summary="Show a dead letter",
    **operation("read", "no-such-letter"),
)
async def show_letter(letter: LetterNumber, principal: PrincipalDep) -> models.LetterDetailResponse:
    """Reason, source and number of deliveries; the message needs the scope payloads."""
    found = await _find(letter, principal)
    return models.letter_detail(found, details=principal.sees_payloads)


@routes.post(
    "/v1/letters/{letter}/redrive",
    response_model=responses.SubmittedResponse,
    name="redrive_letter",
    summary="Submit the message of a dead letter",
    **operation(
        "operate",
        "no-such-letter",
        "no-such-queue",
        "conflict",
        "invalid-identity",
        "invalid-payload",
        "refused",
        fenced=True,
    ),
)
async def redrive_letter(
    letter: LetterNumber, body: RedriveRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> Response:
    """The batch keeps the source of the letter, and the letter closes in the same transaction."""
    request_log.add(reason=body.reason)
    await _find(letter, principal)
    if body.queue is not None:
        principal.require_queue(body.queue)
    identity = tuple(body.identity) if isinstance(body.identity, list) else body.identity
    result = await principal.run_steps(
        operation_letters.redrive(
            principal.operations,
            letter,
            reason=body.reason,
            queue=body.queue,
            identity=identity,
            revision=body.revision,
        )
    )
    request_log.add(batch=result.receipt.batch_id, decision=result.decision)
    return responses.json_response(
        responses.submitted(
            result, values=principal.sees_payloads, request_id=request_log.request_id
        )
    )


@routes.post(
    "/v1/letters/{letter}/discard",
    response_model=models.DiscardResponse,
    name="discard_letter",
    summary="Discard a dead letter",
    **operation("operate", "no-such-letter", fenced=True),
)
async def discard_letter(
    letter: LetterNumber, body: ReasonRequest, principal: PrincipalDep, request_log: RequestLogDep
) -> models.DiscardResponse:
    """The bytes of the message are deleted, the record stays. A closed letter answers `refused`."""
    request_log.add(reason=body.reason)
    await _find(letter, principal)
    answers = await principal.run_steps(
        operation_letters.discard(principal.operations, [letter], body.reason)
    )
    return models.DiscardResponse(answer=answers[letter])


async def _find(letter: int, principal: PrincipalDep) -> LetterDetail:
    """The letter; of a token that is restricted to queues, only letters of those."""
    found = await principal.execute(letters.letter(letter, body=principal.sees_payloads))
    allowed = principal.grant.queues
    if found is None or (allowed is not None and found.row.queue not in allowed):
        raise Problem("no-such-letter", f"the tenant has no dead letter {letter}", got=str(letter))
    return found
