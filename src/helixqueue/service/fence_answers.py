"""What the service says of fences."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from helixqueue.engine.fences import DecisionWord
from helixqueue.fence.http.status import MEANS
from helixqueue.fence.receipt import receipt_of
from helixqueue.fence.rehearsal import MEANS as REHEARSED
from helixqueue.fence.rehearsal import WORDS
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.records.fence import FenceEventRow, FenceRow


class FenceAnswer(BaseModel):
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


class ForeseenAnswer(BaseModel):
    fence: str
    decision: DecisionWord
    means: str


class RehearsedAnswer(BaseModel):
    calls: list[ForeseenAnswer]


class FencesAnswer(BaseModel):
    fences: list[FenceAnswer]
    next: str | None


class FenceStepAnswer(BaseModel):
    at: datetime
    what: str
    from_state: FenceState | None
    to_state: FenceState | None
    attempt: int | None
    actor: str
    detail: str | None


class FenceStoryAnswer(FenceAnswer):
    story: list[FenceStepAnswer]


def fence(row: FenceRow, *, details: bool) -> FenceAnswer:
    """`details`: also what errors said, which may hold anything, and what proves the answer."""
    receipt = receipt_of(row) if row.state is FenceState.SEALED else None
    return FenceAnswer(
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
        # A digest of few possible answers tells which one it was.
        receipt_document=receipt.document() if receipt is not None and details else None,
        answer_kept=row.answer_kept,
        answer_until=row.answer_until,
        until=row.until,
    )


def foreseen(key: bytes, decision: DecisionWord) -> ForeseenAnswer:
    means = REHEARSED[WORDS[decision]]
    return ForeseenAnswer(fence=key_text(key), decision=decision, means=means)


def story(row: FenceRow, told: list[FenceEventRow], *, details: bool) -> FenceStoryAnswer:
    steps = [
        FenceStepAnswer(
            at=one.at,
            what=one.what,
            from_state=None if one.from_state is None else FenceState(one.from_state),
            to_state=None if one.to_state is None else FenceState(one.to_state),
            attempt=one.attempt,
            actor=one.actor,
            detail=one.detail if details else None,
        )
        for one in told
    ]
    return FenceStoryAnswer(**fence(row, details=details).model_dump(), story=steps)
