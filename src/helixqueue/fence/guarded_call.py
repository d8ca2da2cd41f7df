"""One fenced block from claim to seal, as steps: what `with helix.fence(...)` does."""

from __future__ import annotations

import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError, Refused
from helixqueue.fence import encoding, protocol
from helixqueue.fence.counters import word_of
from helixqueue.fence.protocol import Nest
from helixqueue.fence.receipt import downstream_key
from helixqueue.identity import key_text

if TYPE_CHECKING:
    from contextvars import Token as ContextToken

    from helixqueue.engine.fences import FenceDecision, FenceLease, FenceResult
    from helixqueue.fence.answer import Codec
    from helixqueue.fence.counters import Counters
    from helixqueue.fence.heartbeat import AsyncFenceHeartbeat, Beat, FenceHeartbeat
    from helixqueue.fence.protocol import FenceClaim, FenceSteps, Found, Steps

_current: ContextVar[HeldFence | None] = ContextVar("helix_fence", default=None)


def current() -> HeldFence:
    """The fence that this code runs inside of."""
    held = _current.get()
    if held is None:
        raise Refused("expected to run inside a fence, got none; see helix.fence(...)")
    return held


class HeldFence:
    """A fence from the inside. `first` says whether the effect is this call's to do."""

    def __init__(self, claimed: FenceClaim, codec: Codec, name: str) -> None:
        told = claimed.told
        self.first = claimed.held is not None
        self.attempt = told.attempt or 1
        self.key = key_text(told.key)
        # For the next system, as its own idempotency key: the same in every attempt.
        self.downstream_key = downstream_key(told.key)
        self.effect: str | None = told.effect
        self.receipt: str | None = encoding.receipt_text(told)
        self.beat: Beat | None = None
        self._name = name
        self._codec = codec
        self._told = told
        self._value: Any = None

    def seal(self, result: object = None, *, effect: str | None = None) -> None:
        """Say what came of it; it is written when the block ends."""
        if not self.first:
            raise Refused(f"fence {self._name}: it was done before; the first result stays")
        self._value = result
        self.effect = effect or self.effect

    @property
    def result(self) -> Any:  # noqa: ANN401 - what the effect returned
        """What came of it, the first time; raises `ResultGone` when it is not kept."""
        if self.receipt is None:
            return self._value
        return encoding.read(self._codec, self._told, self._name)

    @property
    def lost(self) -> bool:
        """Whether a heartbeat was refused: the result of this call will not count."""
        return self.beat is not None and self.beat.lost

    def _answer(self) -> FenceResult:
        self.effect = encoding.effect_id(self.effect, self._name)
        return encoding.written(self._codec, self._value, self.effect)

    def _sealed(self, told: FenceDecision) -> None:
        self._told = told
        self.receipt = encoding.receipt_text(told)


class GuardedCall:
    """Claim, effect, seal: one call of a fenced function, or one `with`."""

    def __init__(
        self,
        made: FenceSteps,
        codec: Codec,
        identity: str | None,
        request: str,
        *,
        probes: bool,
        pulse: FenceHeartbeat | AsyncFenceHeartbeat,
        counters: Counters,
    ) -> None:
        self._plan = made
        self._codec = codec
        self._identity = identity
        self._request = request
        self._probes = probes
        self._pulse = pulse
        self._counters = counters
        self._token: ContextToken[HeldFence | None] | None = None

    def found(self, looked: object) -> Found:
        return encoding.found(looked, partial(encoding.written, self._codec), self._plan.name)

    def entering(self) -> Steps[HeldFence]:
        self._began = time.monotonic()
        try:
            self._claimed = yield from protocol.claim(
                self._plan, self._identity, self._request, probes=self._probes
            )
        except HelixError as refused:
            self._count(word_of(refused))
            raise
        self._held = HeldFence(self._claimed, self._codec, self._plan.name)
        self._count("executed" if self._held.first else self._claimed.told.decision)
        if self._claimed.waited:
            self._counters.took("function", self._plan.name, "waited", self._claimed.waited)
        if self._identity is None:
            self._count("unknown")
        if self._claimed.held is not None:
            if self._held.attempt > 1:
                self._counters.retook("function", self._plan.name)
            if self._plan.alone:
                self._held.beat = self._pulse.hold(self._claimed.held, self._plan.times)
            else:
                yield Nest("open")
        self._token = _current.set(self._held)
        return self._held

    def leave(self) -> None:
        """Not a step of the plan: a context is left by the task that entered it."""
        if self._token is not None:
            _current.reset(self._token)

    def leaving(self, error: BaseException | None) -> Steps[None]:
        if self._claimed.held is None:
            return
        try:
            if error is None:
                yield from self._seal(self._claimed.held)
            else:
                yield from self._give_up(self._claimed.held, error)
        finally:
            if self._held.beat is not None:
                self._pulse.drop(self._held.beat)

    def _seal(self, held: FenceLease) -> Steps[None]:
        if not self._plan.alone:
            yield Nest("keep")
        try:
            told = yield from protocol.seal(self._plan, held, self._held._answer())  # noqa: SLF001
        except HelixError as refused:
            self._count(word_of(refused))
            raise
        self._held._sealed(told)  # noqa: SLF001 - the two sides of one fence
        seconds = time.monotonic() - self._began
        self._counters.took("function", self._plan.name, "sealed", seconds)

    def _give_up(self, held: FenceLease, error: BaseException) -> Steps[None]:
        said = encoding.told_of(error)
        try:
            if not self._plan.alone:
                # The effect is undone; the fence goes with the transaction, or is free in it.
                if (yield Nest("undo")):
                    yield from protocol.release(self._plan, held, said)
                self._count("released")
            elif isinstance(error, encoding.NotApplied):
                yield from protocol.release(self._plan, held, said)
                self._count("released")
            else:
                yield from protocol.doubt(self._plan, held, said)
                self._count("doubted")
        except HelixError:
            # The lease will run out, and that is the same doubt. The caller hears of its own error.
            encoding.log.exception("fence %s: could not be put in doubt", self._plan.name)

    def _count(self, decision: str) -> None:
        self._counters.decided("function", self._plan.name, decision)
