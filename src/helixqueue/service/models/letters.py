"""Bodies of the operations about dead letters."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field

from helixqueue.operations.message import shown_fields
from helixqueue.records.letter import LetterDetail, LetterRow
from helixqueue.service.models.requests import Identity, Name, Reason, RequestModel


class LetterResponse(BaseModel):
    letter: int
    tenant: str
    queue: str | None
    kind: str
    name: str
    source: str
    reason: str
    detail: str | None
    status: str
    size: int
    complete: bool
    deliveries: int
    digest: str
    first_at: datetime
    last_at: datetime
    actor: str
    batch_id: UUID | None
    closed_at: datetime | None
    closed_by: str | None
    closed_for: str | None


class LetterPageResponse(BaseModel):
    letters: list[LetterResponse]
    next: str | None


class LetterDetailResponse(LetterResponse):
    fields: dict[str, str] | None = Field(
        description="Fields of the message, other bytes than UTF-8 as escapes; needs the scope "
        "payloads."
    )


class RedriveRequest(RequestModel):
    """Corrections of the message; those left out stay as they are."""

    reason: Reason
    queue: Name | None = None
    identity: Identity = None
    revision: Annotated[str, Field(max_length=255)] | None = Field(None, examples=["2"])


class DiscardResponse(BaseModel):
    answer: str


def letter(row: LetterRow, *, details: bool) -> LetterResponse:
    """`details` includes the text of the reason, which may quote the message."""
    return LetterResponse(**asdict(row) | ({} if details else {"detail": None}))


def letter_detail(found: LetterDetail, *, details: bool) -> LetterDetailResponse:
    fields = None if found.body is None or not details else shown_fields(found.body)
    return LetterDetailResponse(
        **asdict(found.row) | ({} if details else {"detail": None}), fields=fields
    )
