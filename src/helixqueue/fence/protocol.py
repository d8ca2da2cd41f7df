"""The instructions of a fenced call, without I/O.

Each function yields the instructions of `operations/instructions.py`, and three more: `RunProbe`
calls the caller's probe, `CompareRequests` finds how two requests differ, `Savepoint` surrounds a
local effect. `runner.py` performs them in a thread or an event loop.
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
from helixqueue.operations.instructions import Execute, Sleep, retried
from helixqueue.records.lease import Token

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call

T = TypeVar("T")

# How long a claim is retried while the database is unreachable: nothing has happened yet.
CLAIM_SECONDS = 1.0
# A seal is retried longer: the effect has happened, and only this process knows its result.
SEAL_SECONDS = 6.0
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.01, 0.25
PATHS_IN_MESSAGE = 3


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """What a probe found, in the words of the database."""

    finding: Finding
    result: FenceResult | None = None


@dataclass(frozen=True, slots=True)
class RunProbe:
    """Call the caller's probe; the reply is a `ProbeFinding`."""


@dataclass(frozen=True, slots=True)
class CompareRequests:
    """Compare two requests, which takes long for large ones; the reply is a list of changes."""

    first: str | None  # None: not kept
    received: str

    def changes(self) -> list[dict[str, Any]]:
        received = loads(self.received)
        if self.first is None:
            # All that is known is that the two differ.
            return [{"op": "replace", "path": "", "value": received}]
        return diff(loads(self.first), received)


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Around a local effect; the reply to "undo" is whether the transaction is still usable."""

    action: Literal["open", "keep", "undo"]


class Undo(Exception):
    """Makes a savepoint or a transaction roll back."""


Instruction = Execute | Sleep | RunProbe | CompareRequests | Savepoint
Instructions = Generator[Instruction, Any, T]


@dataclass(frozen=True, slots=True)
class FenceSpec:
    """The fenced operation and the options of its fence."""

    tenant: str
    name: str
    actor: str
    times: Times = field(default_factory=Times)
    start: bool = True  # an effect outside the database: claim and marker in one commit
    replayable: bool = False  # the next system honours its key: a doubt is executed again
    max_attempts: int = 5
    keep_request: bool = True
    wait_seconds: float = 2.0  # for another call that holds the fence
    alone: bool = True  # not inside a caller's transaction


@dataclass(frozen=True, slots=True)
class FenceClaim:
    """The end of a claim: this call executes (`lease`), or the effect happened before."""

    reply: FenceDecision
    lease: FenceLease | None
    waited: float = 0.0  # seconds, for another holder


def claim(
    spec: FenceSpec, identity: str | None, request: str, *, has_probe: bool = False
) -> Instructions[FenceClaim]:
    """Find out whether this call executes; raises `Conflict`, `InProgress` or `InDoubt`."""
    nonce = secrets.randbits(63)
    waited, poll = 0.0, FIRST_POLL_SECONDS
    failpoint("fence.claim.before")
    while True:
        reply: FenceDecision = yield from _claim_once(spec, identity, request, nonce)
        if reply.decision == "in_doubt" and has_probe:
            reply = yield from _probe(spec, reply, nonce)
        if reply.decision == "granted":
            failpoint("fence.claim.after")
            return FenceClaim(reply, _lease(reply, nonce), waited)
        if reply.decision in {"repeated", "expired", "sealed"}:
            return FenceClaim(reply, None, waited)
        if reply.decision == "mismatch":
            changes = yield CompareRequests(reply.request, request)
            raise _conflict(spec, reply, changes)
        if reply.decision == "in_doubt":
            raise _in_doubt(spec, reply)
        if reply.decision == "in_progress":
            if waited >= spec.wait_seconds:
                raise _in_progress(spec, reply)
            waited, poll = yield from _wait(spec, reply, waited, poll)


def _claim_once(
    spec: FenceSpec, identity: str | None, request: str, nonce: int
) -> Instructions[FenceDecision]:
    call = fences.claim(
        tenant=spec.tenant,
        name=spec.name,
        identity=identity,
        request=request,
        actor=spec.actor,
        nonce=nonce,
        start=spec.start,
        times=spec.times,
        replayable=spec.replayable,
        max_attempts=spec.max_attempts,
        keep_request=spec.keep_request,
        alone=spec.alone,
    )
    return (yield from _execute(spec, call, CLAIM_SECONDS))


def _wait(
    spec: FenceSpec, reply: FenceDecision, waited: float, poll: float
) -> Instructions[tuple[float, float]]:
    """Poll until the fence has no live holder, without a connection in between.

    Returns the seconds waited and the next polling interval, which grows.
    """
    while waited < spec.wait_seconds:
        yield Sleep(poll)
        waited += poll
        poll = min(poll * 2, LONGEST_POLL_SECONDS)
        holder: tuple[int, bool] | None = yield from _execute(
            spec, fences.find_holder(reply.key), CLAIM_SECONDS
        )
        # None: the transaction of the holder has not committed. The next claim finds out.
        if holder is None or not holder[1]:
            break
    return waited, poll


def _probe(spec: FenceSpec, doubt: FenceDecision, nonce: int) -> Instructions[FenceDecision]:
    found: ProbeFinding = yield RunProbe()
    call = fences.probe(
        doubt, found.finding, spec.times, actor=spec.actor, nonce=nonce, result=found.result
    )
    return (yield from _execute(spec, call, CLAIM_SECONDS))


def _lease(reply: FenceDecision, nonce: int) -> FenceLease:
    assert reply.epoch is not None  # noqa: S101 - a granted fence has its token
    assert reply.number is not None  # noqa: S101
    return FenceLease(reply.key, Token(reply.epoch, nonce, reply.number))


def seal(spec: FenceSpec, lease: FenceLease, result: FenceResult) -> Instructions[FenceDecision]:
    """Keep the result; raises `LeaseLost` when the fence was decided otherwise meanwhile."""
    call = fences.seal(lease, result, spec.times, actor=spec.actor)
    failpoint("fence.seal.before")
    try:
        reply = yield from _execute(spec, call, SEAL_SECONDS)
    except HelixError as failure:
        if not spec.alone:
            raise  # the caller's transaction rolls the effect back
        # Whatever the cause (unreachable, read-only, a bound): the effect happened, unrecorded.
        raise InDoubt(
            f"{spec.name}: the effect took place, but its result could not be stored: {failure}",
            key=key_text(lease.key),
        ) from failure
    failpoint("fence.seal.after")
    if reply.decision == "fenced_out":
        raise LeaseLost(
            f"{spec.name}: {reply.holder or 'no other call'} holds this fence now; the result of "
            "this call is kept as evidence in helix.fence_decision and is not returned to repeats",
            owner=reply.holder,
        )
    return reply


def start(spec: FenceSpec, lease: FenceLease) -> Instructions[FenceDecision]:
    """Report that the effect starts; raises `LeaseLost` when another call took the fence over."""
    failpoint("fence.start.before")
    reply = yield from _execute(spec, fences.start(lease, actor=spec.actor), CLAIM_SECONDS)
    failpoint("fence.start.after")
    if reply.decision == "fenced_out":
        raise LeaseLost(
            f"{spec.name}: {reply.holder or 'no other call'} holds this fence now; the effect of "
            "this call did not start",
            owner=reply.holder,
        )
    return reply


def release(spec: FenceSpec, lease: FenceLease, detail: str) -> Instructions[FenceDecision]:
    """Report that nothing happened: the next call executes."""
    call = fences.release(lease, spec.times, actor=spec.actor, detail=detail)
    failpoint("fence.release.before")
    reply = yield from _execute(spec, call, CLAIM_SECONDS)
    failpoint("fence.release.after")
    return reply


def doubt(spec: FenceSpec, lease: FenceLease, detail: str) -> Instructions[FenceDecision]:
    """Report that the effect may have happened."""
    call = fences.doubt(lease, actor=spec.actor, detail=detail)
    failpoint("fence.doubt.before")
    reply = yield from _execute(spec, call, CLAIM_SECONDS)
    failpoint("fence.doubt.after")
    return reply


def _execute(spec: FenceSpec, call: Call[T], seconds: float) -> Instructions[T]:
    """Retry a call whose reply was lost; every call here gets the same reply again.

    Not inside a caller's transaction: that has failed, and the caller starts it again.
    """
    if spec.alone:
        return (yield from retried(call, seconds=seconds))
    reply: T = yield Execute(call)
    return reply


def _conflict(spec: FenceSpec, reply: FenceDecision, changes: list[dict[str, Any]]) -> Conflict:
    paths = ", ".join(
        str(change["path"] or "the whole document") for change in changes[:PATHS_IN_MESSAGE]
    )
    more = len(changes) - PATHS_IN_MESSAGE
    return Conflict(
        f"{spec.name}: this key belongs to another request; they differ at {paths}"
        f"{f' and {more} more' if more > 0 else ''}; use a new key for new work",
        diff=changes,
        effect=reply.effect,
    )


def _in_progress(spec: FenceSpec, reply: FenceDecision) -> InProgress:
    after = min(max(reply.retry_after or 1.0, 1.0), 30.0)
    return InProgress(
        f"{spec.name}: {reply.holder or 'another call'} holds this fence; retry in {after:.0f} s",
        retry_after=after,
        key=key_text(reply.key),
    )


def _in_doubt(spec: FenceSpec, reply: FenceDecision) -> InDoubt:
    key = key_text(reply.key)
    cause = f" ({reply.note})" if reply.note else ""
    return InDoubt(
        f"{spec.name}: the effect started and its outcome is unknown{cause}; a probe or "
        f"`helixq fence resolve {key}` decides",
        key=key,
        retry_after=reply.retry_after,
    )
