"""One batch's story as people read it: `helixq batch show`, and the end of `helixq demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helixqueue.cli import show, times, unicode_diff

if TYPE_CHECKING:
    from datetime import datetime

    from helixqueue.records.batch import AttemptRow, BatchDetail, EventRow, RefusalRow


def tell(story: BatchDetail) -> None:
    _head(story)
    if story.leases:
        show.line("\nAttempts and their leases", "bold")
        show.table(
            ("attempt", "token", "worker", "claimed", "started", "ended", "how it ended"),
            [_lease(lease) for lease in story.leases],
        )
    if story.events:
        show.line("\nEvents", "bold")
        show.table(
            ("step", "at", "from", "to", "reason", "actor", "detail"),
            [_event(event) for event in story.events],
            [show.STYLES[event.to_state] for event in story.events],
        )
    if story.refusals:
        show.line("\nRefused writes", "bold")
        show.table(
            ("at", "who tried", "what", "with token", "who had it next", "why", "times"),
            [_refusal(refusal) for refusal in story.refusals],
            ["bold red"] * len(story.refusals),
        )
    if story.decisions:
        show.line("\nDecisions that changed no state", "bold")
        show.table(
            ("at", "what", "actor", "detail"),
            [(times.shown(d.at), d.kind, d.actor, d.detail or "") for d in story.decisions],
        )


def _head(story: BatchDetail) -> None:
    facts = {
        "batch": str(story.batch_id),
        "key": story.key,
        "state": _state(story),
        "tenant": story.tenant,
        "queue": story.queue or "",
        "identity": unicode_diff.shown(story.identity) if story.queue else "",
    }
    if story.raw != story.identity:
        facts["as it came"] = unicode_diff.shown(story.raw)
    facts |= {
        "revision": story.revision or "",
        "submitted": f"{times.full(story.created_at)} by {story.actor}" if story.actor else "",
        "finished": _by(story.finished_at, story.finished_by),
        "retired": times.full(story.retired_at),
        "failure": " ".join(part for part in (story.failure, story.detail) if part),
        "payload": story.payload or ("(erased)" if story.erased and story.queue else ""),
        "result": story.result or "",
    }
    for name, value in facts.items():
        if value:
            show.line(f"{name:<11} {value}", show.STYLES[story.state] if name == "state" else "")
    for difference in unicode_diff.differences(story.raw, story.identity):
        show.line(f"{'spelling':<11} {unicode_diff.told(difference)}")


def _state(story: BatchDetail) -> str:
    if story.worker is not None:
        return f"{story.state}, leased to {story.worker} until {times.full(story.deadline)}"
    if story.cause is not None:
        due = f" until {times.full(story.due)}" if story.due else ""
        return f"{story.state}, waiting: {story.cause}{due}"
    return f"{story.state}{' (retired)' if story.retired_at else ''}"


def _by(when: datetime | None, who: str | None) -> str:
    return times.full(when) + (f" by {who}" if who else "")


def _lease(lease: AttemptRow) -> tuple[str, ...]:
    end = "held now" if lease.end is None else lease.end
    if lease.ended_by not in {None, lease.worker}:
        end += f", by {lease.ended_by}"
    if lease.late:
        end += ", late"
    return (
        str(lease.attempt), f"{lease.epoch}.{lease.number}", lease.worker,
        times.shown(lease.claimed_at), times.clock(lease.started_at, lease.claimed_at),
        times.clock(lease.ended_at, lease.claimed_at),
        end,
    )  # fmt: skip


def _event(event: EventRow) -> tuple[str, ...]:
    return (
        str(event.version), times.shown(event.at), event.from_state or "(new)", event.to_state,
        f"{event.reason}{', late' if event.late else ''}", event.actor, event.detail or "",
    )  # fmt: skip


def _refusal(refusal: RefusalRow) -> tuple[str, ...]:
    return (
        times.shown(refusal.last_at), refusal.worker, refusal.operation,
        f"{refusal.epoch}.{refusal.number}", refusal.owner or "nobody", refusal.why,
        str(refusal.times),
    )  # fmt: skip
