"""The calls of fences, described once for sync and async; nothing here does I/O.

A `Call` is one statement: alone it is one commit, inside a caller's transaction it is part of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from helixqueue.engine.arrays import plain, texts
from helixqueue.engine.cursors import after_life, demand_page, scanned_page
from helixqueue.errors import Refused
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.fence import FenceEventRow, FenceRow, receipt_text
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from helixqueue.records.fence import DecisionWord, FencePreview
    from helixqueue.records.lease import Token
    from helixqueue.records.page import Page

_SQL = sql_texts("helixqueue.engine", "fences.sql")

# How many rows one page scans for those that match its filters.
ROWS_SCANNED = 2_000

Finding = Literal["applied", "not_applied", "unknown"]


class FenceDecision(NamedTuple):
    """The reply of every call on one fence; fields that do not apply are None.

    A tuple, because every call makes one from a row: a dataclass took three times as long.
    """

    decision: DecisionWord
    key: bytes
    life: int | None
    version: int | None
    state: FenceState | None
    attempt: int | None
    epoch: int | None
    number: int | None
    fingerprint: bytes | None
    holder: str | None
    retry_after: float | None
    request: str | None
    effect: str | None
    form: str | None
    answer: bytes | None
    omitted: bool | None
    digest: bytes | None
    receipt: bytes | None
    sealed_at: datetime | None
    note: str | None


@dataclass(frozen=True, slots=True)
class FenceLease:
    """A fence that this caller holds: its key, and the token that every write carries."""

    key: bytes
    token: Token


_CENTURY = 36_525 * 86_400.0
_BOUNDS = {
    "lease": (0.05, 86_400.0),
    "quiet": (0.0, 604_800.0),
    "answer": (0.001, _CENTURY),
    "tombstone": (0.001, _CENTURY),
    "limit": (0.05, _CENTURY),
}


@dataclass(frozen=True, slots=True)
class Times:
    """The durations of a fence, in seconds."""

    lease: float = 30.0  # without a heartbeat, until the holder counts as lost
    quiet: float = 90.0  # after the lease, while a frozen holder may still act
    answer: float = 86_400.0  # how long repeats get the answer
    tombstone: float = 30 * 86_400.0  # how long the key is remembered after its end
    # How long heartbeats renew the lease. A call that runs longer is in doubt for other callers;
    # its late seal still counts if no probe or operator has decided.
    limit: float = 86_400.0

    def __post_init__(self) -> None:
        # The database checks answer and tombstone only at the seal, when it is too late to refuse.
        for name, (least, most) in _BOUNDS.items():
            seconds = getattr(self, name)
            if not least <= seconds <= most:  # also false for NaN
                raise Refused(
                    f"Times: expected {least:g} to {most:g} seconds for {name}, got {seconds!r}"
                )


@dataclass(frozen=True, slots=True)
class FenceResult:
    """The outcome of an effect: bytes, and the form that tells how to read them."""

    form: str
    data: bytes
    omitted: bool = False  # only the digest is kept
    effect: str | None = None  # the id of the effect in the system where it happened


def claim(
    *,
    tenant: str,
    name: str,
    identity: str | None,
    request: str,
    actor: str | None,
    nonce: int,
    start: bool,
    times: Times,
    replayable: bool = False,
    max_attempts: int = 5,
    keep_request: bool = True,
    alone: bool = True,
) -> Call[FenceDecision]:
    """Claim the fence; a repeat with the same `nonce` gets the same reply."""
    return Call(
        _SQL["claim"],
        (
            *(tenant, name, identity, request, actor, nonce, start, times.lease, times.quiet),
            *(replayable, max_attempts, keep_request, alone),
        ),
        _read_decision,
    )


def seal(
    lease: FenceLease, result: FenceResult, times: Times, *, actor: str | None
) -> Call[FenceDecision]:
    return Call(
        _SQL["seal"],
        (*_token(lease), actor, *_result(result), times.answer, times.tombstone),
        _read_decision,
    )


def start(lease: FenceLease, *, actor: str | None) -> Call[FenceDecision]:
    return _step(lease, FenceState.EFFECT_STARTED, actor, None, 0)


def release(
    lease: FenceLease, times: Times, *, actor: str | None, detail: str
) -> Call[FenceDecision]:
    return _step(lease, FenceState.RELEASED, actor, detail, times.tombstone)


def doubt(lease: FenceLease, *, actor: str | None, detail: str) -> Call[FenceDecision]:
    return _step(lease, FenceState.IN_DOUBT, actor, detail, 0)


def _step(
    lease: FenceLease, to: FenceState, actor: str | None, detail: str | None, tombstone: float
) -> Call[FenceDecision]:
    return Call(_SQL["step"], (*_token(lease), to.value, actor, detail, tombstone), _read_decision)


def probe(
    doubt: FenceDecision,
    finding: Finding,
    times: Times,
    *,
    actor: str | None,
    nonce: int,
    result: FenceResult | None = None,
) -> Call[FenceDecision]:
    """Record the finding of a probe about the fence as `doubt` showed it."""
    return Call(
        _SQL["probe"],
        (
            *(_bytes(doubt.key), doubt.version, finding, actor, nonce, times.lease, times.quiet),
            *_result(result),
            *(times.answer, times.tombstone),
        ),
        _read_decision,
    )


def resolve(
    key: bytes,
    version: int,
    times: Times,
    *,
    actor: str | bytes,
    reason: str,
    result: FenceResult | None,
    correct: bool = False,
) -> Call[FenceDecision]:
    """Decide a doubt as an operator; `result` is None where the effect did not happen.

    `actor` is the operator's name, or the hash of a token with the scope operate: the database
    checks it and records its name. With `correct`, replace an earlier resolution that is still the
    last step of the fence.
    """
    applied = result is not None
    outcome = (*_result(result), times.answer, times.tombstone, correct)
    if isinstance(actor, bytes):
        by_token = (_bytes(actor), _bytes(key), version, applied, reason, *outcome)
        return Call(_SQL["resolve_by_token"], by_token, _read_decision)
    by_name = (_bytes(key), version, applied, actor, reason, *outcome)
    return Call(_SQL["resolve"], by_name, _read_decision)


def renew(leases: Sequence[FenceLease]) -> Call[list[bytes]]:
    """Renew many leases; returns the keys that this caller no longer holds."""
    return Call(
        _SQL["renew"],
        (
            texts([_bytes(lease.key) for lease in leases]),
            plain([lease.token.epoch for lease in leases]),
            plain([lease.token.nonce for lease in leases]),
            plain([lease.token.number for lease in leases]),
        ),
        lambda rows: [key for (key,) in rows],
    )


def find_holder(key: bytes) -> Call[tuple[int, bool] | None]:
    """The version of the fence and whether it has a live holder; None for no visible fence."""
    return Call(
        _SQL["find_holder"], (_bytes(key),), lambda rows: (rows[0][0], rows[0][1]) if rows else None
    )


def find_fence(key: bytes) -> Call[FenceRow | None]:
    """The fence with this key; None for no visible fence."""
    return Call(
        _SQL["find_fence"], (_bytes(key), None), lambda rows: _read_row(rows[0]) if rows else None
    )


def find_fences(first: bytes, last: bytes) -> Call[list[FenceRow]]:
    """At most two fences with keys from `first` to `last`."""
    return Call(
        _SQL["find_fence"],
        (_bytes(first), _bytes(last)),
        lambda rows: [_read_row(row) for row in rows],
    )


def list_fences(
    *,
    tenant: str | None = None,
    name: str | None = None,
    state: FenceState | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[Page[FenceRow]]:
    """Read a page of fences, newest first."""
    demand_page(limit)
    scan = "doubt" if state is FenceState.IN_DOUBT else "age" if name is None else "name"
    # The scan of one tenant shows every row it reads, unless it leaves a filter to apply.
    filters = name is not None if scan == "doubt" else state is not None
    bounded = tenant is None or filters
    args = {
        "tenant": tenant,
        "name": name,
        "state": state and state.value,
        "scan": scan,
        "limit": limit + 1,  # one more row shows whether there is a next page
        "look": max(ROWS_SCANNED if bounded else 0, limit + 1),
    }

    def read(rows: list[Row]) -> Page[FenceRow]:
        return scanned_page(rows, 1, limit, lambda row: _read_row(row[1:]))

    return Call(_SQL["list_fences"], args | after_life(after), read)


def fence_history(key: bytes) -> Call[list[FenceEventRow]]:
    """The first thousand steps and decisions of one fence, in order."""
    return Call(_SQL["fence_history"], (_bytes(key),), lambda rows: [*map(_read_event, rows)])


def preview(
    *, tenant: str, calls: Sequence[FencePreview]
) -> Call[list[tuple[bytes, DecisionWord]]]:
    """Key and decision that each claim would get now; nothing is claimed."""
    return Call(
        _SQL["preview"],
        (
            texts([call.name for call in calls]),
            texts([call.identity for call in calls]),
            texts([call.request for call in calls]),
            tenant,
        ),
        lambda rows: [(key, decision) for key, decision in rows],
    )


@dataclass(frozen=True, slots=True)
class FenceCount:
    name: str
    state: FenceState
    number: int
    seconds: float  # age of the oldest


def count_open() -> Call[list[FenceCount]]:
    """The number of fences that have not ended, by name and state, for gauges."""
    return Call(
        _SQL["count_open"],
        (),
        lambda rows: [FenceCount(name, FenceState(state), *rest) for name, state, *rest in rows],
    )


@dataclass(frozen=True, slots=True)
class SweepLag:
    """Seconds by which housekeeping is behind. Every claim checks the clock itself."""

    leases: float
    answers: float
    tombstones: float


def sweep_lag() -> Call[SweepLag]:
    return Call(_SQL["sweep_lag"], (), lambda rows: SweepLag(*rows[0]))


def _token(lease: FenceLease) -> tuple[str, int, int, int]:
    return (_bytes(lease.key), lease.token.epoch, lease.token.nonce, lease.token.number)


def _result(result: FenceResult | None) -> tuple[str | None, str | None, str | None, bool]:
    if result is None:
        return (None, None, None, False)
    # An omitted result travels as its digest: it may be larger than a statement can be.
    data = hashlib.sha256(result.data).digest() if result.omitted else result.data
    return (result.effect, result.form, _bytes(data), result.omitted)


def _bytes(data: bytes) -> str:
    """In PostgreSQL's text form: every driver can send text."""
    return rf"\x{data.hex()}"


def _read_event(row: Row) -> FenceEventRow:
    before, after = (None if state is None else FenceState(state) for state in row[2:4])
    return FenceEventRow(row[0], row[1], before, after, *row[4:])


def _read_decision(rows: list[Row]) -> FenceDecision:
    [row] = rows
    reply = FenceDecision._make(row)
    return reply if reply.state is None else reply._replace(state=FenceState(reply.state))


def _read_row(row: Row) -> FenceRow:
    fields = dict(zip(FenceRow.__slots__, row, strict=True))
    identity, digest = fields["identity"], fields["digest"]
    fields |= {
        "fence": key_text(fields["fence"]),
        "identity": None if identity is None else tuple(identity.split(PART_SEPARATOR)),
        "state": FenceState(fields["state"]),
        "digest": None if digest is None else digest.hex(),
        "fingerprint": fields["fingerprint"].hex(),
        "receipt": receipt_text(fields["receipt"]),
    }
    return FenceRow(**fields)
