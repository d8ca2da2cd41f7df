"""What happened to a batch, in one sentence and its reason: only what the ledger shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from helixqueue.dashboard import formats
from helixqueue.dashboard.timeline import deliveries
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.batch import AttemptRow, BatchDetail, DecisionRow

_ENDED = {
    "lost": "stopped renewing its lease and lost it",
    "released": "returned the batch",
    "failed": "failed",
    "cancelled": "held it when it was cancelled",
    "recovered": "lost its lease when the database was recovered",
}


class Verdict(NamedTuple):
    shape: str
    title: str
    reason: Markup
    deliveries: int
    ran: int  # attempts that started
    effects: int
    refused: int  # writes


def verdict(batch: BatchDetail) -> Verdict:
    ran = sum(attempt.started_at is not None for attempt in batch.attempts)
    refused = sum(refusal.times for refusal in batch.refusals)
    effects = int(batch.state is State.COMPLETED)
    shape, title = _title(batch, ran)
    arrivals = max(1, sum(delivery.times for delivery in deliveries(batch)))
    return Verdict(shape, title, _reason(batch), arrivals, ran, effects, refused)


def repeats_without_source(batch: BatchDetail) -> list[DecisionRow]:
    """Decisions about deliveries that are not listed as sources of the batch."""
    sourced = Counter[str]()
    for source in batch.sources:
        sourced[source.actor] += source.times - (source.decision == "new")
    found = []
    for row in batch.decisions:
        listed = min(row.times, sourced[row.actor]) if row.kind == "duplicate" else 0
        sourced[row.actor] -= listed
        if listed < row.times:
            found.append(replace(row, times=row.times - listed))
    return found


def _title(batch: BatchDetail, ran: int) -> tuple[str, str]:
    """Shape and sentence."""
    waits = "Waits for a worker"
    if batch.attempts:
        waits = f"Waits again, after {formats.counted(len(batch.attempts), 'lease')}"
    titles = {
        State.COMPLETED: f"Ran {formats.times(max(ran, 1))}, took effect once",
        State.FAILED: f"Failed after {formats.counted(batch.attempt, 'attempt')}",
        State.CANCELLED: "Cancelled: it took no effect",
        State.RUNNING: f"Runs now, for the {_ordinal(batch.attempt)} time",
        State.ASSIGNED: "Assigned, and about to run",
        State.PENDING: waits,
    }
    return "OK" if batch.state is State.COMPLETED else batch.state, titles[batch.state]


def _ordinal(number: int) -> str:
    words = ("first", "second", "third", "fourth", "fifth")
    return words[number - 1] if 1 <= number <= len(words) else f"{number}th"


def _reason(batch: BatchDetail) -> Markup:
    sentences = [_ended(attempt) for attempt in batch.attempts[-3:] if attempt.end in _ENDED]
    more = len(batch.attempts) > 1
    last = batch.attempts[-1] if batch.attempts else None
    if last is not None and last.end == "completed":
        verb = "took over and completed" if more else "completed"
        late = Markup(", after its lease had ended and before another worker got it")
        sentences.append(
            Markup("<b>{}</b> {} the batch{}.").format(last.worker, verb, late if last.late else "")
        )
    elif last is not None and last.end is None:
        sentences.append(Markup("<b>{}</b> holds it now.").format(last.worker))
    if batch.state is State.CANCELLED and batch.finished_by:
        sentences.append(Markup("<b>{}</b> cancelled it.").format(batch.finished_by))
    late_writers = list(dict.fromkeys(refusal.worker for refusal in batch.refusals))[:3]
    if late_writers:
        names = Markup(" and ").join(Markup("<b>{}</b>").format(name) for name in late_writers)
        sentences.append(
            Markup("When {} came back and tried to write, the write was refused.").format(names)
        )
    if not sentences:
        sentences.append(Markup("No worker has claimed it yet."))
    return Markup(" ").join(sentences)


def _ended(attempt: AttemptRow) -> Markup:
    return Markup("<b>{}</b> {}.").format(attempt.worker, _ENDED[str(attempt.end)])
