"""What the first pages show: a tenant's queues and figures, late writes, actions of people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from helixqueue.records.batch import AttemptRow, IdentityParts
from helixqueue.records.parameter import Payload
from helixqueue.records.series import Figures
from helixqueue.states import State

PARTS_SHOWN = " / "  # between the parts of an identity, for people
Condition = Literal["stalled", "failures", "paused", "flowing", "idle", "closed"]
Finding = Literal["batch", "worker", "fence", "letter", "queue"]


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """A queue now, and its figures of the last hour. Numbers are of the last run of the duty."""

    queue: str
    condition: Condition  # the worst that holds
    paused: bool
    pending: int
    oldest_seconds: float | None  # how long the oldest claimable batch has waited
    leased: int
    failed: int  # FAILED batches
    completed_today: int
    hour: Figures


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of a tenant."""

    now: datetime
    kept_at: datetime | None  # when the duty that keeps the figures last ran; None: never
    queues: tuple[QueueOverview, ...]  # problems first
    more_queues: int  # queues that are not listed
    hour: Figures
    today: Figures  # since midnight UTC
    workers_alive: int
    workers_known: int  # reported in the last day and have not ended
    slots: int | None  # of the workers that are alive; None: unknown
    leased: int  # batches that a worker holds, in the queues listed
    fences_in_doubt: int
    oldest_doubt_seconds: float | None
    letters: int  # open dead letters
    findings: int  # of reconciliation, not cleared: rows that contradict the ledger
    reconciled_at: datetime | None  # when the duty last compared ledger and leases


@dataclass(frozen=True, slots=True)
class LateWrite:
    """A late write that was refused, with both workers, and the attempts of its batch."""

    first_at: datetime
    last_at: datetime
    operation: str
    worker: str  # that tried
    owner: str | None  # that held the batch then
    why: str
    times: int
    batch_id: UUID
    queue: str
    identity: IdentityParts
    state: State  # of the batch now
    finished_at: datetime | None
    attempts: tuple[AttemptRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Activity:
    """An action of a person or an application."""

    at: datetime
    actor: str
    action: Literal[
        "set", "erased", "retried", "cancelled", "released", "recovered", "created", "revoked",
        "resolved", "corrected", "redriven", "discarded",
    ]  # fmt: skip
    subject: str  # batch, queue, feed, token, fence, letter, ...
    name: str | None  # of the queue, feed, token or fence, or of the letter's stream
    batches: int
    batch_id: UUID | None  # one of them
    detail: Annotated[str | None, Payload]  # the reason, or the settings as JSON
    key: str | None = None  # of the fence, or number of the letter


@dataclass(frozen=True, slots=True)
class Match:
    """Something that a search found."""

    kind: Finding
    name: str  # what a person calls it
    id: str  # what its page is called by
    queue: str | None = None
    state: str | None = None
