"""What the service says of fences."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel

from helixqueue.fence.http.status import MEANS
from helixqueue.fence.receipt import key_text, receipt_of
from helixqueue.identity import PART_SEPARATOR
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.store.fences import FenceRow, Told


class FenceAnswer(BaseModel):
    fence: str
    name: str
    identity: list[str] | None
    state: FenceState
    means: str
    attempt: int
    actor: str
    reason: str
    detail: str | None
    first_at: datetime
    changed_at: datetime
    effect: str | None
    receipt: str | None
    answer_kept: bool
    answer_until: datetime | None
    until: datetime | None


class FencesAnswer(BaseModel):
    fences: list[FenceAnswer]


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
    """`details`: also what was said by errors, which may hold anything."""
    return FenceAnswer(
        fence=key_text(row.key),
        name=row.name,
        identity=None if row.identity is None else row.identity.split(PART_SEPARATOR),
        state=row.state,
        means=MEANS[row.state],
        attempt=row.attempt,
        actor=row.actor,
        reason=row.reason,
        detail=row.detail if details else None,
        first_at=row.first_at,
        changed_at=row.changed_at,
        effect=row.effect,
        receipt=receipt_of(row).id if row.state is FenceState.SEALED else None,
        answer_kept=row.answer_kept,
        answer_until=row.answer_until,
        until=row.until,
    )


def story(row: FenceRow, told: list[Told], *, details: bool) -> FenceStoryAnswer:
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
