"""What a caller hands over and what comes back: plain frozen values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from helixqueue.errors import Refused
    from helixqueue.records.rows import DecisionWord, Receipt
    from helixqueue.states import State

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
