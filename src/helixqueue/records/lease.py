"""Leases: the token that proves a lease, what a claim returns, and how an attempt ends."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from helixqueue.identity import stored_public_id

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from helixqueue.records.claim_hints import Hint
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
    # `token` has the nonce of the claim; false for leases with a token of their own (over HTTP, or
    # from a parent worker process).
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
