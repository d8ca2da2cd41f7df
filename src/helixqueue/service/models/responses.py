"""Response bodies. An identity is a string, a list of strings if it has several parts, or null."""

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
from helixqueue.service.problems import ProblemResponse, problem_of
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.engine.changes import Change
    from helixqueue.records.batch import ActionResult, BatchDetail, BatchRow, OutcomeRow
    from helixqueue.records.queue import QueueRow, QueueSummary
    from helixqueue.records.submission import Submitted
    from helixqueue.records.worker import WorkerRow

IdentityValue = str | list[str] | None


class ReceiptResponse(BaseModel):
    batch_id: UUID
    key: str
    fingerprint: str


class SubmittedResponse(BaseModel):
    decision: DecisionWord
    receipt: ReceiptResponse | None
    state: State | None
    differs: list[str]
    problem: ProblemResponse | None = None


class SubmitManyResponse(BaseModel):
    submitted: list[SubmittedResponse]


class BatchResponse(BaseModel):
    batch_id: UUID
    key: str
    tenant: str
    queue: str
    identity: IdentityValue
    raw: IdentityValue
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


class BatchPageResponse(BaseModel):
    batches: list[BatchResponse]
    next: str | None


class EventResponse(BaseModel):
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


class AttemptResponse(BaseModel):
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


class RefusalResponse(BaseModel):
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


class DecisionResponse(BaseModel):
    at: datetime
    kind: str
    actor: str
    detail: str | None


class BatchDetailResponse(BaseModel):
    batch_id: UUID
    key: str
    fingerprint: str
    tenant: str
    queue: str | None
    identity: IdentityValue
    raw: IdentityValue
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
    events: list[EventResponse]
    attempts: list[AttemptResponse]
    refusals: list[RefusalResponse]
    decisions: list[DecisionResponse]


class OutcomeResponse(BaseModel):
    batch_id: UUID
    state: State
    attempt: int | None
    finished_at: datetime | None
    finished_by: str | None
    failure: str | None
    detail: str | None
    has_result: bool = Field(default=False, description="Distinguishes a null result from nrow.")
    result: Any = None
    late: bool
    queue: str | None


class ActionResponse(BaseModel):
    batch_id: UUID
    answer: ResultWord
    state: State | None
    note: str | None
    queue: str | None
    identity: IdentityValue
    revision: str | None


class ActionsResponse(BaseModel):
    answers: list[ActionResponse]
    next: str | None = Field(description="More batches may match: pass it as `after`.")


class CountResponse(BaseModel):
    number: int
    more: bool


class QueueResponse(BaseModel):
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
    counts: dict[str, CountResponse] | None = None


class QueuePageResponse(BaseModel):
    queues: list[QueueResponse]
    next: str | None


class WorkerResponse(BaseModel):
    name: str
    free: dict[str, Any]
    first_seen: datetime
    last_seen: datetime
    leases: int


class WorkerPageResponse(BaseModel):
    workers: list[WorkerResponse]
    next: str | None


class HealthResponse(BaseModel):
    status: str


def identity(parts: tuple[str, ...]) -> str | list[str] | None:
    return (parts[0] if len(parts) == 1 else list(parts)) if parts else None


def json_response(content: dict[str, Any], status: int = 200) -> Response:
    """Serialize plain values: models took most of the time of a page or a bulk submit."""
    text = orjson.dumps(content, option=orjson.OPT_UTC_Z)
    return Response(text, status, media_type="application/json")


def submitted(result: Submitted[Any], *, values: bool, request_id: str) -> dict[str, Any]:
    content: dict[str, Any] = {
        "decision": result.decision,
        "receipt": None,
        "state": result.state,
        "differs": result.differs,
    }
    if result.receipt is not None:
        batch_id, key, fingerprint = result.receipt
        content["receipt"] = {"batch_id": batch_id, "key": key, "fingerprint": fingerprint}
    if result.error is not None:
        content["problem"] = problem_of(result.error, values=values).body(request_id)
    return content


def batch(row: BatchRow, *, details: bool) -> dict[str, Any]:
    """`details` includes the failure details that workers wrote."""
    content = row._asdict() | {"identity": identity(row.identity), "raw": identity(row.raw)}
    return content if details else content | {"detail": None}


def batch_detail(row: BatchDetail, *, values: bool) -> BatchDetailResponse:
    """`values` includes payload, result and details."""
    fields = asdict(row) | {"identity": identity(row.identity), "raw": identity(row.raw)}
    fields["attempts"] = fields.pop("leases")
    for name in ("payload", "result"):
        text = fields[name] if values else None
        fields[name] = None if text is None else json.loads(text)
        fields[f"has_{name}"] = text is not None
    if not values:
        for part in (fields, *fields["events"], *fields["attempts"], *fields["decisions"]):
            part["detail"] = None
    return BatchDetailResponse(**fields)


def outcome(row: OutcomeRow, *, values: bool) -> OutcomeResponse:
    fields = asdict(row)
    text = fields["result"] if values else None
    fields |= {"result": None if text is None else json.loads(text), "has_result": text is not None}
    return OutcomeResponse(**fields | ({} if values else {"detail": None}))


def action(result: ActionResult, *, with_identity: bool) -> ActionResponse:
    """The answer; queue, identity and revision only for a token that may read batches."""
    shown = {"identity": identity(result.identity)}
    if not with_identity:
        shown = {"queue": None, "identity": None, "revision": None}
    return ActionResponse(**asdict(result) | shown)


def queue(row: QueueRow, summary: QueueSummary | None = None) -> QueueResponse:
    counts = None
    if summary is not None:
        counts = {
            name: CountResponse(number=count.number, more=count.more)
            for name in ("ready", "waiting", "assigned", "running", "completed", "failed",
                         "cancelled")
            for count in [getattr(summary, name)]
        }  # fmt: skip
    return QueueResponse(**asdict(row), counts=counts)


def worker(row: WorkerRow) -> WorkerResponse:
    return WorkerResponse(**asdict(row))


def change(row: Change, *, details: bool) -> dict[str, Any]:
    return {
        "batch_id": str(row.batch_id),
        "queue": row.queue,
        "version": row.version,
        "at": row.at.isoformat(),
        "from_state": row.from_state,
        "to_state": row.to_state,
        "reason": row.reason,
        "actor": row.actor,
        "attempt": row.attempt,
        "detail": row.detail if details else None,
        "late": row.late,
    }
