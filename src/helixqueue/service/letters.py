"""Dead letters: work that nobody tries any more, why, and how it is given another chance."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from starlette.responses import Response

from helixqueue.engine import calls, reads
from helixqueue.records.read_rows import Letter
from helixqueue.service import answers, letter_answers
from helixqueue.service.bodies import NAME_PATTERN, Cursor, Failure, RedriveBody, Time
from helixqueue.service.problems import Problem
from helixqueue.service.routing import Asker, Note, demands, router
from helixqueue.service.settings import MAX_PAGE

routes = router("letters")
REDRIVEN_UNLESS_SAID = 100


@routes.get(
    "/v1/letters",
    response_model=letter_answers.LettersAnswer,
    name="list_letters",
    summary="A page of dead letters, newest first",
    **demands("read"),
)
async def letters(
    *,
    asker: Asker,
    queue: Annotated[str | None, Query(pattern=NAME_PATTERN)] = None,
    failure: Annotated[Failure | None, Query()] = None,
    since: Annotated[Time | None, Query()] = None,
    before: Annotated[Time | None, Query()] = None,
    after: Annotated[Cursor | None, Query(description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
) -> Response:
    """Batches that failed for good, or as often as their queue lets them try.

    `since` and `before` mean when that was. A page looks at a bounded number of letters: it may be
    short, even empty, and have a `next`. What workers wrote is shown to the scope payloads.
    """
    page = await asker.ask(
        reads.letters(
            tenant=asker.tenant,
            queue=queue,
            failure=failure,
            since=since,
            before=before,
            after=after,
            limit=limit,
        )
    )
    told = [letter_answers.letter(one, details=asker.sees_payloads) for one in page.rows]
    return answers.as_json({"letters": told, "next": page.next})


@routes.get(
    "/v1/letters/{batch_id}",
    response_model=letter_answers.LetterStoryAnswer,
    name="show_letter",
    summary="One dead letter: its last failure, and every attempt",
    **demands("read", "no-such-letter"),
)
async def letter(*, batch_id: UUID, asker: Asker, note: Note) -> letter_answers.LetterStoryAnswer:
    """`/v1/batches/{batch_id}` has the rest of its story, also once it is no letter any more."""
    note.know(batch=batch_id)
    told = await asker.ask(reads.batch_detail(batch_id))
    found = None if told is None else Letter.of(told)
    if told is None or found is None:
        raise Problem(
            "no-such-letter", f"the tenant has no dead letter {batch_id}", got=str(batch_id)
        )
    values = asker.sees_payloads
    return letter_answers.LetterStoryAnswer(
        **letter_answers.letter(found, details=values),
        attempts=answers.story(told, values=values).attempts,
    )


@routes.post(
    "/v1/letters/redrive",
    response_model=letter_answers.RedrivenAnswer,
    name="redrive_letters",
    summary="Give dead letters all their tries again, by id or by queue",
    **demands("operate", fenced=True),
)
async def redrive(*, body: RedriveBody, asker: Asker, note: Note) -> letter_answers.RedrivenAnswer:
    """Each is answered by itself: `ok`, `repeat`, or `refused` with a note.

    Those of a queue are taken from the newest on, at most `limit` of them; name a time, `before`,
    so that what fails again meanwhile is not driven around. The ledger keeps the reason and the
    token's name.
    """
    note.know(queue=body.queue, reason=body.reason)
    ids, onward = list(dict.fromkeys(body.batch_ids or ())), None
    if body.queue is not None:
        page = await asker.ask(
            reads.letters(
                tenant=asker.tenant,
                queue=body.queue,
                failure=body.failure,
                before=body.before,
                after=body.after,
                limit=body.limit or REDRIVEN_UNLESS_SAID,
            )
        )
        ids, onward = [one.batch_id for one in page.rows], page.next
    verdicts = []
    if ids:
        verdicts = await asker.ask(
            calls.redrive(ids=ids, reason=body.reason, actor=asker.grant.name)
        )
    for one in verdicts:
        note.step("redrive", batch=one.batch_id, decision=one.answer, state=one.state)
    note.know(count=len(verdicts), decision=sorted({one.answer for one in verdicts}) or None)
    return letter_answers.RedrivenAnswer(
        answers=[answers.verdict(one) for one in verdicts], next=onward
    )
