"""What clients get. An identity is a string, a list of strings if it has several parts, or null."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from helixqueue.records.lease import ResultWord
from helixqueue.records.submission import DecisionWord
from helixqueue.service.problems import ProblemAnswer, problem_of
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.engine.changes import Change
    from helixqueue.records.batch import ActionResult, BatchDetail, BatchRow, OutcomeRow
    from helixqueue.records.queue import QueueRow, QueueSummary
    from helixqueue.records.submission import Submitted
    from helixqueue.records.worker import WorkerRow

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
    last_worker: str | None = Field(description="Worker that held a finished batch last.")


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
    answer: ResultWord
    state: State | None
    note: str | None
    queue: str | None
    identity: IdentityAnswer
    revision: str | None


class ActionsAnswer(BaseModel):
    answers: list[VerdictAnswer]
    next: str | None = Field(description="More batches may match: pass it as `after`.")


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
    next: str | None


class WorkerAnswer(BaseModel):
    name: str
    free: dict[str, Any]
    first_seen: datetime
    last_seen: datetime
    leases: int


class WorkersAnswer(BaseModel):
    workers: list[WorkerAnswer]
    next: str | None


class HealthAnswer(BaseModel):
    status: str


def identity(parts: tuple[str, ...]) -> str | list[str] | None:
    return (parts[0] if len(parts) == 1 else list(parts)) if parts else None


def as_json(told: dict[str, Any], status: int = 200) -> Response:
    """Of plain values, not of models: a page or a chunk of those took longer than all the rest."""
    text = orjson.dumps(told, option=orjson.OPT_UTC_Z)
    return Response(text, status, media_type="application/json")


def submitted(one: Submitted[Any], *, values: bool, request_id: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "decision": one.decision,
        "receipt": None,
        "state": one.state,
        "differs": one.differs,
    }
    if one.receipt is not None:
        batch_id, key, fingerprint = one.receipt
        told["receipt"] = {"batch_id": batch_id, "key": key, "fingerprint": fingerprint}
    if one.error is not None:
        told["problem"] = problem_of(one.error, values=values).body(request_id)
    return told


def batch(row: BatchRow, *, details: bool) -> dict[str, Any]:
    """`details`: the client may read what workers wrote."""
    told = row._asdict() | {"identity": identity(row.identity), "raw": identity(row.raw)}
    return told if details else told | {"detail": None}


def story(told: BatchDetail, *, values: bool) -> StoryAnswer:
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


def verdict(one: ActionResult) -> VerdictAnswer:
    return VerdictAnswer(**asdict(one) | {"identity": identity(one.identity)})


def queue(row: QueueRow, sight: QueueSummary | None = None) -> QueueAnswer:
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
