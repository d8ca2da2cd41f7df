"""Response bodies. An identity is a string, a list of strings if it has several parts, or null."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response

from helixqueue.records.batch import (
    ActionResult,
    BatchDetail,
    BatchRow,
    OutcomeRow,
    identity_value,
)
from helixqueue.records.submission import DecisionWord
from helixqueue.records.worker import WorkerRow
from helixqueue.service.problems import ProblemResponse, problem_of
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.engine.changes import Change
    from helixqueue.records.submission import Submitted
    from helixqueue.service.tenant_cipher import TenantCipher

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
    advice: str | None = None
    without_identity: bool = False
    problem: ProblemResponse | None = None


class SubmitManyResponse(BaseModel):
    submitted: list[SubmittedResponse]


class BatchPageResponse(BaseModel):
    batches: list[BatchRow]
    next: str | None


@dataclass(frozen=True, slots=True)
class BatchDetailResponse(BatchDetail):
    """Payload and result are JSON; `has_payload` and `has_result` distinguish null from none."""

    payload: Any
    result: Any
    has_payload: bool = False
    has_result: bool = False


@dataclass(frozen=True, slots=True)
class OutcomeResponse(OutcomeRow):
    result: Any
    has_result: bool = False


class ActionsResponse(BaseModel):
    answers: list[ActionResult]
    next: str | None = Field(description="More batches may match: pass it as `after`.")


class WorkerPageResponse(BaseModel):
    workers: list[WorkerRow]
    next: str | None


class HealthResponse(BaseModel):
    status: str


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
        batch_id, key, fingerprint = result.receipt.texts
        content["receipt"] = {"batch_id": batch_id, "key": key, "fingerprint": fingerprint}
    if result.advice is not None:
        content["advice"] = result.advice
    if result.without_identity:
        content["without_identity"] = True
    if result.error is not None:
        content["problem"] = problem_of(result.error, values=values).body(request_id)
    return content


def batch(row: BatchRow, *, details: bool) -> dict[str, Any]:
    """`details` includes the failure details that workers wrote."""
    content = _members(row) | {
        "identity": identity_value(row.identity),
        "raw": identity_value(row.raw),
    }
    return content if details else content | {"detail": None}


def batch_detail(row: BatchDetail, *, values: bool, cipher: TenantCipher) -> BatchDetailResponse:
    """`values` includes payload, result and details."""
    members = _members(row) | _json_members(row, ("payload", "result"), values=values)
    members["number"] = _hidden(row.number, cipher)
    for name in ("events", "attempts"):
        members[name] = tuple(
            replace(part, number=_hidden(part.number, cipher)) for part in members[name]
        )
    members["refusals"] = tuple(
        replace(
            part,
            number=cipher.hide(part.number),
            owner_number=_hidden(part.owner_number, cipher),
        )
        for part in members["refusals"]
    )
    if not values:
        members["detail"] = None
        for name in ("events", "attempts", "decisions"):
            members[name] = tuple(replace(part, detail=None) for part in members[name])
    return BatchDetailResponse(**members)


def _hidden(number: int | None, cipher: TenantCipher) -> int | None:
    return None if number is None else cipher.hide(number)


def outcome(row: OutcomeRow, *, values: bool) -> OutcomeResponse:
    members = _members(row) | _json_members(row, ("result",), values=values)
    return OutcomeResponse(**members | ({} if values else {"detail": None}))


def action(result: ActionResult, *, with_identity: bool) -> ActionResult:
    """The answer; queue, identity and revision only for a token that may read batches."""
    return result if with_identity else replace(result, queue=None, identity=(), revision=None)


def worker(row: WorkerRow) -> WorkerRow:
    """Without the login role, which is the service's own."""
    return replace(row, role=None)


def _members(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any record
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _json_members(record: object, names: Iterable[str], *, values: bool) -> dict[str, Any]:
    """Members that the engine stores as JSON text, as values; and whether they exist."""
    members: dict[str, Any] = {}
    for name in names:
        text = getattr(record, name) if values else None
        members[name] = None if text is None else json.loads(text)
        members[f"has_{name}"] = text is not None
    return members


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
