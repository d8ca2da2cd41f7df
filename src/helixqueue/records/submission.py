"""A submission: what a caller passes, the row that is sent, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypedDict

from typing_extensions import TypeVar

from helixqueue.identity import key_bytes, key_text, stored_public_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from uuid import UUID

    from helixqueue.errors import Refused
    from helixqueue.states import State

DecisionWord = Literal["new", "duplicate", "conflict", "refused"]


R = TypeVar("R", default=Any)


class SubmitOptions(TypedDict, total=False):
    """What may be said about one submission; for that batch alone it wins over the queue."""

    revision: str | None  # another revision of an identity is other work
    priority: int | None  # 0 goes first, 9 last; 5 unless said
    run_at: datetime | None  # not before
    expires_at: datetime | None  # cancelled unless begun by then
    limit_key: str | None  # batches with the same one share the queue's key_limit
    requires: Mapping[str, Any] | None  # instead of the queue's


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


class Submitted(NamedTuple, Generic[R]):
    """What became of one submission."""

    receipt: Receipt[R] | None  # of the batch that stands for this identity; none when refused
    decision: DecisionWord
    state: State | None
    differs: tuple[str, ...] = ()  # options of a duplicate that differ; the first submission wins
    error: Refused | None = None  # of a conflict or a refusal: what `submit` would have raised


class Accepted(Submitted[R]):
    """What `submit` returns: new or duplicate, so there is a receipt."""

    __slots__ = ()

    if TYPE_CHECKING:
        receipt: Receipt[R]
        state: State
