"""What clients get of dead letters."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import BaseModel, Field

from helixqueue.service.answers import (
    AttemptAnswer,
    IdentityAnswer,
    VerdictAnswer,
    identity,
)

if TYPE_CHECKING:
    from helixqueue.records.read_rows import Letter


class LetterAnswer(BaseModel):
    batch_id: UUID
    tenant: str
    queue: str
    identity: IdentityAnswer
    revision: str
    attempt: int
    failure: str
    detail: str | None
    worker: str | None = Field(description="Who had it last.")
    failed_at: datetime


class LettersAnswer(BaseModel):
    letters: list[LetterAnswer]
    next: str | None


class LetterStoryAnswer(LetterAnswer):
    attempts: list[AttemptAnswer] = Field(description="Also those before it was last redriven.")


class RedrivenAnswer(BaseModel):
    answers: list[VerdictAnswer]
    next: str | None = Field(description="There may be more: hand it over as `after`.")


def letter(one: Letter, *, details: bool) -> dict[str, Any]:
    told = one._asdict() | {"identity": identity(one.identity)}
    return told if details else told | {"detail": None}
