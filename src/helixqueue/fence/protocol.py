"""What a fenced call does, step by step, without doing any of it.

Each function yields steps as in `operations/steps.py`, and two more: `Look` calls the caller's
probe, `Nest` opens a savepoint. `runner.py` performs them, in a thread or in an event loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceDecision, FenceLease, FenceResult, Finding, Times
from helixqueue.errors import Conflict, HelixError, InDoubt, InProgress, LeaseLost
from helixqueue.failpoints import failpoint
from helixqueue.identity import diff, key_text, loads
from helixqueue.operations.steps import Execute, Sleep, retried
from helixqueue.records.lease import Token

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call

T = TypeVar("T")

# A claim is asked again for a second while the database is away: nothing has happened yet.
CLAIM_SECONDS = 1.0
# A seal for longer: the effect has happened, and only this process knows what came of it.
SEAL_SECONDS = 6.0
FIRST_WAIT, LONGEST_WAIT = 0.01, 0.25
PLACES_SHOWN = 3  # of a difference, in a message


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe came back with, in the words of the database."""

    finding: Finding
    answer: FenceResult | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """Performed by the caller's probe; answered with `Found`."""

    doubted: FenceDecision


@dataclass(frozen=True, slots=True)
class Nest:
    """A savepoint around a local effect; undoing tells whether the transaction can go on."""

    what: Literal["open", "keep", "undo"]


Step = Execute | Sleep | Look | Nest
Steps = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class FenceSteps:
    """What is fenced, and how."""

    tenant: str
    name: str
    actor: str
    times: Times = field(default_factory=Times)
    start: bool = True  # a foreign effect: claim and marker in one commit
    replayable: bool = False  # the downstream honours its key: doubt is driven again
    max_attempts: int = 5
    keep_request: bool = True
    wait_seconds: float = 2.0  # for somebody else who is at it
    alone: bool = True  # not inside a caller's transaction


@dataclass(frozen=True, slots=True)
class FenceClaim:
    """The end of a claim: ours to do (`held`), or done before."""

    told: FenceDecision
    held: FenceLease | None
    waited: float = 0.0  # seconds, for somebody else who was at it


def claim(
    plan: FenceSteps, identity: str | None, request: str, *, probes: bool = False
) -> Steps[FenceClaim]:
    """Find out whether it is ours to do; raises `Conflict`, `InProgress` or `InDoubt`."""
    nonce = secrets.randbits(63)
    waited, pause = 0.0, FIRST_WAIT
    failpoint("fence.claim.before")
    while True:
        told: FenceDecision = yield from _claim_once(plan, identity, request, nonce)
        if told.decision == "in_doubt" and probes:
            told = yield from _probe(plan, told, nonce)
        if told.decision == "granted":
            failpoint("fence.claim.after")
            return FenceClaim(told, held(told, nonce), waited)
        if told.decision in {"repeated", "expired", "sealed"}:
            return FenceClaim(told, None, waited)
        if told.decision == "mismatch":
            raise conflict(plan, told, request)
        if told.decision == "in_doubt":
            raise doubtful(plan, told)
        if told.decision == "in_progress":
            if waited >= plan.wait_seconds:
                raise in_progress(plan, told)
            waited, pause = yield from _wait(plan, told, waited, pause)


def _claim_once(
    plan: FenceSteps, identity: str | None, request: str, nonce: int
) -> Steps[FenceDecision]:
    call = fences.claim(
        tenant=plan.tenant,
        name=plan.name,
        identity=identity,
        request=request,
        actor=plan.actor,
        nonce=nonce,
        start=plan.start,
        times=plan.times,
        replayable=plan.replayable,
        max_attempts=plan.max_attempts,
        keep_request=plan.keep_request,
        alone=plan.alone,
    )
    return (yield from _surely(plan, call, CLAIM_SECONDS))


def _wait(
    plan: FenceSteps, told: FenceDecision, waited: float, pause: float
) -> Steps[tuple[float, float]]:
    """Look at the fence now and then, without a connection in between, until it is free.

    Gives the seconds waited, and the next pause: who has to come back looks less often.
    """
    while waited < plan.wait_seconds:
        yield Sleep(pause)
        waited += pause
        pause = min(pause * 2, LONGEST_WAIT)
        seen: tuple[int, bool] | None = yield from _surely(
            plan, fences.find_holder(told.key), CLAIM_SECONDS
        )
        # Unseen: the holder's transaction has not committed. The next claim finds out.
        if seen is None or not seen[1]:
            break
    return waited, pause


def _probe(plan: FenceSteps, doubted: FenceDecision, nonce: int) -> Steps[FenceDecision]:
    found: Found = yield Look(doubted)
    call = fences.probe(
        doubted,
        found.finding,
        plan.times,
        actor=plan.actor,
        nonce=nonce,
        answer=found.answer,
    )
    return (yield from _surely(plan, call, CLAIM_SECONDS))


def held(told: FenceDecision, nonce: int) -> FenceLease:
    assert told.epoch is not None  # noqa: S101 - a granted fence has its token
    assert told.number is not None  # noqa: S101
    return FenceLease(told.key, Token(told.epoch, nonce, told.number))


def start(plan: FenceSteps, held: FenceLease) -> Steps[FenceDecision]:
    """Write the marker: from here on it may have happened."""
    told = yield from _surely(plan, fences.start(held, actor=plan.actor), CLAIM_SECONDS)
    return _owned(plan, told)


def seal(plan: FenceSteps, held: FenceLease, answer: FenceResult) -> Steps[FenceDecision]:
    """Keep what came of it; raises `LeaseLost` when somebody else decided meanwhile."""
    call = fences.seal(held, answer, plan.times, actor=plan.actor)
    failpoint("fence.seal.before")
    try:
        told = yield from _surely(plan, call, SEAL_SECONDS)
    except HelixError as failure:
        if not plan.alone:
            raise  # the effect went with the caller's transaction
        # Whatever it was (away, read-only, a bound): the effect took place, and is not on record.
        raise InDoubt(
            f"{plan.name}: the effect took place, but its answer could not be kept: {failure}",
            key=key_text(held.key),
        ) from failure
    failpoint("fence.seal.after")
    return _owned(plan, told)


def release(plan: FenceSteps, held: FenceLease, detail: str) -> Steps[FenceDecision]:
    """Nothing happened, and that is certain: the next call may do it."""
    call = fences.release(held, plan.times, actor=plan.actor, detail=detail)
    failpoint("fence.release.before")
    told = yield from _surely(plan, call, CLAIM_SECONDS)
    failpoint("fence.release.after")
    return told


def doubt(plan: FenceSteps, held: FenceLease, detail: str) -> Steps[FenceDecision]:
    """It may have happened."""
    call = fences.doubt(held, actor=plan.actor, detail=detail)
    failpoint("fence.doubt.before")
    told = yield from _surely(plan, call, CLAIM_SECONDS)
    failpoint("fence.doubt.after")
    return told


def _surely(plan: FenceSteps, call: Call[T], seconds: float) -> Steps[T]:
    """Ask again when the answer was lost; every call here is answered the same the second time.

    Not inside a caller's transaction: that is over, and the caller begins it again.
    """
    if plan.alone:
        return (yield from retried(call, seconds=seconds))
    told: T = yield Execute(call)
    return told


def _owned(plan: FenceSteps, told: FenceDecision) -> FenceDecision:
    if told.decision != "fenced_out":
        return told
    raise LeaseLost(
        f"{plan.name}: this fence was given to {told.holder or 'nobody'} meanwhile; the result of "
        "this call is kept as evidence in helix.fence_decision and is not served",
        owner=told.holder,
    )


def conflict(plan: FenceSteps, told: FenceDecision, request: str) -> Conflict:
    got = loads(request)
    # The first request is not kept any more, or never was: all that is known is that they differ.
    unknown = [{"op": "replace", "path": "", "value": got}]
    changes = unknown if told.request is None else diff(loads(told.request), got)
    places = ", ".join(str(change["path"] or "the whole") for change in changes[:PLACES_SHOWN])
    more = f" and {len(changes) - PLACES_SHOWN} more" if len(changes) > PLACES_SHOWN else ""
    return Conflict(
        f"{plan.name}: this key stands for another request; they differ at {places}{more}; "
        "use a new key for new work",
        diff=changes,
    )


def in_progress(plan: FenceSteps, told: FenceDecision) -> InProgress:
    after = min(max(told.retry_after or 1.0, 1.0), 30.0)
    return InProgress(
        f"{plan.name}: {told.holder or 'somebody'} is at it; ask again in {after:.0f} s",
        retry_after=after,
        key=key_text(told.key),
    )


def doubtful(plan: FenceSteps, told: FenceDecision) -> InDoubt:
    why = told.note or "a probe or `helixq fence resolve` decides"
    key = key_text(told.key)
    return InDoubt(
        f"{plan.name}: it was begun and nobody knows how it ended; {why} (fence {key})",
        key=key,
        retry_after=told.retry_after,
    )
