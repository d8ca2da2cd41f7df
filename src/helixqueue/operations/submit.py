"""Submit one batch, or any number of batches in chunks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from helixqueue.errors import (
    Conflict,
    HelixError,
    InvalidIdentity,
    QueueClosed,
    Refused,
)
from helixqueue.identity import PART_SEPARATOR, diff, escaped
from helixqueue.log.events import log_refused_identities, log_without_identity
from helixqueue.operations.instructions import Execute, Instructions, Sleep
from helixqueue.operations.prepare import KnownQueue, prepare, refused_identity, submission_of
from helixqueue.records.submission import Accepted, Submission, Submitted

if TYPE_CHECKING:
    from helixqueue.operations.batches import Operations
    from helixqueue.operations.call_set import CallSet
    from helixqueue.queues import Queue
    from helixqueue.records.queue import QueueRow
    from helixqueue.records.submission import SubmissionRow, SubmittedRow

# An event loop runs its other tasks after this time. A number of rows would not bound it: a refused
# identity takes fifty times as long as a plain one, and a conflict as long as its payloads are.
YIELD_SECONDS = 0.01
_ACCEPTED = frozenset(("new", "duplicate"))


def submit(
    operations: Operations,
    queue: Queue[Any, Any] | str,
    submission: Submission,
    *,
    create: bool,
    within: object,
) -> Instructions[Accepted[Any]]:
    """Submit one batch; raise the error of a conflict or refusal."""
    known = yield from operations.known(queue, create=create)
    try:
        row = prepare(known, submission, operations.call_set.payload_bytes_max)
    except InvalidIdentity as error:
        refused = [refused_identity(submission.identity, error)]
        yield from _record_refused(operations, known, refused)
        raise
    call = operations.calls.submit(
        tenant=operations.tenant,
        queue=known.row.name,
        profile=known.row.profile,
        rows=[row],
        actor=operations.actor,
    )
    if within is None:
        # The engine recognises a repeat by identity or source, a service by its request key.
        names = (row.identity, row.source, getattr(call, "key", None))
        repeatable = names != (None, None, None)
        [answer] = yield from operations.ask(call, repeatable=repeatable)
    else:
        [answer] = yield Execute(call, within)
    if answer.decision in _ACCEPTED:
        if answer.is_unnamed:
            _log_without_identity(operations, known, [answer])
        return Accepted(
            answer.receipt, answer.decision, answer.state, answer.differs, None, answer.is_unnamed
        )
    [submitted] = yield from _explain(operations, known, [answer], [row])
    assert submitted.error is not None  # noqa: S101 - of a conflict or a refusal
    raise submitted.error


@dataclass
class _Chunk:
    """Rows to send, and the answers of rows that were refused before."""

    call_set: CallSet
    answers: list[Submitted[Any] | None] = field(default_factory=list)
    rows: list[SubmissionRow] = field(default_factory=list)
    refused: list[tuple[bytes, str]] = field(default_factory=list)
    chars: int = 0

    @property
    def is_full(self) -> bool:
        return (
            len(self.answers) >= self.call_set.chunk_rows or self.chars >= self.call_set.chunk_chars
        )

    def add(self, row: SubmissionRow) -> bool:
        """Add a row unless the chunk is full; the first row always fits."""
        chars = len(row.payload) + len(row.identity or "") + len(row.raw or "")
        if self.rows and self.chars + chars > self.call_set.chunk_chars:
            return False
        self.chars += chars
        self.rows.append(row)
        self.answers.append(None)
        return True

    def add_refused(self, identity: object, error: Refused) -> None:
        if isinstance(error, InvalidIdentity):
            self.refused.append(refused_identity(identity, error))
        self.answers.append(Submitted(None, "refused", None, error=error))

    def complete(self, sent: list[Submitted[Any]]) -> Iterable[Submitted[Any]]:
        """Return all answers in the order of the input."""
        if len(sent) == len(self.answers):
            return sent
        rest = iter(sent)
        return (answer or next(rest) for answer in self.answers)


def submit_many(
    operations: Operations,
    queue: Queue[Any, Any] | str,
    submissions: Iterable[Submission | Mapping[str, Any]],
    *,
    create: bool,
    within: object,
) -> Instructions[list[Submitted[Any]]]:
    """Submit in chunks; each chunk commits on its own, except within a caller's transaction."""
    known = yield from operations.known(queue, create=create)
    call_set = operations.call_set
    answers: list[Submitted[Any]] = []
    chunk = _Chunk(call_set)
    yield_at = time.monotonic() + YIELD_SECONDS
    for item in submissions:
        identity = None
        try:
            submission = submission_of(item)
            identity = submission.identity
            row = prepare(known, submission, call_set.payload_bytes_max)
        except Refused as error:
            chunk.add_refused(identity, error)
        else:
            if not chunk.add(row):
                answers += yield from _send_chunk(operations, known, chunk, within)
                chunk = _Chunk(call_set)
                chunk.add(row)
        if chunk.is_full:
            answers += yield from _send_chunk(operations, known, chunk, within)
            chunk = _Chunk(call_set)
        elif time.monotonic() > yield_at:
            yield Sleep(0)
            yield_at = time.monotonic() + YIELD_SECONDS
    answers += yield from _send_chunk(operations, known, chunk, within)
    return answers


def _send_chunk(
    operations: Operations, known: KnownQueue, chunk: _Chunk, within: object
) -> Instructions[Iterable[Submitted[Any]]]:
    if chunk.refused:
        yield from _record_refused(operations, known, chunk.refused)
    if not chunk.rows:
        return chunk.complete([])
    call = operations.calls.submit(
        tenant=operations.tenant,
        queue=known.row.name,
        profile=known.row.profile,
        rows=chunk.rows,
        actor=operations.actor,
    )
    if within is None:
        # The engine does not recognise a repeat without identity; a request key makes it safe.
        repeatable = getattr(call, "key", None) is not None or all(
            row.identity is not None or row.source is not None for row in chunk.rows
        )
        answers = yield from operations.ask(call, repeatable=repeatable)
    else:
        answers = yield Execute(call, within)
    _log_without_identity(operations, known, answers)
    return chunk.complete((yield from _explain(operations, known, answers, chunk.rows)))


def _log_without_identity(
    operations: Operations,
    known: KnownQueue,
    answers: list[SubmittedRow],
) -> None:
    batches = [
        answer.receipt.batch_id
        for answer in answers
        if answer.is_unnamed and answer.receipt is not None
    ]
    if operations.logs_identities:
        log_without_identity(known.row.name, batches)


def _record_refused(
    operations: Operations, known: KnownQueue, refused: list[tuple[bytes, str]]
) -> Instructions[None]:
    """Record refused identities, in a transaction of the client's own.

    The caller gets the refusal whether or not it can be recorded now.
    """
    if operations.logs_identities:
        log_refused_identities(known.row.name, refused)
    call = operations.calls.note_refused(
        tenant=operations.tenant, queue=known.row.name, refused=refused, actor=operations.actor
    )
    try:
        yield Execute(call)
    except HelixError:
        return


def _explain(
    operations: Operations,
    known: KnownQueue,
    answers: list[SubmittedRow],
    rows: list[SubmissionRow],
) -> Instructions[list[Submitted[Any]]]:
    """Turn answers of the engine into answers for the caller, with an error for each refusal."""
    queue = known.row
    if any(answer.decision == "refused" and answer.error is None for answer in answers):
        # The queue may have changed since it was read: read it again for the message.
        operations.forget(queue.name)
        queue = (yield from operations.find_queue(queue.name)) or queue
    explained: list[Submitted[Any]] = []
    yield_at = time.monotonic() + YIELD_SECONDS
    for answer, row in zip(answers, rows, strict=True):
        if answer.decision in _ACCEPTED:
            accepted = answer.receipt, answer.decision, answer.state, answer.differs
            explained.append(Submitted(*accepted, None, answer.is_unnamed))
            continue
        explained.append(_with_error(answer, row, queue))
        if time.monotonic() > yield_at:
            yield Sleep(0)
            yield_at = time.monotonic() + YIELD_SECONDS
    return explained


def _with_error(answer: SubmittedRow, row: SubmissionRow, queue: QueueRow) -> Submitted[Any]:
    error = answer.error
    if error is not None:
        pass
    elif answer.decision == "conflict":
        error = _conflict(answer, row, queue)
    elif answer.decision == "refused":
        error = _refusal(answer, queue)
    return Submitted(answer.receipt, answer.decision, answer.state, answer.differs, error)


def _conflict(answer: SubmittedRow, row: SubmissionRow, queue: QueueRow) -> Refused:
    stored = f"{_shown(row.identity)} was submitted to queue {queue.name} with another payload"
    remedy = "send the same payload, or use a new revision"
    if answer.stored_payload is None and answer.note is not None:
        return Conflict(f"{stored}; {answer.note}", diff=[])
    if answer.stored_payload is None:
        return Conflict(f"{stored}, which was erased; {remedy}", diff=[])
    changes = diff(orjson.loads(answer.stored_payload), orjson.loads(row.payload))
    places = ", ".join(change["path"] or "(all)" for change in changes[:3])
    return Conflict(f"{stored}; they differ at {places[:200]}; {remedy}", diff=changes)


def _refusal(answer: SubmittedRow, queue: QueueRow) -> Refused:
    note = answer.note or "refused"
    if note.startswith("no identity"):
        return InvalidIdentity(note, code="missing")
    if queue.closed:
        return QueueClosed(f"{note}; an operator opens it with `helixq queue set`")
    return Refused(note)


def _shown(identity: str | None) -> str:
    parts = [] if identity is None else identity.split(PART_SEPARATOR)
    return "'" + " / ".join(escaped(part) for part in parts)[:200] + "'"
