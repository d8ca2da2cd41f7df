"""Prints one batch in full: `helixq batch show`, and the end of `helixq demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.cli import show, times, unicode_diff
from helixqueue.identity import canonical_text
from helixqueue.records.batch import failure_text

if TYPE_CHECKING:
    from datetime import datetime

    from helixqueue.records.batch import AttemptRow, BatchDetail, EventRow, RefusalRow


def print_batch(batch: BatchDetail, why_waiting: str | None = None) -> None:
    _print_summary(batch, why_waiting)
    if batch.attempts:
        show.line("\nAttempts", "bold")
        show.table(
            ("attempt", "token", "worker", "claimed", "started", "ended", "outcome"),
            [_attempt_row(attempt, batch.created_at) for attempt in batch.attempts],
            optional=("started", "token"),
        )
    if batch.events:
        show.line("\nEvents", "bold")
        show.table(
            ("version", "time", "from", "to", "reason", "actor", "detail"),
            [_event_row(event, batch.created_at) for event in batch.events],
            [show.STYLES[event.to_state] for event in batch.events],
            optional=("version", "from"),
        )
    if batch.refusals:
        show.line("\nRefused writes", "bold")
        show.table(
            ("time", "worker", "operation", "token", "next owner", "count", "reason"),
            [_refusal_row(refusal, batch.created_at) for refusal in batch.refusals],
            ["bold red"] * len(batch.refusals),
            optional=("count", "token", "operation"),
        )
    if batch.sources:
        show.line("\nSources", "bold")
        show.table(
            ("source", "decision", "times", "actor"),
            [
                (f"{row.kind} {row.name} {row.id}", row.decision, str(row.times), row.actor)
                for row in batch.sources
            ],
        )
    if batch.decisions:
        show.line("\nDecisions without a state change", "bold")
        show.table(
            ("time", "decision", "times", "actor", "detail"),
            [
                (
                    show.clock(row.at, batch.created_at),
                    row.kind,
                    str(row.times),
                    row.actor,
                    row.detail or "",
                )
                for row in batch.decisions
            ],
        )


def _print_summary(batch: BatchDetail, why_waiting: str | None) -> None:
    facts = {
        "batch": str(batch.batch_id),
        "key": batch.key,
        "state": _state(batch),
        "waits": why_waiting or "",
        "tenant": batch.tenant,
        "queue": batch.queue or "",
        "identity": unicode_diff.identity_text(batch.identity) if batch.queue else "",
    }
    if batch.raw != batch.identity:
        facts["submitted as"] = unicode_diff.identity_text(batch.raw)
    facts |= {
        "revision": batch.revision or "",
        "submitted": f"{times.with_zone(batch.created_at)} by {batch.actor}" if batch.actor else "",
        "finished": _time_and_actor(batch.finished_at, batch.finished_by),
        "retired": times.with_zone(batch.retired_at),
        "failure": failure_text(batch.failure, batch.detail).partition("\n")[0],
        "payload": canonical_text(batch.payload) if batch.has_payload else _erased(batch),
        "result": canonical_text(batch.result) if batch.has_result else "",
    }
    show.facts(facts, {"state": show.STYLES[batch.state]})
    for difference in unicode_diff.differences(batch.raw, batch.identity):
        show.facts({"spelling    ": unicode_diff.difference_text(difference)})


def _erased(batch: BatchDetail) -> str:
    return "(erased)" if batch.erased and batch.queue else ""


def _state(batch: BatchDetail) -> str:
    if batch.worker is not None:
        return f"{batch.state}, leased to {batch.worker} until {times.with_zone(batch.deadline)}"
    if batch.cause is not None:
        due = f" until {times.with_zone(batch.due)}" if batch.due else ""
        return f"{batch.state}, waiting: {batch.cause}{due}"
    return f"{batch.state}{' (retired)' if batch.retired_at else ''}"


def _time_and_actor(time: datetime | None, actor: str | None) -> str:
    return times.with_zone(time) + (f" by {actor}" if actor else "")


def _attempt_row(lease: AttemptRow, day: datetime | None) -> tuple[str, ...]:
    outcome = "active" if lease.end is None else lease.end
    if lease.ended_by not in {None, lease.worker}:
        outcome += f", by {lease.ended_by}"
    if lease.late:
        outcome += ", late"
    return (
        str(lease.attempt), f"{lease.epoch}.{lease.number}", lease.worker,
        show.clock(lease.claimed_at, day),
        times.without_date(lease.started_at, lease.claimed_at),
        times.without_date(lease.ended_at, lease.claimed_at),
        outcome,
    )  # fmt: skip


def _event_row(event: EventRow, day: datetime | None) -> tuple[str, ...]:
    return (
        str(event.version), show.clock(event.at, day), event.from_state or "(new)",
        event.to_state, f"{event.reason}{', late' if event.late else ''}", event.actor,
        event.detail or "",
    )  # fmt: skip


def _refusal_row(refusal: RefusalRow, day: datetime | None) -> tuple[str, ...]:
    return (
        show.clock(refusal.last_at, day), refusal.worker, refusal.operation,
        f"{refusal.epoch}.{refusal.number}", refusal.owner or "(none)", str(refusal.times),
        refusal.why,
    )  # fmt: skip
