"""Fences: rows, history, and calls whose decision is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from helixqueue.identity import key_bytes
from helixqueue.records.parameter import IdentityText, Json, Param, Payload, printable
from helixqueue.states import FenceState

DecisionWord = Literal[
    "granted", "repeated", "expired", "in_progress", "mismatch", "in_doubt",
    "sealed", "done", "fenced_out", "stale",
]  # fmt: skip

RECEIPT_PREFIX: Final = "r2:"
# What a repeat of the call gets.
MEANS: Final[dict[str, str]] = {
    FenceState.CLAIMED: "another call holds the fence; a repeat waits, and executes the effect "
    "after the lease expires",
    FenceState.EFFECT_STARTED: "another call holds the fence; a repeat waits, and after the lease "
    "expires the outcome is in doubt",
    FenceState.SEALED: "the effect took place; a repeat gets the stored answer, and after its "
    "retention the receipt",
    FenceState.RELEASED: "the effect did not take place; a repeat executes it",
    FenceState.IN_DOUBT: "the outcome is unknown until a probe or an operator decides; "
    "do not send the request with a new key",
}


def receipt_text(receipt: bytes | None) -> str | None:
    return None if receipt is None else RECEIPT_PREFIX + receipt.hex()


@dataclass(frozen=True, slots=True)
class FenceRow:
    """A fence without the stored answer; the fields follow the columns of `engine/fences.sql`."""

    fence: str  # its key
    tenant: str
    name: str
    identity: tuple[str, ...] | None  # None: the call had no key
    state: FenceState
    version: int
    attempt: int
    actor: str
    reason: str
    detail: Annotated[str | None, Payload]
    first_at: datetime
    changed_at: datetime
    deadline: datetime
    effect: str | None
    # With few possible results, the digest discloses which one it was.
    form: Annotated[str | None, Payload]
    digest: Annotated[str | None, Payload]
    answer_kept: bool
    answer_until: datetime | None
    until: datetime | None
    quiet_seconds: float
    fingerprint: Annotated[str | None, Payload]
    receipt: str | None
    sealed_at: Annotated[datetime | None, Payload]

    @property
    def key(self) -> bytes:
        return key_bytes(self.fence)


@dataclass(frozen=True, slots=True)
class FenceEventRow:
    """One step or decision in the history of a fence."""

    at: datetime
    what: str
    from_state: FenceState | None
    to_state: FenceState | None
    attempt: int | None
    actor: str
    detail: Annotated[str | None, Payload]


@dataclass(frozen=True, slots=True)
class FenceDetail(FenceRow):
    """A fence with its history and, if it is sealed, its receipt."""

    means: str
    receipt_document: Annotated[dict[str, Any] | None, Payload]
    history: list[FenceEventRow]


@dataclass(frozen=True, slots=True)
class ResolvedFence:
    """A fence that filters selected, and what its resolution did."""

    fence: str
    name: str
    identity: tuple[str, ...] | None
    changed_at: datetime
    # stale: it changed meanwhile, or its lease has not ended. dry_run: nothing was tried.
    answer: Literal["ok", "stale", "dry_run"]


KeyPart = IdentityText | int


class FenceCall(TypedDict):
    """A call of a fenced function; without `payload`, none is compared."""

    name: Annotated[str, Param("Name of the fence.", "refund", length=255, check=printable)]
    key: KeyPart | Annotated[list[KeyPart], Param("", length=16)]
    payload: NotRequired[Json]


# Unknown members are refused, and numbers are not read from strings or booleans.
FenceCall.__pydantic_config__ = {"extra": "forbid", "strict": True}  # type: ignore[attr-defined]


class FencePreview(NamedTuple):
    """A call as the engine previews it; a `request` of None is not compared."""

    name: str
    identity: str  # canonical, as text
    request: str | None  # canonical JSON


@dataclass(frozen=True, slots=True)
class PredictedCall:
    """The decision that a call would get now."""

    fence: str
    decision: DecisionWord
    means: str
