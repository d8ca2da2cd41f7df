"""Response bodies. An identity is a string, a list of strings if it has several parts, or null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from helixqueue.records.submission import DecisionWord
from helixqueue.service.problems import ProblemResponse, problem_of
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.engine.changes import Change
    from helixqueue.records.submission import Submitted

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
