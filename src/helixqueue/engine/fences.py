"""The calls of fences, described once for sync and async; nothing here does I/O.

A `Call` is one statement: alone it is one commit, inside a caller's transaction a part of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from helixqueue.engine.arrays import plain, texts
from helixqueue.engine.cursors import behind_life, demand_page
from helixqueue.engine.statements import statements
from helixqueue.errors import Refused
from helixqueue.postgres.call import Call, Row
from helixqueue.records.fence import FenceEventRow, FencePage, FencePreview, FenceRow
from helixqueue.states import FenceState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from helixqueue.records.rows import Token

_SQL = {name: one.sql for name, one in statements("helixqueue.engine", "fences.sql").items()}

# How many rows a page looks at for those that its filters take.
LOOK = 2_000

DecisionWord = Literal[
    "granted", "repeated", "expired", "in_progress", "mismatch", "in_doubt",
    "sealed", "done", "fenced_out", "stale",
]  # fmt: skip
Finding = Literal["applied", "not_applied", "unknown"]


class Fenced(NamedTuple):
    """What the database says about one fence; what does not apply is None.

    A tuple, because one is made of a row for every call: a dataclass took three times as long.
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
    """A fence that is ours: its key and the token of every write."""

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
    """The three clocks of a fence, the quiet period before a probe's no is believed, a limit."""

    lease: float = 30.0  # seconds without a heartbeat until the holder counts as gone
    quiet: float = 90.0  # seconds beyond the lease in which a frozen holder may still act
    answer: float = 86_400.0  # how long the answer can be repeated
    tombstone: float = 30 * 86_400.0  # how long the key is remembered after its end
    # Seconds for which heartbeats renew the lease. A call that hangs longer is in doubt for the
    # others; should it end after all, before anybody decided, its seal still counts.
    limit: float = 86_400.0

    def __post_init__(self) -> None:
        # Here and not by the database alone: answer and tombstone get there with the seal, when it
        # is too late to refuse.
        for name, (least, most) in _CLOCKS.items():
            seconds = getattr(self, name)
            if not least <= seconds <= most:  # NaN, too
                raise Refused(
                    f"Times: expected {least:g} to {most:g} seconds for {name}, got {seconds!r}"
                )


@dataclass(frozen=True, slots=True)
class FenceResult:
    """What came of an effect: bytes with the form they are read by."""

    form: str
    data: bytes
    omitted: bool = False  # only the digest is kept
    effect: str | None = None  # its id in the place where it happened


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
) -> Call[Fenced]:
    """Ask whose effect it is; with the same `nonce` again, the answer is the same again."""
    return Call(
        _SQL["claim"],
        (
            *(tenant, name, identity, request, actor, nonce, start, times.lease, times.quiet),
            *(replayable, max_attempts, keep_request, alone),
        ),
        _read_fenced,
    )


def seal(held: FenceLease, answer: FenceResult, times: Times, *, actor: str | None) -> Call[Fenced]:
    return Call(
        _SQL["seal"],
        (
            *_token(held),
            *(actor, *_answer(answer)),
            *(times.answer, times.tombstone),
        ),
        _read_fenced,
    )


def start(held: FenceLease, *, actor: str | None) -> Call[Fenced]:
    return _step(held, FenceState.EFFECT_STARTED, actor, None, 0)


def release(held: FenceLease, times: Times, *, actor: str | None, detail: str) -> Call[Fenced]:
    return _step(held, FenceState.RELEASED, actor, detail, times.tombstone)


def doubt(held: FenceLease, *, actor: str | None, detail: str) -> Call[Fenced]:
    return _step(held, FenceState.IN_DOUBT, actor, detail, 0)


def _step(
    held: FenceLease, to: FenceState, actor: str | None, detail: str | None, tombstone: float
) -> Call[Fenced]:
    return Call(_SQL["step"], (*_token(held), to.value, actor, detail, tombstone), _read_fenced)


def probe(
    doubted: Fenced,
    found: Finding,
    times: Times,
    *,
    actor: str | None,
    nonce: int,
    answer: FenceResult | None = None,
) -> Call[Fenced]:
    """Say what a probe found about the fence as it stood in `doubted`."""
    return Call(
        _SQL["probe"],
        (
            *(_bytes(doubted.key), doubted.version, found, actor, nonce, times.lease, times.quiet),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_fenced,
    )


def resolve(
    key: bytes, version: int, times: Times, *, actor: str, reason: str, answer: FenceResult | None
) -> Call[Fenced]:
    """Decide a doubt: with an answer it happened, without one it did not. For operators."""
    return Call(
        _SQL["resolve"],
        (
            *(_bytes(key), version, answer is not None, actor, reason),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_fenced,
    )


def resolve_by_token(
    token_hash: bytes,
    key: bytes,
    version: int,
    times: Times,
    *,
    reason: str,
    answer: FenceResult | None,
) -> Call[Fenced]:
    """The same for whoever holds a token with the scope operate: its name is on record."""
    return Call(
        _SQL["resolve_by_token"],
        (
            *(_bytes(token_hash), _bytes(key), version, answer is not None, reason),
            *_answer(answer),
            *(times.answer, times.tombstone),
        ),
        _read_fenced,
    )


def renew(held: Sequence[FenceLease]) -> Call[list[bytes]]:
    """Heartbeats of many fences; returns the keys that are no longer ours."""
    return Call(
        _SQL["renew"],
        (
            texts([_bytes(one.key) for one in held]),
            plain([one.token.epoch for one in held]),
            plain([one.token.nonce for one in held]),
            plain([one.token.number for one in held]),
        ),
        lambda rows: [key for (key,) in rows],
    )


@dataclass(frozen=True, slots=True)
class FenceSweep:
    doubted: int
    released: int
    emptied: int
    forgotten: int


def tend(*, actor: str | None = None, limit: int = 1_000) -> Call[FenceSweep]:
    """Do what time alone settles; one claim in a thousand does it by the way."""
    return Call(_SQL["tend"], (actor, limit), lambda rows: FenceSweep(*rows[0]))


def peek(key: bytes) -> Call[tuple[int, bool] | None]:
    """The fence's version, and whether somebody is at it; None when there is none to see."""
    return Call(
        _SQL["peek"], (_bytes(key),), lambda rows: (rows[0][0], rows[0][1]) if rows else None
    )


def one(key: bytes) -> Call[FenceRow | None]:
    """The fence with this key; None when there is none to see."""
    return Call(_SQL["one"], (_bytes(key),), lambda rows: _read_row(rows[0]) if rows else None)


def listed(
    *,
    tenant: str | None = None,
    name: str | None = None,
    state: FenceState | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Call[FencePage]:
    """A page of fences, newest first."""
    demand_page(limit)
    walk = "doubt" if state is FenceState.IN_DOUBT else "age" if name is None else "name"
    # Of one tenant, every row that is looked at is shown unless a filter is left.
    left = state is not None if walk != "doubt" else name is not None
    narrow = tenant is None or left
    args = {
        "tenant": tenant,
        "name": name,
        "state": state and state.value,
        "walk": walk,
        "limit": limit + 1,  # one more tells whether there is another page
        "look": max(LOOK if narrow else 0, limit + 1),
    }
    return Call(_SQL["list"], args | behind_life(after), lambda rows: _read_page(rows, limit))


def story(key: bytes) -> Call[list[FenceEventRow]]:
    """Steps and decisions of one fence, in their order; the first thousand."""
    return Call(_SQL["story"], (_bytes(key),), lambda rows: [FenceEventRow(*row) for row in rows])


def foresee(
    *, tenant: str, asked: Sequence[FencePreview]
) -> Call[list[tuple[bytes, DecisionWord]]]:
    """What claims would be told now, each by itself, and their keys; nothing is claimed."""
    return Call(
        _SQL["foresee"],
        (
            texts([one.name for one in asked]),
            texts([one.identity for one in asked]),
            texts([one.request for one in asked]),
            tenant,
        ),
        lambda rows: [(key, word) for key, word in rows],
    )


@dataclass(frozen=True, slots=True)
class FenceCount:
    name: str
    state: FenceState
    number: int
    seconds: float  # since the oldest of them got there


def count() -> Call[list[FenceCount]]:
    """How many fences that have not ended stand in which state, for gauges."""
    return Call(
        _SQL["count"],
        (),
        lambda rows: [FenceCount(name, FenceState(state), *rest) for name, state, *rest in rows],
    )


@dataclass(frozen=True, slots=True)
class SealLag:
    """Seconds by which `tend` is behind. Every claim decides by the clock anyway."""

    leases: float
    answers: float
    tombstones: float


def lag() -> Call[SealLag]:
    return Call(_SQL["lag"], (), lambda rows: SealLag(*rows[0]))


def _token(held: FenceLease) -> tuple[str, int, int, int]:
    return (_bytes(held.key), held.token.epoch, held.token.nonce, held.token.number)


def _answer(answer: FenceResult | None) -> tuple[str | None, str | None, str | None, bool]:
    if answer is None:
        return (None, None, None, False)
    return (answer.effect, answer.form, _bytes(answer.data), answer.omitted)


def _bytes(data: bytes) -> str:
    """As PostgreSQL writes them: every argument has a text form, whichever driver carries it."""
    return rf"\x{data.hex()}"


def _read_fenced(rows: list[Row]) -> Fenced:
    [row] = rows
    told = Fenced._make(row)
    return told if told.state is None else told._replace(state=FenceState(told.state))


def _read_page(rows: list[Row], limit: int) -> FencePage:
    """Each row says how far the page looked, where it stands, and what it is; nulls for none."""
    found = [row[1:] for row in rows if row[1] is not None]
    onward = found[limit - 1][0] if len(found) > limit else rows[0][0]
    return FencePage(
        tuple(_read_row(row[1:]) for row in found[:limit]),
        None if onward is None else str(onward),
    )


def _read_row(row: Row) -> FenceRow:
    told = dict(zip(FenceRow.__slots__, row, strict=True))
    told["state"] = FenceState(told["state"])
    return FenceRow(**told)
