"""Submitting, as plans: one, or any number in chunks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from helixqueue.errors import (
    Conflict,
    HelixError,
    InvalidIdentity,
    QueueClosed,
    Refused,
)
from helixqueue.identity import PART_SEPARATOR, diff, escaped
from helixqueue.operations.prepare import KnownQueue, noted, prepared, submission_of
from helixqueue.operations.steps import Execute, Sleep, Steps
from helixqueue.records.submission import Accepted, Submission, Submitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helixqueue.operations.backend import Backend
    from helixqueue.operations.batches import Operations
    from helixqueue.queues import Queue
    from helixqueue.records.queue import QueueRow
    from helixqueue.records.submission import Receipt, SubmissionRow, SubmittedRow
    from helixqueue.states import State

# After so many rows an event loop gets a moment for its other tasks.
BREATH_ROWS = 500
_ACCEPTED = frozenset(("new", "duplicate"))


def submit(
    desk: Operations,
    queue: Queue[Any, Any] | str,
    one: Submission,
    *,
    create: bool,
    within: object,
) -> Steps[Accepted[Any]]:
    known = yield from desk.known(queue, create=create)
    try:
        row = prepared(known, one)
        desk.book.check(row)
    except InvalidIdentity as error:
        yield from _note(desk, known, [noted(one.identity, error)])
        raise
    [answer] = yield from _send(desk, known, [row], within)
    if answer.error is not None:
        raise answer.error
    # What is not refused has both.
    receipt, state = cast("Receipt[Any]", answer.receipt), cast("State", answer.state)
    return Accepted(receipt, answer.decision, state, answer.differs)


@dataclass
class _Chunk:
    """Rows on their way, and the answers that need none."""

    book: Backend
    answers: list[Submitted[Any] | None] = field(default_factory=list)
    rows: list[SubmissionRow] = field(default_factory=list)
    refused: list[tuple[bytes, str]] = field(default_factory=list)
    chars: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.answers) >= self.book.chunk_rows or self.chars >= self.book.chunk_chars

    def add(self, row: SubmissionRow) -> bool:
        """Add a row if there is room; there always is for a first one."""
        chars = len(row.payload) + len(row.identity or "") + len(row.raw or "")
        if self.rows and self.chars + chars > self.book.chunk_chars:
            return False
        self.chars += chars
        self.rows.append(row)
        self.answers.append(None)
        return True

    def add_refused(self, identity: object, error: Refused) -> None:
        if isinstance(error, InvalidIdentity):
            self.refused.append(noted(identity, error))
        self.answers.append(Submitted(None, "refused", None, error=error))

    def complete(self, sent: list[Submitted[Any]]) -> Iterable[Submitted[Any]]:
        """All answers in the order of the input."""
        if len(sent) == len(self.answers):
            return sent
        rest = iter(sent)
        return (answer or next(rest) for answer in self.answers)


def submit_many(
    desk: Operations,
    queue: Queue[Any, Any] | str,
    submissions: Iterable[Submission | Mapping[str, Any]],
    *,
    create: bool,
    within: object,
) -> Steps[list[Submitted[Any]]]:
    """Each chunk commits by itself, unless it is within a caller's transaction."""
    known = yield from desk.known(queue, create=create)
    answers: list[Submitted[Any]] = []
    chunk = _Chunk(desk.book)
    for number, given in enumerate(submissions, 1):
        identity = None
        try:
            one = submission_of(given)
            identity = one.identity
            row = prepared(known, one)
            desk.book.check(row)
        except Refused as error:
            chunk.add_refused(identity, error)
        else:
            if not chunk.add(row):
                answers += yield from _send_chunk(desk, known, chunk, within)
                chunk = _Chunk(desk.book)
                chunk.add(row)
        if chunk.is_full:
            answers += yield from _send_chunk(desk, known, chunk, within)
            chunk = _Chunk(desk.book)
        elif number % BREATH_ROWS == 0:
            yield Sleep(0)
    answers += yield from _send_chunk(desk, known, chunk, within)
    return answers


def _send_chunk(
    desk: Operations, known: KnownQueue, chunk: _Chunk, within: object
) -> Steps[Iterable[Submitted[Any]]]:
    if chunk.refused:
        yield from _note(desk, known, chunk.refused)
    sent = (yield from _send(desk, known, chunk.rows, within)) if chunk.rows else []
    return chunk.complete(sent)


def _note(desk: Operations, known: KnownQueue, refused: list[tuple[bytes, str]]) -> Steps[None]:
    """Keep refused identities on record, in a transaction of ours.

    The refusal is the answer whether or not it can be noted now.
    """
    call = desk.calls.note_refused(
        tenant=desk.tenant, queue=known.row.name, refused=refused, actor=desk.actor
    )
    try:
        yield Execute(call)
    except HelixError:
        return


def _send(
    desk: Operations, known: KnownQueue, rows: list[SubmissionRow], within: object
) -> Steps[list[Submitted[Any]]]:
    call = desk.calls.submit(
        tenant=desk.tenant,
        queue=known.row.name,
        profile=known.row.profile,
        rows=rows,
        actor=desk.actor,
    )
    if within is None:
        # Without identity a repeat could not be told from other work, unless the call says so.
        replayable = getattr(call, "key", None) is not None or all(
            row.identity is not None for row in rows
        )
        answers = yield from desk.ask(call, replayable=replayable)
    else:
        answers = yield Execute(call, within)
    queue = known.row
    if any(answer.decision == "refused" and answer.error is None for answer in answers):
        queue = yield from _as_it_is_now(desk, known)
    return [
        Submitted(answer.receipt, answer.decision, answer.state, answer.differs)
        if answer.decision in _ACCEPTED
        else _judged(answer, row, queue)
        for answer, row in zip(answers, rows, strict=True)
    ]


def _as_it_is_now(desk: Operations, known: KnownQueue) -> Steps[QueueRow]:
    """The queue that refused, to say why: somebody may have changed it since we looked."""
    desk.forget(known.row.name)
    queue = yield from desk.ask(desk.calls.queue(tenant=desk.tenant, queue=known.row.name))
    return queue or known.row


def _judged(answer: SubmittedRow, row: SubmissionRow, queue: QueueRow) -> Submitted[Any]:
    error = answer.error
    if error is not None:
        pass
    elif answer.decision == "conflict":
        error = _conflict(answer, row, queue)
    elif answer.decision == "refused":
        error = _refusal(answer, row, queue)
    return Submitted(answer.receipt, answer.decision, answer.state, answer.differs, error)


def _conflict(answer: SubmittedRow, row: SubmissionRow, queue: QueueRow) -> Refused:
    stood = f"{_shown(row.identity)} of queue {queue.name} stands for another payload already"
    remedy = "send the same payload, or give this one a revision of its own"
    if answer.stored_payload is None:
        return Conflict(f"{stood}, which was erased; {remedy}", diff=[])
    changes = diff(json.loads(answer.stored_payload), json.loads(row.payload))
    places = ", ".join(change["path"] or "(all)" for change in changes[:3])
    return Conflict(f"{stood}; they differ at {places[:200]}; {remedy}", diff=changes)


def _refusal(answer: SubmittedRow, row: SubmissionRow, queue: QueueRow) -> Refused:
    note = answer.note or "refused"
    if row.identity is None and queue.unknown == "refuse":
        return InvalidIdentity(note, code="missing")
    if queue.closed:
        return QueueClosed(f"{note}; an operator opens it with `helixq queue set`")
    return Refused(note)


def _shown(identity: str | None) -> str:
    parts = [] if identity is None else identity.split(PART_SEPARATOR)
    return "'" + " / ".join(escaped(part) for part in parts)[:200] + "'"
