"""Request and response bodies of fences."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StrictBool,
    StrictInt,
    model_validator,
)

from helixqueue.engine.fences import DecisionWord
from helixqueue.fence.http.status import MEANS
from helixqueue.fence.receipt import receipt_of
from helixqueue.fence.rehearsal import MEANS as REHEARSED
from helixqueue.fence.rehearsal import WORDS
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.records.fence import FenceEventRow
from helixqueue.service.models.requests import (
    IdentityText,
    Json,
    Reason,
    RequestModel,
    printable,
)
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.fence.signing import Signer
    from helixqueue.records.fence import FenceRow

MAX_CALLS = 500  # in one rehearsal


class ResolveRequest(RequestModel):
    """An operator's decision about a fence in doubt."""

    reason: Reason
    version: Annotated[StrictInt, Field(ge=1, le=2**31 - 1)] = Field(
        description="Version that the operator read; if it has changed, nothing is decided."
    )
    applied: StrictBool = Field(description="Whether the effect happened.")
    effect: Annotated[str, Field(max_length=255), AfterValidator(printable)] | None = Field(
        None, description="Id of the effect in the other system."
    )
    result: Json = Field(None, description="Result for repeats; leave it out if it is unknown.")
    http_status: Annotated[StrictInt, Field(ge=200, le=499)] | None = Field(
        None, description="Status of the response, if the fence guards a request; 200 unless set."
    )
    correct: StrictBool = Field(
        default=False,
        description="Replace an earlier resolution, while it is the last step of the fence.",
    )

    @model_validator(mode="after")
    def _check_applied(self) -> Self:
        extra = self.model_fields_set & {"effect", "result", "http_status"}
        if not self.applied and extra:
            raise ValueError(f"{', '.join(sorted(extra))}: expected only with applied")
        return self


class FenceCallItem(RequestModel):
    name: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(printable)]
    key: (
        IdentityText
        | StrictInt
        | Annotated[list[IdentityText | StrictInt], Field(min_length=1, max_length=16)]
    )
    payload: Json = Field(None, description="Compared with the stored payload if extra.")


class RehearseRequest(RequestModel):
    calls: Annotated[list[FenceCallItem], Field(min_length=1, max_length=MAX_CALLS)]


class FenceResponse(BaseModel):
    fence: str
    tenant: str
    name: str
    identity: list[str] | None
    state: FenceState
    means: str
    version: int
    attempt: int
    actor: str
    reason: str
    detail: str | None
    first_at: datetime
    changed_at: datetime
    deadline: datetime
    quiet_seconds: float
    effect: str | None
    receipt: str | None
    receipt_document: dict[str, Any] | None
    answer_kept: bool
    answer_until: datetime | None
    until: datetime | None


class FencePreviewResponse(BaseModel):
    fence: str
    decision: DecisionWord
    means: str


class RehearseResponse(BaseModel):
    calls: list[FencePreviewResponse]


class FencePageResponse(BaseModel):
    fences: list[FenceResponse]
    next: str | None


class FenceDetailResponse(FenceResponse):
    history: list[FenceEventRow]


def fence(row: FenceRow, *, details: bool, signer: Signer | None) -> FenceResponse:
    """`details` includes error texts and the receipt document, which `signer` signs."""
    receipt = receipt_of(row) if row.state is FenceState.SEALED else None
    return FenceResponse(
        fence=key_text(row.key),
        tenant=row.tenant,
        name=row.name,
        identity=None if row.identity is None else row.identity.split(PART_SEPARATOR),
        state=row.state,
        means=MEANS[row.state],
        version=row.version,
        attempt=row.attempt,
        actor=row.actor,
        reason=row.reason,
        detail=row.detail if details else None,
        first_at=row.first_at,
        changed_at=row.changed_at,
        deadline=row.deadline,
        quiet_seconds=row.quiet_seconds,
        effect=row.effect,
        receipt=None if receipt is None else receipt.id,
        # With few possible results, the digest discloses which one it was.
        receipt_document=receipt.document(signer) if receipt is not None and details else None,
        answer_kept=row.answer_kept,
        answer_until=row.answer_until,
        until=row.until,
    )


def fence_preview(key: bytes, decision: DecisionWord) -> FencePreviewResponse:
    means = REHEARSED[WORDS[decision]]
    return FencePreviewResponse(fence=key_text(key), decision=decision, means=means)


def fence_detail(
    row: FenceRow, events: list[FenceEventRow], *, details: bool, signer: Signer | None
) -> FenceDetailResponse:
    history = events if details else [replace(event, detail=None) for event in events]
    return FenceDetailResponse(
        **fence(row, details=details, signer=signer).model_dump(), history=history
    )
