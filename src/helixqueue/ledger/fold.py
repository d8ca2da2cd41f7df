"""From a batch's events to where it stands: pure, and suspicious of every event.

The fold is the definition of G4. It takes nothing from the database but the events themselves:
the arrows come from `helixqueue.states`, the hashes from `helixqueue.ledger.chain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from helixqueue.ledger.chain import Event, event_hash
from helixqueue.states import ARROWS, FINAL, State

if TYPE_CHECKING:
    from collections.abc import Iterable

Token = tuple[int | None, int | None]  # epoch and number; the nonce never reaches the ledger

_LEASED = (State.ASSIGNED, State.RUNNING)
_BACK_OR_OUT = {(held, gone) for held in _LEASED for gone in (State.PENDING, State.FAILED)}

# Which arrows a reason may explain; the comments beside `helix.reason` say the same.
REASONS: dict[str, frozenset[tuple[State | None, State]]] = {
    "submitted": frozenset({(None, State.PENDING)}),
    "claimed": frozenset({(State.PENDING, State.ASSIGNED)}),
    "started": frozenset({(State.ASSIGNED, State.RUNNING)}),
    "completed": frozenset({(State.RUNNING, State.COMPLETED)}),
    "failed": frozenset(_BACK_OR_OUT),
    "released": frozenset({(held, State.PENDING) for held in _LEASED}),
    "lost": frozenset(_BACK_OR_OUT),
    "recovered": frozenset(_BACK_OR_OUT),
    "retried": frozenset({(State.FAILED, State.PENDING)}),
    "cancelled": frozenset({(was, State.CANCELLED) for was in (State.PENDING, *_LEASED)}),
    "expired": frozenset({(State.PENDING, State.CANCELLED)}),
}
# One look-up a step instead of two.
_STEPS = frozenset(
    (before, after, reason)
    for reason, arrows in REASONS.items()
    for before, after in arrows
    if (before, after) in ARROWS
)
# What a step does to the count of attempts; every other reason leaves it as it was.
_COUNTS = {"claimed": 1, "released": -1}
# Steps that only the holder of the lease, or whoever ends it, can take: they carry its token.
_UNDER_TOKEN = frozenset({"started", "completed", "failed", "released", "lost", "recovered"})


class Kind(StrEnum):
    GAP = "gap"  # a version is missing, or stands twice
    TORN = "torn"  # from_state is not where the event before it led
    AFTER_FINAL = "after_final"  # the batch had ended for good
    ARROW = "arrow"  # there is no such arrow, or this reason does not explain it
    ATTEMPT = "attempt"  # the count of attempts does not follow
    TOKEN = "token"  # noqa: S105 - the word for a lease's proof, not a password
    TENANT = "tenant"  # the batch changed hands
    HASH = "hash"  # the chain is broken: this event or one before it was edited
    STANDING = "standing"  # the tables say otherwise than the fold
    NOWHERE = "nowhere"  # events, but the batch stands in no table
    TWICE = "twice"  # the batch stands in two tables
    UNTOLD = "untold"  # the batch stands somewhere, but no event says how it came there
    REMAINS = "remains"  # events of a batch that was retired


@dataclass(frozen=True, slots=True)
class Violation:
    kind: Kind
    batch: int
    message: str
    witnesses: tuple[Event, ...] = ()  # the event at fault, behind its predecessor


@dataclass(slots=True)
class Folded:
    """Where the events lead. After a violation the fold goes on from what the event claims."""

    batch: int
    tenant: str
    state: str
    version: int
    attempt: int
    hash: bytes
    events: int
    violations: list[Violation] = field(default_factory=list)


def fold(events: Iterable[Event]) -> Folded:
    """Fold one batch's events, in the order of their versions; there must be at least one.

    Plain tuples in `Event`'s order are as good as events. Violations are collected, not raised: a
    replay wants all of them.
    """
    before: Event | None = None
    violations: list[Violation] = []
    tenant = state = None
    version = attempt = count = 0
    chain = b""
    token: Token | None = None  # of the last claim
    for event in events:
        (batch, its_version, its_tenant, from_state, to_state, _, _, its_attempt, epoch, number, _,
         reason, _, _, its_hash) = event  # fmt: skip
        count += 1
        expected = 0 if reason == "retried" else attempt + _COUNTS.get(reason, 0)
        if (
            its_version != version + 1
            or from_state != state
            or (from_state, to_state, reason) not in _STEPS
            or its_attempt != expected
            or (tenant is not None and its_tenant != tenant)
            or (reason in _UNDER_TOKEN and (epoch, number) != token)
            or event_hash(chain, event) != its_hash
        ):
            violations += _explain(
                before and Event._make(before),
                Event._make(event),
                attempt=expected,
                token=token,
                chain=chain,
            )
        if reason == "claimed":
            token = (epoch, number)
        before, version, state, tenant = event, its_version, to_state, its_tenant
        attempt, chain = its_attempt, its_hash
    if before is None or tenant is None or state is None:
        raise ValueError("fold: expected at least one event, got none")
    return Folded(batch, tenant, state, version, attempt, chain, count, violations)


def _explain(
    before: Event | None, event: Event, *, attempt: int, token: Token | None, chain: bytes
) -> list[Violation]:
    """Name everything that is wrong with one event; the hot loop only knows that something is."""
    where = f"batch {event.batch}, version {event.version}"
    arrow = f"{event.from_state or '(new)'} -> {event.to_state}"
    state = None if before is None else before.to_state
    follows = 1 if before is None else before.version + 1
    found: list[Violation] = []

    def report(kind: Kind, message: str) -> None:
        witnesses = (event,) if before is None else (before, event)
        found.append(Violation(kind, event.batch, f"{where}: {message}", witnesses))

    if event.version != follows:
        report(Kind.GAP, f"expected version {follows}")
    if event.from_state != state:
        report(Kind.TORN, f"{arrow}, but the event before led to {state or '(new)'}")
    if state in FINAL:
        report(Kind.AFTER_FINAL, f"{state} is final, yet {arrow} follows")
    if (event.from_state, event.to_state, event.reason) not in _STEPS:
        report(Kind.ARROW, f"no arrow {arrow} by reason {event.reason}")
    if event.attempt != attempt:
        report(Kind.ATTEMPT, f"expected attempt {attempt}, got {event.attempt}")
    if before is not None and event.tenant != before.tenant:
        report(Kind.TENANT, f"expected tenant {before.tenant}, got {event.tenant}")
    if event.reason in _UNDER_TOKEN and (event.epoch, event.number) != token:
        given = "none" if token is None else f"{token[0]}/{token[1]}"
        report(Kind.TOKEN, f"expected the token of the claim, {given}, "
                           f"got {event.epoch}/{event.number}")  # fmt: skip
    if event_hash(chain, event) != event.hash:
        report(Kind.HASH, "the hash does not follow from the columns and the hash before")
    return found
