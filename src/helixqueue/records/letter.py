"""A dead letter: a message of an intake that could not become a batch; and what intakes report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from uuid import UUID

from helixqueue.records.parameter import Base64Json, Payload

LetterReason = Literal[
    "encoding",
    "json",
    "identity",
    "payload",
    "too_large",
    "queue",
    "field",
    "conflict",
    "reused",
    "refused",
    "failures",
    "vanished",
]
LetterStatus = Literal["open", "redriven", "discarded", "expired"]
STATUSES: Final = ("open", "redriven", "discarded", "expired")
# A larger message is stored without its end, and cannot be redriven.
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
HEAD_BYTES: Final = 65_536


class NewLetter(NamedTuple):
    """A letter that an intake writes."""

    source: str  # id of the delivery
    reason: LetterReason
    detail: str
    body: bytes | None  # the whole message, or the beginning of a large one
    size: int  # bytes of the whole message
    digest: bytes  # SHA-256 of the whole message
    queue: str | None = None
    key: bytes | None = None  # of the batch that it conflicts with


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter in a list; its body is read separately."""

    letter: int
    tenant: str
    queue: str | None  # as the message named it
    kind: str
    name: str
    source: str  # id of the delivery
    reason: LetterReason
    detail: Annotated[str | None, Payload]
    status: LetterStatus
    size: int
    complete: bool  # the whole message is stored: it can be redriven
    deliveries: int
    digest: str
    first_at: datetime
    last_at: datetime
    actor: str
    batch_id: UUID | None  # conflicting batch, or the batch that a redrive created
    closed_at: datetime | None
    closed_by: str | None
    closed_for: str | None


class StoredLetter(NamedTuple):
    """A letter with the bytes of its message, if they were asked for."""

    row: LetterRow
    body: bytes | None


@dataclass(frozen=True, slots=True)
class LetterDetail(LetterRow):
    """A letter with the fields of its message; bytes that are not UTF-8 are escapes."""

    fields: Annotated[Mapping[str, str] | None, Payload]
    body: Annotated[Annotated[bytes, Base64Json] | None, Payload]  # on demand, as it arrived

    @classmethod
    def of(cls, row: LetterRow, message: Mapping[str, str] | None, body: bytes | None) -> Self:
        values = {field.name: getattr(row, field.name) for field in fields(row)}
        return cls(**values, fields=message, body=body)


@dataclass(frozen=True, slots=True)
class Discarded:
    letter: int
    answer: Literal["ok", "repeat", "refused"]


IntakeState = Literal["reading", "waiting", "stopped", "gone"]


@dataclass(frozen=True, slots=True)
class IntakeRow:
    """What one intake process last reported."""

    tenant: str
    stream: str
    group: str
    consumer: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None  # it was stopped
    age_seconds: float
    problem: str | None  # why it does not read now
    figures: Mapping[str, Any]  # counters, and the last look at the group: see `intake.figures`
    state: IntakeState
