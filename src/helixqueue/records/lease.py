"""Leases: the token that proves a lease, what a claim returns, and how an attempt ends."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

from helixqueue.identity import stored_public_id

if TYPE_CHECKING:
    from helixqueue.records.claim_hints import Hint
    from helixqueue.records.device import FormerAllocation
    from helixqueue.states import State

ResultWord = Literal["ok", "repeat", "refused", "busy", "illegal"]


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


class SealedToken(NamedTuple):
    """The proof of a lease over HTTP: a text that only the service can open."""

    text: str

    @property
    def number(self) -> str:
        """What distinguishes two leases of one batch."""
        return self.text

    def __repr__(self) -> str:
        return "SealedToken()"


def read_token(values: Sequence[Any]) -> Token | SealedToken:
    """Read a token from JSON, as it is sent between the processes of a worker."""
    return SealedToken(*values) if len(values) == 1 else Token(*values)


_NONCE_AND_BATCH = struct.Struct(">qq")


def lease_nonce(nonce: int, batch: int) -> int:
    """Derive the nonce of one lease from the nonce of its claim, as SQL `helix.lease_nonce` does.

    The engine accepts both. The derived nonce reveals neither the claim's nonce nor another
    lease's, so its holder can write to this lease only.
    """
    digest = hashlib.sha256(_NONCE_AND_BATCH.pack(nonce, batch)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class LeaseRow(NamedTuple):
    """A lease as a claim returns it."""

    batch: int  # over HTTP the number of its public id
    token: Token | SealedToken
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
    # `token` has the nonce of the claim; false for leases with a token of their own (over HTTP, or
    # from a parent worker process).
    shares_nonce: bool = True
    run: int | None = None  # the id of the run that the batch belongs to
    # UUIDs of the GPUs that it holds; None: its worker owns no devices.
    devices: tuple[str, ...] | None = None

    @property
    def batch_id(self) -> UUID:
        """The public id, derived when it is read."""
        return stored_public_id(self.key)

    @property
    def own_token(self) -> Token | SealedToken:
        """The token of this lease alone: the only one that may leave this process."""
        if not self.shares_nonce or isinstance(self.token, SealedToken):
            return self.token
        epoch, nonce, number = self.token
        return Token(epoch, lease_nonce(nonce, self.batch), number)


class LeaseRef(NamedTuple):
    """A batch and the token it is held under: what start, renew and release take."""

    batch: int
    token: Token | SealedToken


class Settlement(NamedTuple):
    """The end of one attempt: completed with a JSON result, or failed."""

    batch: int
    token: Token | SealedToken
    outcome: Literal["completed", "failed"]
    result: str | None = None
    failure: str | None = None
    detail: str | None = None
    permanent: bool = False
    after_seconds: float | None = None


class WriteResult(NamedTuple):
    """Answer to a write of a worker on one lease."""

    batch: int
    answer: ResultWord
    owner: str | None
    state: State | None
    late: bool
    mismatch: bool = False  # a repeat with another result than the one that was stored


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The answer to a claim: leases, and the answers to what was settled with it."""

    leases: tuple[LeaseRow, ...]
    settled: tuple[WriteResult, ...]
    hints: tuple[Hint, ...] = ()  # how far this claim looked, for the next
    more: bool = False  # fewer than wanted, because these are as much as one answer carries
    former: tuple[FormerAllocation, ...] = ()  # of the host of a worker that owns devices
