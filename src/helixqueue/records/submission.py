"""A submission: what a caller passes, the row that is sent, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypedDict
from uuid import UUID

from typing_extensions import TypeVar

from helixqueue.identity import key_bytes, key_text, stored_public_id, stored_texts
from helixqueue.states import State

if TYPE_CHECKING:
    from helixqueue.errors import Refused

DecisionWord = Literal["new", "duplicate", "conflict", "refused"]


R = TypeVar("R", default=Any)
WITHOUT_IDENTITY = "stored without identity"  # the engine's note on such a batch


class Source(NamedTuple):
    """The delivery that asked for a batch: a stream entry, a webhook event, a request key."""

    kind: str  # such as stream
    name: str  # such as the name of the stream
    id: str  # such as the id of the entry


class SubmitOptions(TypedDict, total=False):
    """Options of one submission; they override the settings of the queue."""

    revision: str | None  # another revision of an identity is another batch
    priority: int | None  # 0 (first) to 9 (last); 5 by default
    run_at: datetime | None  # earliest time of the first attempt
    expires_at: datetime | None  # cancelled unless started by then
    limit_key: str | None  # batches with the same key share the queue's key_limit
    requires: Mapping[str, Any] | None  # replaces the queue's
    source: Source | tuple[str, str, str] | None  # the delivery that asks


class Submission(NamedTuple):
    """One row of `submit_many`."""

    identity: str | tuple[str, ...] | None
    payload: Any
    revision: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    limit_key: str | None = None
    requires: Mapping[str, Any] | None = None
    source: Source | tuple[str, str, str] | None = None


class SubmissionRow(NamedTuple):
    """A prepared submission: `identity` is canonical (`Identity.text`), `payload` RFC 8785 text."""

    identity: str | None
    payload: str
    raw: str | None = None
    revision: str = ""
    priority: int | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    limit_key: str | None = None
    requires: str | None = None
    source: Source | None = None


class Receipt(Generic[R]):
    """Proof of a submission: equal for every submission of the same work.

    `R` is the type of the result, for type checkers.

    A receipt stores the bytes of the engine's answer and derives id and texts on access: most of
    the receipts of a bulk submit are never read.
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
        """Create a receipt from stored bytes."""
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

    @property
    def texts(self) -> tuple[str, str, str]:
        """Id, key and fingerprint as JSON carries them."""
        return *stored_texts(self._key), self._fingerprint.hex()

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
    """The answer to one submission."""

    decision: DecisionWord
    receipt: Receipt | None = None  # none when refused
    state: State | None = None
    stored_payload: str | None = None  # of a conflict, for the diff
    note: str | None = None  # why refused, or WITHOUT_IDENTITY
    differs: tuple[str, ...] = ()  # options of a duplicate that differ; the first submission wins
    error: Refused | None = None  # of a conflict or a refusal, if the service created it

    @property
    def is_unnamed(self) -> bool:
        """Whether this is a batch without identity, which no repeat will find."""
        return self.note == WITHOUT_IDENTITY


class Submitted(NamedTuple, Generic[R]):
    """The answer to one submission."""

    receipt: Receipt[R] | None  # None if refused
    decision: DecisionWord
    state: State | None
    differs: tuple[str, ...] = ()  # options of a duplicate that differ; the first submission wins
    error: Refused | None = None  # of a conflict or a refusal: what `submit` would have raised
    without_identity: bool = False  # of a new batch: none was given, or a placeholder

    @property
    def advice(self) -> str | None:
        """How to retry the batch, if this is a repeat of work that FAILED."""
        if self.decision != "duplicate" or self.state is not State.FAILED or self.receipt is None:
            return None
        return (
            f"the batch is FAILED; `helixq batch retry {self.receipt.batch_id} --reason ...` "
            "retries it"
        )


class Accepted(Submitted[R]):
    """The answer of `submit`: new or duplicate, always with a receipt."""

    __slots__ = ()

    if TYPE_CHECKING:
        receipt: Receipt[R]
        state: State
