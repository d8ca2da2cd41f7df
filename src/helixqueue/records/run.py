"""Runs: many batches from one spec, their counts, and what is left of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

from helixqueue.records.parameter import Payload

RunState = Literal[
    "expanding", "running", "stopping", "cancelling", "reopening", "done", "failed", "cancelled"
]
ENDED: tuple[RunState, ...] = ("done", "failed", "cancelled")


class RunAnswer(NamedTuple):
    """The answer to a call that starts, extends, cancels or retries a run."""

    answer: str  # new | same | conflict | occupied; ok | repeat | illegal | absent
    run: int | None
    name: str | None
    state: RunState | None
    appended: int | None
    note: str | None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run after a call: `appended` of its datums are stored."""

    run: int
    name: str
    state: RunState
    appended: int
    is_new: bool = True  # false: an earlier call did the same


@dataclass(frozen=True, slots=True)
class RunText:
    """What a worker executes for the batches of a run."""

    run: int
    name: str
    spec: str


@dataclass(frozen=True, slots=True)
class RunRow:
    run: int
    name: str
    tenant: str
    queue: str
    state: RunState
    datums: int
    appended: int
    pending: int
    running: int  # or assigned
    completed: int
    failed: int
    cancelled: int
    failures: dict[str, int]  # failed attempts by class, of the 20 most frequent classes
    tries: int
    egress: str  # as in the spec
    destination: str  # where it is stored
    blocked: str | None  # a file that cannot get its final name
    problem: str | None  # why it was stopped or cancelled
    actor: str
    key: str
    digest: str
    created_at: datetime
    deadline: datetime | None
    ended_at: datetime | None

    @property
    def ended(self) -> int:
        """Number of batches that have ended."""
        return self.completed + self.failed + self.cancelled

    def rate(self, now: datetime) -> float:
        """Batches that ended per second since the start."""
        seconds = ((self.ended_at or now) - self.created_at).total_seconds()
        return self.ended / seconds if seconds > 0 else 0.0

    def seconds_left(self, now: datetime) -> float | None:
        """Seconds until the end at this rate; None if nothing has ended."""
        rate = self.rate(now)
        return (self.datums - self.ended) / rate if rate and self.ended_at is None else None


@dataclass(frozen=True, slots=True)
class RunDetail(RunRow):
    """A run with its spec, which is null without the scope payloads."""

    spec: Annotated[str | None, Payload]  # as run
    received: Annotated[str | None, Payload]


@dataclass(frozen=True, slots=True)
class RunOutput:
    """A published file of a run."""

    batch_id: UUID
    datum: str
    path: str
    uri: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RunRoot:
    """Below `uri` runs read and, unless it is for inputs only, write; it is stored elsewhere."""

    uri: str
    stored_at: str
    is_input: bool
