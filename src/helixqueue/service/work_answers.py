"""What workers get."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel, Field

from helixqueue.identity import key_text
from helixqueue.records.lease import ResultWord
from helixqueue.service.answers import IdentityAnswer, identity
from helixqueue.service.bodies import write_token
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow, WriteResult


class LeaseAnswer(BaseModel):
    batch: int
    batch_id: UUID
    key: str
    token: str = Field(description="Proves this lease, and no other lease of the same claim.")
    tenant: str
    queue: str
    identity: IdentityAnswer
    revision: str
    payload: Any
    attempt: int
    state: State
    deadline: datetime
    lease_seconds: float


class HeldAnswer(BaseModel):
    batch: int
    answer: ResultWord
    owner: str | None
    state: State | None
    late: bool
    mismatch: bool = Field(
        description="A repeated settle brought another result than the stored one, which stays."
    )


class HeldsAnswer(BaseModel):
    answers: list[HeldAnswer]


class ClaimAnswer(BaseModel):
    leases: list[LeaseAnswer]
    settled: list[HeldAnswer]
    hints: list[list[int]] = Field(description="How far this claim looked: `hints` of the next.")
    more: bool = Field(description="These are as much as one answer carries; ask again.")


class MarkAnswer(BaseModel):
    mark: str | None = Field(description="To wait with; null where nobody can be told.")


class WokenAnswer(MarkAnswer):
    woken: bool


def lease(row: LeaseRow) -> LeaseAnswer:
    parts = () if row.identity is None else tuple(row.identity.split("\x1f"))
    return LeaseAnswer(
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


def held(one: WriteResult) -> HeldAnswer:
    return HeldAnswer(**one._asdict())
