"""The calls of fences, described once for sync and async; nothing here does I/O.

A `Call` is one statement: one commit with autocommit, or part of a caller's transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from helixqueue.engine.arrays import plain, texts
from helixqueue.engine.cursors import after_life, demand_page
from helixqueue.errors import Refused
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.statements import sql_texts
from helixqueue.records.fence import FenceEventRow, FencePage, FencePreview, FenceRow
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from helixqueue.records.lease import Token

_SQL = sql_texts("helixqueue.engine", "fences.sql")

# How many rows a page scans for those that pass its filters.
ROWS_SCANNED = 2_000

DecisionWord = Literal[
    "granted", "repeated", "expired", "in_progress", "mismatch", "in_doubt",
    "sealed", "done", "fenced_out", "stale",
]  # fmt: skip
Finding = Literal["applied", "not_applied", "unknown"]


class FenceDecision(NamedTuple):
    """The database's answer about one fence; fields that do not apply are None.

    A tuple, because every call builds one from a row: a dataclass took three times as long.
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
    """A fence held by this caller: its key and the token of every write."""

    key: bytes
    token: Token


_CENTURY = 36_525 * 86_400.0
_CLOCKS = {
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
    quiet: float = 90.0  # after the lease, in which a frozen holder may still act
    answer: float = 86_400.0  # how long the answer can be repeated
    tombstone: float = 30 * 86_400.0  # how long the key is kept after its end
    # How long heartbeats renew the lease. A call that hangs longer is in doubt for other callers;
    # if it ends before the doubt is resolved, its seal still counts.
    limit: float = 86_400.0

    def __post_init__(self) -> None:
        # Checked here too: the database sees answer and tombstone only with the seal, when the
        # effect has already happened.
        for name, (least, most) in _CLOCKS.items():
            seconds = getattr(self, name)
            if not least <= seconds <= most:  # NaN, too
                raise Refused(
                    f"Times: expected {least:g} to {most:g} seconds for {name}, got {seconds!r}"
                )


@dataclass(frozen=True, slots=True)
class FenceResult:
    """The result of an effect: bytes, and the form in which they are encoded."""

    form: str
    data: bytes
    omitted: bool = False  # only the digest is kept
    effect: str | None = None  # its id in the system where it happened


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
    """Claim the effect; repeating the call with the same `nonce` returns the same answer."""
    return Call(
        _SQL["claim"],
        (
            *(tenant, name, identity, request, actor, nonce, start, times.lease, times.quiet),
            *(replayable, max_attempts, keep_request, alone),
        ),
        _read_decision,
    )


def seal(
    lease: FenceLease, answer: FenceResult, times: Times, *, actor: str | None
) -> Call[FenceDecision]:
    return Call(
        _SQL["seal"],
        (
            *_token(lease),
            *(actor, *_answer(answer)),
            *(times.answer, times.tombstone),
        ),
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
    doubted: FenceDecision,
    finding: Finding,
    times: Times,
    *,
    actor: str | None,
    nonce: int,
    answer: FenceResult | None = None,
) -> Call[FenceDecision]:
    """Report the finding of a probe about the fence as it was in `doubted`."""
    return Call(
        _SQL["probe"],
        (
            *(
                _bytes(doubted.key),
                doubted.version,
                finding,
                actor,
                nonce,
                times.lease,
                times.quiet,
            ),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_decision,
    )


def resolve(
    key: bytes, version: int, times: Times, *, actor: str, reason: str, answer: FenceResult | None
) -> Call[FenceDecision]:
    """Resolve a doubt: with an answer it happened, without one it did not. For operators."""
    return Call(
        _SQL["resolve"],
        (
            *(_bytes(key), version, answer is not None, actor, reason),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_decision,
    )


def resolve_by_token(
    token_hash: bytes,
    key: bytes,
    version: int,
    times: Times,
    *,
    reason: str,
    answer: FenceResult | None,
) -> Call[FenceDecision]:
    """Resolve a doubt with an API token of scope operate; its name is recorded as the actor."""
    return Call(
        _SQL["resolve_by_token"],
        (
            *(_bytes(token_hash), _bytes(key), version, answer is not None, reason),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_decision,
    )


def renew(leases: Sequence[FenceLease]) -> Call[list[bytes]]:
    """Send the heartbeats of many fences; returns the keys that were lost."""
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


@dataclass(frozen=True, slots=True)
class FenceSweep:
    """How many fences a sweep moved or deleted."""

    doubted: int
    released: int
    emptied: int
    forgotten: int


def sweep(*, actor: str | None = None, limit: int = 1_000) -> Call[FenceSweep]:
    """Apply what is due by time; one claim in a thousand also does it."""
    return Call(_SQL["sweep"], (actor, limit), lambda rows: FenceSweep(*rows[0]))


def find_holder(key: bytes) -> Call[tuple[int, bool] | None]:
    """Read the fence's version and whether a holder is live; None if it is unknown or invisible."""
    return Call(
        _SQL["find_holder"], (_bytes(key),), lambda rows: (rows[0][0], rows[0][1]) if rows else None
    )


def find_fence(key: bytes) -> Call[FenceRow | None]:
    """Read the fence with this key; None if it is unknown or invisible."""
    return Call(
        _SQL["find_fence"], (_bytes(key),), lambda rows: _read_row(rows[0]) if rows else None
    )


def list_fences(
    *,
    tenant: str | None = None,
    name: str | None = None,
    state: FenceState | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[FencePage]:
    """Read a page of fences, newest first."""
    demand_page(limit)
    scan = "doubt" if state is FenceState.IN_DOUBT else "age" if name is None else "name"
    # For one tenant every scanned row is returned, unless a filter remains.
    filtered = tenant is None or (name if scan == "doubt" else state) is not None
    args = {
        "tenant": tenant,
        "name": name,
        "state": state and state.value,
        "scan": scan,
        "limit": limit + 1,  # the extra row shows whether there is another page
        "look": max(ROWS_SCANNED if filtered else 0, limit + 1),
    }
    return Call(_SQL["list_fences"], args | after_life(after), lambda rows: _read_page(rows, limit))


def fence_history(key: bytes) -> Call[list[FenceEventRow]]:
    """Read the steps and decisions of one fence in order; the first thousand."""
    return Call(
        _SQL["fence_history"], (_bytes(key),), lambda rows: [FenceEventRow(*row) for row in rows]
    )


def preview(
    *, tenant: str, calls: Sequence[FencePreview]
) -> Call[list[tuple[bytes, DecisionWord]]]:
    """Return the key of each call and the decision its claim would get; claims nothing."""
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
    seconds: float  # since the oldest of them entered the state


def count_open() -> Call[list[FenceCount]]:
    """Count the fences that have not ended, by name and state, for gauges."""
    return Call(
        _SQL["count_open"],
        (),
        lambda rows: [FenceCount(name, FenceState(state), *rest) for name, state, *rest in rows],
    )


@dataclass(frozen=True, slots=True)
class SweepLag:
    """Seconds by which the sweep is late. Claims do not depend on it: they compare the clock."""

    leases: float
    answers: float
    tombstones: float


def sweep_lag() -> Call[SweepLag]:
    return Call(_SQL["sweep_lag"], (), lambda rows: SweepLag(*rows[0]))


def _token(lease: FenceLease) -> tuple[str, int, int, int]:
    return (_bytes(lease.key), lease.token.epoch, lease.token.nonce, lease.token.number)


def _answer(answer: FenceResult | None) -> tuple[str | None, str | None, str | None, bool]:
    if answer is None:
        return (None, None, None, False)
    return (answer.effect, answer.form, _bytes(answer.data), answer.omitted)


def _bytes(data: bytes) -> str:
    """Encode as PostgreSQL's text form: every argument is passed as text, for any driver."""
    return rf"\x{data.hex()}"


def _read_decision(rows: list[Row]) -> FenceDecision:
    [row] = rows
    decision = FenceDecision._make(row)
    if decision.state is None:
        return decision
    return decision._replace(state=FenceState(decision.state))


def _read_page(rows: list[Row], limit: int) -> FencePage:
    """Each row has the end of the scan, its own position and its columns; nulls if none matched."""
    matches = [row[1:] for row in rows if row[1] is not None]
    cursor = matches[limit - 1][0] if len(matches) > limit else rows[0][0]
    return FencePage(
        tuple(_read_row(row[1:]) for row in matches[:limit]),
        None if cursor is None else str(cursor),
    )


def _read_row(row: Row) -> FenceRow:
    values = dict(zip(FenceRow.__slots__, row, strict=True))
    values["state"] = FenceState(values["state"])
    return FenceRow(**values)
