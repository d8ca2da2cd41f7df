"""What clients get. An identity is a string, a list of strings if it has several parts, or null."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel, Field

from helixqueue.service.bodies import write_token
from helixqueue.service.problems import ProblemAnswer, problem_of
from helixqueue.states import State
from helixqueue.store.rows import AnswerWord, DecisionWord

if TYPE_CHECKING:
    from helixqueue.client.answers import Submitted
    from helixqueue.store.read_rows import (
        BatchRow,
        OutcomeRow,
        QueueSight,
        Story,
        WorkerRow,
    )
    from helixqueue.store.rows import Answer, LeaseRow, QueueRow, Verdict
    from helixqueue.store.serving import Change

IdentityAnswer = str | list[str] | None


class ReceiptAnswer(BaseModel):
    batch_id: UUID
    key: str
    fingerprint: str


class SubmittedAnswer(BaseModel):
    decision: DecisionWord
    receipt: ReceiptAnswer | None
    state: State | None
    differs: list[str]
    problem: ProblemAnswer | None = None


class ChunkAnswer(BaseModel):
    submitted: list[SubmittedAnswer]


class BatchAnswer(BaseModel):
    batch_id: UUID
    key: str
    tenant: str
    queue: str
    identity: IdentityAnswer
    raw: IdentityAnswer
    revision: str
    state: State
    attempt: int
    priority: int
    created_at: datetime
    worker: str | None
    deadline: datetime | None
    cause: str | None
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None


class PageAnswer(BaseModel):
    batches: list[BatchAnswer]
    next: str | None


class EventAnswer(BaseModel):
    version: int
    at: datetime
    from_state: State | None
    to_state: State
    reason: str
    actor: str
    attempt: int
    epoch: int | None
    number: int | None
    detail: str | None
    late: bool


class AttemptAnswer(BaseModel):
    attempt: int
    epoch: int | None
    number: int | None
    worker: str
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    end: str | None
    ended_by: str | None
    detail: str | None
    late: bool


class RefusalAnswer(BaseModel):
    operation: str
    worker: str
    owner: str | None
    epoch: int
    number: int
    owner_number: int | None
    state: State | None
    why: str
    times: int
    first_at: datetime
    last_at: datetime


class DecisionAnswer(BaseModel):
    at: datetime
    kind: str
    actor: str
    detail: str | None


class StoryAnswer(BaseModel):
    batch_id: UUID
    key: str
    fingerprint: str
    tenant: str
    queue: str | None
    identity: IdentityAnswer
    raw: IdentityAnswer
    profile: str | None
    revision: str | None
    priority: int | None
    run_at: datetime | None
    expires_at: datetime | None
    limit_key: str | None
    actor: str | None
    created_at: datetime | None
    state: State
    place: str
    version: int
    attempt: int
    worker: str | None
    deadline: datetime | None
    epoch: int | None
    number: int | None
    cause: str | None
    due: datetime | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None
    retired_at: datetime | None
    erased: bool
    has_payload: bool = False
    payload: Any = None
    has_result: bool = False
    result: Any = None
    events: list[EventAnswer]
    attempts: list[AttemptAnswer]
    refusals: list[RefusalAnswer]
    decisions: list[DecisionAnswer]


class OutcomeAnswer(BaseModel):
    batch_id: UUID
    state: State
    attempt: int | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None
    has_result: bool = Field(default=False, description="Null may be a result.")
    result: Any = None
    late: bool
    queue: str | None


class VerdictAnswer(BaseModel):
    batch_id: UUID
    answer: AnswerWord
    state: State | None
    note: str | None


class CountAnswer(BaseModel):
    number: int
    more: bool


class QueueAnswer(BaseModel):
    tenant: str
    name: str
    profile: str
    lease_seconds: float
    max_attempts: int
    backoff_seconds: float
    backoff_max_seconds: float
    key_limit: int
    unknown: str
    paused: bool
    closed: bool
    requires: dict[str, Any]
    payload_schema: dict[str, Any] | None
    result_schema: dict[str, Any] | None
    keep_completed_seconds: float
    keep_failed_seconds: float
    keep_cancelled_seconds: float
    keep_decisions_seconds: float
    counts: dict[str, CountAnswer] | None = None


class QueuesAnswer(BaseModel):
    queues: list[QueueAnswer]


class WorkerAnswer(BaseModel):
    name: str
    free: dict[str, Any]
    first_seen: datetime
    last_seen: datetime
    leases: int


class WorkersAnswer(BaseModel):
    workers: list[WorkerAnswer]


class LeaseAnswer(BaseModel):
    batch: int
    batch_id: UUID
    key: str
    token: str
    tenant: str
    queue: str
    identity: IdentityAnswer
    revision: str
    payload: Any
    attempt: int
    state: State
    deadline: datetime
    lease_seconds: float
    hint: list[int] = Field(description="Where it stood: `hints` of later claims begin behind it.")


class HeldAnswer(BaseModel):
    batch: int
    answer: AnswerWord
    owner: str | None
    state: State | None
    late: bool


class HeldsAnswer(BaseModel):
    answers: list[HeldAnswer]


class ClaimAnswer(BaseModel):
    leases: list[LeaseAnswer]
    settled: list[HeldAnswer]


class MarkAnswer(BaseModel):
    mark: str | None = Field(description="To wait with; null where nobody can be told.")


class WokenAnswer(MarkAnswer):
    woken: bool


class HealthAnswer(BaseModel):
    status: str


def identity(parts: tuple[str, ...]) -> str | list[str] | None:
    return (parts[0] if len(parts) == 1 else list(parts)) if parts else None


def submitted(one: Submitted[Any], *, values: bool, request_id: str) -> dict[str, Any]:
    """As plain values: a chunk has a thousand, and a model each would be half of its time."""
    told: dict[str, Any] = {
        "decision": one.decision,
        "receipt": None,
        "state": None if one.state is None else one.state.value,
        "differs": list(one.differs),
    }
    if one.receipt is not None:
        told["receipt"] = {
            "batch_id": str(one.receipt.batch_id),
            "key": one.receipt.key,
            "fingerprint": one.receipt.fingerprint,
        }
    if one.error is not None:
        problem = problem_of(one.error, values=values)
        told["problem"] = json.loads(bytes(problem.response(request_id).body))
    return told


def batch(row: BatchRow, *, details: bool) -> BatchAnswer:
    """`details`: the client may read what workers wrote."""
    # Not asdict(), which copies every value deeply: that was half of the time of a long page.
    told: dict[str, Any] = {name: getattr(row, name) for name in BatchAnswer.model_fields}
    told |= {"identity": identity(row.identity), "raw": identity(row.raw)}
    return BatchAnswer(**told | ({} if details else {"detail": None}))


def story(told: Story, *, values: bool) -> StoryAnswer:
    shape = asdict(told) | {"identity": identity(told.identity), "raw": identity(told.raw)}
    shape["attempts"] = shape.pop("leases")
    for name in ("payload", "result"):
        text = shape[name] if values else None
        shape[name] = None if text is None else json.loads(text)
        shape[f"has_{name}"] = text is not None
    if not values:
        for holder in (shape, *shape["events"], *shape["attempts"], *shape["decisions"]):
            holder["detail"] = None
    return StoryAnswer(**shape)


def outcome(row: OutcomeRow, *, values: bool) -> OutcomeAnswer:
    shape = asdict(row)
    text = shape["result"] if values else None
    shape |= {"result": None if text is None else json.loads(text), "has_result": text is not None}
    return OutcomeAnswer(**shape | ({} if values else {"detail": None}))


def verdict(one: Verdict) -> VerdictAnswer:
    return VerdictAnswer(**asdict(one))


def queue(row: QueueRow, sight: QueueSight | None = None) -> QueueAnswer:
    counts = None
    if sight is not None:
        counts = {
            name: CountAnswer(number=count.number, more=count.more)
            for name in ("ready", "waiting", "assigned", "running", "completed", "failed",
                         "cancelled")
            for count in [getattr(sight, name)]
        }  # fmt: skip
    return QueueAnswer(**asdict(row), counts=counts)


def worker(row: WorkerRow) -> WorkerAnswer:
    return WorkerAnswer(**asdict(row))


def lease(row: LeaseRow) -> LeaseAnswer:
    parts = () if row.identity is None else tuple(row.identity.split("\x1f"))
    return LeaseAnswer(
        batch=row.batch,
        batch_id=row.batch_id,
        key=f"v{row.key[0]}:{row.key[1:].hex()}",
        token=write_token(row.token),
        tenant=row.tenant,
        queue=row.queue,
        identity=identity(parts),
        revision=row.revision,
        payload=None if row.payload is None else json.loads(row.payload),
        attempt=row.attempt,
        state=row.state,
        deadline=row.deadline,
        lease_seconds=row.lease_seconds,
        hint=list(row.hint),
    )


def held(one: Answer) -> HeldAnswer:
    return HeldAnswer(**one._asdict())


def change(one: Change, *, details: bool) -> dict[str, Any]:
    return {
        "batch_id": str(one.batch_id),
        "queue": one.queue,
        "version": one.version,
        "at": one.at.isoformat(),
        "from_state": one.from_state,
        "to_state": one.to_state,
        "reason": one.reason,
        "actor": one.actor,
        "attempt": one.attempt,
        "detail": one.detail if details else None,
        "late": one.late,
    }
