"""Response bodies of the calls of workers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import orjson
from pydantic import BaseModel, Field

from helixqueue.identity import key_text
from helixqueue.records.batch import identity_value
from helixqueue.records.lease import ResultWord
from helixqueue.service.models.responses import IdentityValue
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.records.lease import LeaseRow
    from helixqueue.service.tenant_cipher import TenantCipher


class LeaseResponse(BaseModel):
    lease: str = Field(description="Reference and proof of this lease, for the calls about it.")
    batch_id: UUID
    key: str
    tenant: str
    queue: str
    identity: IdentityValue
    revision: str
    payload: Any
    attempt: int
    state: State
    deadline: datetime
    lease_seconds: float
    run: int | None = Field(description="The id of the run that the batch belongs to.")
    devices: list[str] | None = Field(
        description="UUIDs of the GPUs that it holds; null if the worker owns no devices."
    )


class FormerAllocationResponse(BaseModel):
    """What a lease held that has ended, while its process may still be running."""

    id: int
    process: str
    batch_id: UUID
    device: str | None


class OutputAnswerResponse(BaseModel):
    answer: Literal["ok", "refused", "illegal", "conflict", "none"]
    owner: str | None = Field(description="The worker that holds the batch, or has the name.")
    state: State | None
    manifest: UUID | None
    destination: str | None
    note: str | None = Field(description="Which name belongs to which batch.")


class LeaseWriteResponse(BaseModel):
    lease: str
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
    more: bool = Field(description="The response size limit was reached; claim again.")
    former: list[FormerAllocationResponse] = Field(
        description="Of the host; the next claim names in `gone` those whose process ended."
    )


class ExpectResponse(BaseModel):
    mark: str | None = Field(
        description="Value for `wait`; null if the service cannot wake workers."
    )


class WaitResponse(ExpectResponse):
    woken: bool


def lease(row: LeaseRow, cipher: TenantCipher) -> dict[str, Any]:
    """The members of a `LeaseResponse`; the payload as its text, which may have a mebibyte."""
    parts = () if row.identity is None else tuple(row.identity.split("\x1f"))
    return {
        "lease": cipher.seal_lease(row),
        "batch_id": row.batch_id,
        "key": key_text(row.key),
        "tenant": row.tenant,
        "queue": row.queue,
        "identity": identity_value(parts),
        "revision": row.revision,
        "payload": None if row.payload is None else orjson.Fragment(row.payload),
        "attempt": row.attempt,
        "state": row.state,
        "deadline": row.deadline,
        "lease_seconds": row.lease_seconds,
        "run": row.run,
        "devices": row.devices,
    }
