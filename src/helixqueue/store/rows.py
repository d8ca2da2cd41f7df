"""What goes into the engine and what comes out: plain frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict

from typing_extensions import TypeVar

from helixqueue.identity import stored_public_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    from helixqueue.errors import Refused
    from helixqueue.states import State
    from helixqueue.store.hints import Hint

DecisionWord = Literal["new", "duplicate", "conflict", "refused"]
AnswerWord = Literal["ok", "repeat", "refused", "busy", "illegal"]
R = TypeVar("R", default=Any)


class Token(NamedTuple):
    """The proof of a lease. The nonce is secret: it is in no event, no log and no `repr`."""

    epoch: int
    nonce: int
    number: int

    def __repr__(self) -> str:
        return f"Token({self.epoch}.{self.number})"


class SubmissionRow(NamedTuple):
    """One thing to do. `identity` is canonical (`Identity.text`), `payload` is RFC 8785 text."""

    identity: str | None
    payload: str
    raw: str | None = None
    revision: str = ""
    priority: int | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    limit_key: str | None = None
    requires: str | None = None


class Receipt(NamedTuple, Generic[R]):
    """Equal for equal work, whoever asks and however often.

    `R` is the type of the work's result, for type checkers: a receipt remembers what it is for.
    """

    batch_id: UUID
    key: str
    fingerprint: str


class SubmittedRow(NamedTuple):
    """What became of one submission."""

    decision: DecisionWord
    receipt: Receipt | None = None  # none when refused
    state: State | None = None
    stored_payload: str | None = None  # of a conflict, for the diff
    note: str | None = None  # why refused
    differs: tuple[str, ...] = ()  # options of a duplicate that differ; the first submission wins
    error: Refused | None = None  # of a conflict or a refusal, where whoever was asked has made it


class LeaseRow(NamedTuple):
    """A lease as the engine hands it out."""

    batch: int
    token: Token
    key: bytes
    tenant: str
    queue: str
    identity: str | None
    revision: str
    payload: str | None
    attempt: int
    state: State
    deadline: datetime
    lease_seconds: float
    hint: Hint

    @property
    def batch_id(self) -> UUID:
        """The public id, derived when somebody asks."""
        return stored_public_id(self.key)


class Held(NamedTuple):
    """A batch and the token it is held under: what start, renew and release take."""

    batch: int
    token: Token


class Settlement(NamedTuple):
    """The end of one attempt: completed with a JSON result, or failed."""

    batch: int
    token: Token
    outcome: Literal["completed", "failed"]
    result: str | None = None
    failure: str | None = None
    detail: str | None = None
    permanent: bool = False
    after_seconds: float | None = None


class Answer(NamedTuple):
    """What became of one worker's write."""

    batch: int
    answer: AnswerWord
    owner: str | None
    state: State | None
    late: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a cancel, retry or erase."""

    batch_id: UUID
    answer: AnswerWord
    state: State | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim: leases, and the answers to what was settled with it."""

    leases: tuple[LeaseRow, ...]
    settled: tuple[Answer, ...]
    more: bool = False  # fewer than wanted, because these are as much as one answer carries


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue's settings."""

    tenant: str
    name: str
    profile: str
    lease_seconds: float
    max_attempts: int
    backoff_seconds: float
    backoff_max_seconds: float
    key_limit: int
    unknown: Literal["refuse", "accept"]
    paused: bool
    closed: bool
    requires: Mapping[str, object]
    payload_schema: Mapping[str, object] | None
    result_schema: Mapping[str, object] | None
    # How long finished batches stay, by state; 0: for ever. Their keys stay anyway.
    keep_completed_seconds: float = 0
    keep_failed_seconds: float = 0
    keep_cancelled_seconds: float = 0
    keep_decisions_seconds: float = 0  # of submissions that made no batch


class QueueSettings(TypedDict, total=False):
    """What can be set on a queue; the order is that of the function's parameters."""

    profile: str | None
    lease_seconds: float | None
    max_attempts: int | None
    backoff_seconds: float | None
    backoff_max_seconds: float | None
    key_limit: int | None
    unknown: str | None
    paused: bool | None
    closed: bool | None
    requires: Mapping[str, Any] | None
    payload_schema: Mapping[str, Any] | None
    result_schema: Mapping[str, Any] | None
    keep_completed_seconds: float | None
    keep_failed_seconds: float | None
    keep_cancelled_seconds: float | None
    keep_decisions_seconds: float | None
