"""List, show, redrive and discard dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.errors import Conflict, Refused
from helixqueue.operations.batch_actions import demand_reason
from helixqueue.operations.message import Poison, decode_fields, read_message
from helixqueue.operations.prepare import prepare
from helixqueue.records.submission import Accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.operations.batches import Operations
    from helixqueue.operations.steps import Steps
    from helixqueue.records.letter import LetterDetail, LetterPage
    from helixqueue.records.submission import SubmittedRow

PAGE_ROWS = 500


def list_page(
    operations: Operations,
    *,
    status: str | None,
    reason: str | None,
    queue: str | None,
    after: str | None,
    limit: int = PAGE_ROWS,
) -> Steps[LetterPage]:
    return operations.ask(
        operations.call_set.letters.letters(
            tenant=operations.tenant,
            status=status,
            reason=reason,
            queue=queue,
            after=after,
            limit=limit,
        )
    )


def show(operations: Operations, letter: int, *, body: bool) -> Steps[LetterDetail]:
    found: LetterDetail | None = yield from operations.ask(
        operations.call_set.letters.letter(_number(letter), body=body)
    )
    if found is None:
        raise Refused(f"there is no dead letter {letter}: check its number with `letter list`")
    return found


def redrive(
    operations: Operations,
    letter: int,
    *,
    reason: str,
    queue: str | None = None,
    identity: str | tuple[str, ...] | None = None,
    revision: str | None = None,
) -> Steps[Accepted[Any]]:
    """Submit the message of a letter again, with corrections; the letter closes with it."""
    demand_reason("redrive", reason)
    calls = operations.call_set.letters
    if hasattr(calls, "redrive"):  # the service does it
        answer = yield from operations.ask(
            calls.redrive(
                letter=letter, reason=reason, queue=queue, identity=identity, revision=revision
            )
        )
        return _accepted(answer, letter)
    detail = yield from show(operations, letter, body=True)
    if detail.row.status != "open":
        raise Refused(f"redrive: dead letter {letter} is {detail.row.status}, not open")
    if detail.body is None or not detail.row.complete:
        raise Refused(
            f"redrive: dead letter {letter} has not the whole message ({detail.row.size} bytes); "
            "send the message again"
        )
    try:
        message = read_message(decode_fields(detail.body))
    except Poison as poison:
        raise Refused(f"redrive: the message is still invalid: {poison.detail}") from None
    name = queue or message.queue or detail.row.queue
    if name is None:
        raise Refused("redrive: the message names no queue; pass one")
    known = yield from operations.known(name)
    submission = message.submission
    if identity is not None:
        submission = submission._replace(identity=identity)
    if revision is not None:
        submission = submission._replace(revision=revision)
    row = prepare(known, submission, operations.call_set.payload_bytes_max)
    answer = yield from operations.ask(
        calls.redrive_letter(
            letter=letter,
            reason=reason,
            queue=known.row.name,
            profile=known.row.profile,
            row=row,
            actor=operations.actor,
        )
    )
    return _accepted(answer, letter)


def discard(operations: Operations, letters: Sequence[int], reason: str) -> Steps[dict[int, str]]:
    """Discard letters: their bytes are deleted. The answer of each is ok, repeat or refused."""
    demand_reason("discard", reason)
    return operations.ask(
        operations.call_set.letters.discard_letters(
            letters=[_number(letter) for letter in letters], reason=reason, actor=operations.actor
        )
    )


def _accepted(answer: SubmittedRow, letter: int) -> Accepted[Any]:
    if answer.decision in {"new", "duplicate"}:
        assert answer.receipt is not None  # noqa: S101 - of every accepted submission
        return Accepted(answer.receipt, answer.decision, answer.state, answer.differs)
    if answer.error is not None:
        raise answer.error
    if answer.decision == "conflict":
        raise Conflict(
            f"redrive: the identity of dead letter {letter} was submitted with another payload; "
            "pass a revision to make new work of it, or discard it",
            diff=[],
        )
    raise Refused(f"redrive: {answer.note or 'refused'}")


def _number(letter: object) -> int:
    if not isinstance(letter, int) or isinstance(letter, bool) or not 0 < letter < 2**63:
        raise Refused(f"expected the number of a dead letter, got {ascii(letter)[:80]}")
    return letter
