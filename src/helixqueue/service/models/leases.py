"""Response bodies of the calls of workers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel, Field

from helixqueue.identity import key_text
from helixqueue.records.lease import ResultWord
from helixqueue.service.models.requests import write_token
from helixqueue.service.models.responses import IdentityValue, identity
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow, WriteResult


class LeaseResponse(BaseModel):
    batch: int
    batch_id: UUID
    key: str
    token: str = Field(description="Proof of this lease, and of no other lease of the claim.")
    tenant: str
    queue: str
    identity: IdentityValue
    revision: str
    payload: Any
    attempt: int
    state: State
    deadline: datetime
    lease_seconds: float


class LeaseWriteResponse(BaseModel):
    batch: int
    answer: ResultWord
    owner: str | None
    state: State | None
    late: bool
    mismatch: bool = Field(
        description="A repeated settle sent another result; the stored result stays."
    )


class LeaseWritesResponse(BaseModel):
    answers: list[LeaseWriteResponse]


class ClaimResponse(BaseModel):
    leases: list[LeaseResponse]
    settled: list[LeaseWriteResponse]
    hints: list[list[int]] = Field(
        description="How far this claim searched: `hints` of the next claim."
    )
    more: bool = Field(description="The response size limit was reached; claim again.")


class ExpectResponse(BaseModel):
    mark: str | None = Field(
        description="Value for `wait`; null if the service cannot wake workers."
    )


class WaitResponse(ExpectResponse):
    woken: bool


def lease(row: LeaseRow) -> LeaseResponse:
    parts = () if row.identity is None else tuple(row.identity.split("\x1f"))
    return LeaseResponse(
        batch=row.batch,
        batch_id=row.batch_id,
        key=key_text(row.key),
        token=write_token(row.own_token),
        tenant=row.tenant,
        queue=row.queue,
        identity=identity(parts),
        revision=row.revision,
        payload=None if row.payload is None else json.loads(row.payload),
        attempt=row.attempt,
        state=row.state,
        deadline=row.deadline,
        lease_seconds=row.lease_seconds,
    )


def lease_write(result: WriteResult) -> LeaseWriteResponse:
    return LeaseWriteResponse(**result._asdict())
