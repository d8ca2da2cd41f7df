"""What goes into the engine and what comes out: plain frozen values, no behaviour."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypedDict

from typing_extensions import TypeVar

from helixqueue.identity import key_bytes, key_text, stored_public_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from helixqueue.errors import Refused
    from helixqueue.records.claim_hints import Hint
    from helixqueue.states import State

DecisionWord = Literal["new", "duplicate", "conflict", "refused"]
ResultWord = Literal["ok", "repeat", "refused", "busy", "illegal"]
R = TypeVar("R", default=Any)


class Token(NamedTuple):
    """The proof of a lease. The nonce is secret: it is in no event, no log and no `repr`.

    All leases of one claim share a token inside the worker process that claimed them. Outside of it
    each lease has a token of its own: `LeaseRow.own_token`.
    """

    epoch: int
    nonce: int
    number: int

    def __repr__(self) -> str:
        return f"Token({self.epoch}.{self.number})"


_NONCE_AND_BATCH = struct.Struct(">qq")


def lease_nonce(nonce: int, batch: int) -> int:
    """Derive the nonce of one lease from the nonce of its claim, as SQL `helix.lease_nonce` does.

    The engine accepts both. The derived nonce reveals neither the claim's nonce nor another
    lease's, so its holder can write to this lease only.
    """
    digest = hashlib.sha256(_NONCE_AND_BATCH.pack(nonce, batch)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


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


class Receipt(Generic[R]):
    """Equal for equal work, whoever asks and however often.

    `R` is the type of the work's result, for type checkers: a receipt remembers what it is for.

    It keeps the bytes of the engine's answer. What people see of them is derived when it is read:
    of the thousands of receipts of a bulk submit most are never looked at.
    """

    __slots__ = ("_fingerprint", "_key")
    __match_args__ = ("batch_id", "key", "fingerprint")
    _key: bytes
    _fingerprint: bytes

    def __init__(self, batch_id: UUID, key: str, fingerprint: str) -> None:
        self._key, self._fingerprint = key_bytes(key), bytes.fromhex(fingerprint)
        if batch_id != self.batch_id:
            raise ValueError(f"expected the batch id of this key, {self.batch_id}; got {batch_id}")

    @classmethod
    def stored(cls, key: bytes, fingerprint: bytes) -> Self:
        """As the database keeps the two."""
        receipt = cls.__new__(cls)
        receipt._key, receipt._fingerprint = key, fingerprint  # noqa: SLF001 - its own
        return receipt

    @property
    def batch_id(self) -> UUID:
        return stored_public_id(self._key)

    @property
    def key(self) -> str:
        return key_text(self._key)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint.hex()

    def __iter__(self) -> Iterator[UUID | str]:
        return iter((self.batch_id, self.key, self.fingerprint))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return self._key == other._key and self._fingerprint == other._fingerprint

    def __hash__(self) -> int:
        return hash((self._key, self._fingerprint))

    def __repr__(self) -> str:
        return (
            f"Receipt(batch_id={self.batch_id!r}, key={self.key!r}, "
            f"fingerprint={self.fingerprint!r})"
        )

    def __reduce__(self) -> tuple[type[Self], tuple[UUID, str, str]]:
        return type(self), (self.batch_id, self.key, self.fingerprint)


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
    # The nonce of `token` is that of the claim; false for leases that came into this process with a
    # token of their own (over HTTP, or from the worker of a child process).
    shares_nonce: bool = True

    @property
    def batch_id(self) -> UUID:
        """The public id, derived when it is read."""
        return stored_public_id(self.key)

    @property
    def own_token(self) -> Token:
        """The token of this lease alone: the only one that may leave this process."""
        if not self.shares_nonce:
            return self.token
        epoch, nonce, number = self.token
        return Token(epoch, lease_nonce(nonce, self.batch), number)


class LeaseRef(NamedTuple):
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


class WriteResult(NamedTuple):
    """What became of one worker's write."""

    batch: int
    answer: ResultWord
    owner: str | None
    state: State | None
    late: bool
    mismatch: bool = False  # a repeat with another result than the one that was stored


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Answer to a cancel, retry, release or erase of one batch.

    Of a dry run, `ok` means that the batch would be changed, and `state` is its state now.
    """

    batch_id: UUID
    answer: ResultWord
    state: State | None
    note: str | None
    queue: str | None = None
    identity: tuple[str, ...] = ()
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ActionPage:
    """Answers of an action on the batches that match some filters."""

    rows: tuple[ActionResult, ...]
    next: str | None  # cursor of the next page; None: no more batches match


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The answer to a claim: leases, and the answers to what was settled with it."""

    leases: tuple[LeaseRow, ...]
    settled: tuple[WriteResult, ...]
    hints: tuple[Hint, ...] = ()  # how far this claim looked, for the next
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
