"""Dead letters: messages of intakes that could not become batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from helixqueue.errors import (
    Conflict,
    InvalidIdentity,
    InvalidPayload,
    NoSuchLetter,
    NoSuchQueue,
    Refused,
)  # fmt: skip
from helixqueue.operations import engine
from helixqueue.operations.instructions import Instructions
from helixqueue.operations.message import Poison, decode_fields, read_message, shown_fields
from helixqueue.operations.operation import operation
from helixqueue.operations.prepare import prepare
from helixqueue.records.letter import Discarded, LetterDetail, LetterReason, LetterRow, LetterStatus
from helixqueue.records.page import Page
from helixqueue.records.parameter import (
    Cursor,
    IdentityText,
    Limit,
    Param,
    QueueName,
    Reason,
)  # fmt: skip
from helixqueue.records.submission import Accepted

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.records.letter import StoredLetter
    from helixqueue.records.submission import SubmittedRow

Letter = Annotated[
    int, Param("Number of the letter.", example=7, least=1, most=2**63 - 1, metavar="LETTER")
]
Raw = Annotated[bool, Param("Include the bytes of the message.")]
Status = Annotated[
    LetterStatus | Literal["all"],
    Param("open, redriven, discarded, expired or all.", metavar="WORD"),
]
ReasonWord = Annotated[LetterReason, Param("Reason, such as json.", metavar="WORD")]
NewIdentity = Annotated[
    IdentityText | Annotated[list[IdentityText], Param("", length=16)],
    Param("Replace the identity.", metavar="TEXT"),
]
NewRevision = Annotated[
    str,
    Param("Submit it as new work, beside the batch that it conflicts with.", "2", length=255),
]


@operation("GET /v1/letters", scope="read")
def list_letters(
    operations: Operations,
    *,
    status: Status = "open",
    reason: ReasonWord | None = None,
    queue: QueueName | None = None,
    after: Cursor | None = None,
    limit: Limit = 50,
) -> Instructions[Page[LetterRow]]:
    """List messages that could not become batches, newest first.

    A page reads a limited number of letters: it may be short or empty and still have a `next`.
    """
    return operations.ask(
        engine.letters.letters(
            tenant=operations.tenant or None,
            status=None if status == "all" else status,
            reason=reason,
            queue=queue,
            after=after,
            limit=limit,
        )
    )


@operation("GET /v1/letters/{letter}", scope="read", raises=[NoSuchLetter])
def show_letter(
    operations: Operations, letter: Letter, *, raw: Raw = False
) -> Instructions[LetterDetail]:
    """Show a letter with the fields of its message.

    Bytes that are not UTF-8 are shown as escapes; `raw` adds the stored bytes, in JSON as base64.
    Detail, fields and bytes need the scope payloads.
    """
    row, body = yield from _find(operations, letter, body=operations.sees_payloads)
    fields = None if body is None else shown_fields(body)
    return LetterDetail.of(row, fields, body if raw else None)


@operation(
    "POST /v1/letters/{letter}/redrive",
    scope="operate",
    raises=[NoSuchLetter, NoSuchQueue, Conflict, InvalidIdentity, InvalidPayload],
    fenced=True,
)
def redrive_letter(
    operations: Operations,
    letter: Letter,
    *,
    reason: Reason,
    queue: QueueName | None = None,
    identity: NewIdentity | None = None,
    revision: NewRevision | None = None,
) -> Instructions[Accepted[Any]]:
    """Submit the message of a letter, with corrections.

    The batch keeps the source of the message, and the letter closes in the same transaction.
    """
    row, body = yield from _find(operations, letter, body=True)
    if queue is not None:
        operations.require_queue(queue)
    if row.status != "open":
        raise Refused(f"redrive: dead letter {letter} is {row.status}, not open")
    if body is None or not row.complete:
        raise Refused(
            f"redrive: dead letter {letter} has not the whole message ({row.size} bytes); "
            "send the message again"
        )
    try:
        message = read_message(decode_fields(body))
    except Poison as poison:
        raise Refused(f"redrive: the message is still invalid: {poison.detail}") from None
    name = queue or message.queue or row.queue
    if name is None:
        raise Refused("redrive: the message names no queue; pass one")
    # A login for several tenants need not name one: the letter has it.
    operations.tenant = operations.tenant or row.tenant
    known = yield from operations.known(name)
    submission = message.submission
    if identity is not None:
        parts = tuple(identity) if isinstance(identity, list) else identity
        submission = submission._replace(identity=parts)
    if revision is not None:
        submission = submission._replace(revision=revision)
    answer = yield from operations.ask(
        engine.letters.redrive_letter(
            letter=letter,
            reason=reason,
            queue=known.row.name,
            profile=known.row.profile,
            row=prepare(known, submission, operations.call_set.payload_bytes_max),
            actor=operations.actor,
        )
    )
    return _accepted(answer, letter)


@operation("POST /v1/letters/{letter}/discard", scope="operate", raises=[NoSuchLetter], fenced=True)
def discard_letter(
    operations: Operations, letter: Letter, *, reason: Reason
) -> Instructions[Discarded]:
    """Delete the message of a letter; its record stays.

    The answer is `ok`, `repeat`, or `refused` for a closed letter.
    """
    yield from _find(operations, letter)
    answers = yield from operations.ask(
        engine.letters.discard_letters(letters=[letter], reason=reason, actor=operations.actor)
    )
    return Discarded(letter, answers[letter])


def discard_letters(
    operations: Operations, letters: Sequence[int], reason: str
) -> Instructions[dict[int, str]]:
    """Discard several letters; the answer to an unknown one is `refused`."""
    answers: dict[int, str] = {}
    for letter in letters:
        try:
            discarded = yield from discard_letter(operations, letter, reason=reason)
            answers[letter] = discarded.answer
        except NoSuchLetter:
            answers[letter] = "refused"
    return answers


def _find(operations: Operations, letter: int, *, body: bool = False) -> Instructions[StoredLetter]:
    """The letter; of a token that is restricted to queues, only letters of those."""
    found = yield from operations.ask(engine.letters.letter(letter, body=body))
    if found is None or not operations.may_use(found.row.queue):
        raise NoSuchLetter(f"the tenant has no dead letter {letter}")
    return found


def _accepted(answer: SubmittedRow, letter: int) -> Accepted[Any]:
    if answer.decision in {"new", "duplicate"}:
        assert answer.receipt is not None  # noqa: S101 - of every accepted submission
        return Accepted(answer.receipt, answer.decision, answer.state, answer.differs)
    if answer.decision == "conflict":
        raise Conflict(
            f"redrive: the identity of dead letter {letter} was submitted with another payload; "
            "pass a revision to make new work of it, or discard it",
            diff=[],
        )
    raise Refused(f"redrive: {answer.note or 'refused'}")
