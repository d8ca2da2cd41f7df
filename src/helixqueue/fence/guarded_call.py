"""One fenced call from claim to seal, as instructions: what `with helix.fence(...)` does."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from helixqueue.errors import HelixError, Refused
from helixqueue.fence import encoding, protocol
from helixqueue.fence.decision_log import DecisionLog
from helixqueue.fence.protocol import Savepoint
from helixqueue.fence.receipt import downstream_key
from helixqueue.identity import PART_SEPARATOR, key_text
from helixqueue.records.fence import receipt_text

if TYPE_CHECKING:
    from contextvars import Token as ContextToken

    from helixqueue.engine.fences import FenceDecision, FenceLease, FenceResult
    from helixqueue.fence.encoding import Codec
    from helixqueue.fence.heartbeat import AsyncFenceHeartbeat, FenceHeartbeat, TrackedLease
    from helixqueue.fence.metrics import Counters
    from helixqueue.fence.protocol import FenceClaim, FenceSpec, Instructions, ProbeFinding

_current: ContextVar[HeldFence | None] = ContextVar("helix_fence", default=None)


def current() -> HeldFence:
    """The fence that surrounds the calling code."""
    held = _current.get()
    if held is None:
        raise Refused("expected to run inside a fence, got none; see helix.fence(...)")
    return held


class HeldFence:
    """A fence from the inside. `first` is whether this call executes the effect."""

    def __init__(self, claim: FenceClaim, codec: Codec, name: str) -> None:
        reply = claim.reply
        self.first = claim.lease is not None
        self.attempt = reply.attempt or 1
        self.key = key_text(reply.key)
        # The idempotency key for the next system: the same in every attempt.
        self.downstream_key = downstream_key(reply.key)
        self.effect: str | None = reply.effect
        self.receipt: str | None = receipt_text(reply.receipt)
        self.tracked: TrackedLease | None = None
        self._name = name
        self._codec = codec
        self._reply = reply
        self._value: Any = None

    def seal(self, result: object = None, *, effect: str | None = None) -> None:
        """Set the result; it is stored when the block ends."""
        if not self.first:
            raise Refused(
                f"fence {self._name}: the effect took place before; the first result stays"
            )
        self._value = result
        self.effect = effect or self.effect

    @property
    def result(self) -> Any:  # noqa: ANN401 - what the effect returned
        """The result of the first call; raises `ResultGone` for a repeat when it is not kept."""
        if self.first and (self.receipt is None or self._reply.answer is None):
            return self._value  # this call's own, also where it could not be stored
        return encoding.decode_result(self._codec, self._reply, self._name)

    @property
    def lost(self) -> bool:
        """Whether a heartbeat was refused: the result of this call will not count."""
        return self.tracked is not None and self.tracked.lost

    def _encoded(self) -> FenceResult:
        self.effect = encoding.effect_id(self.effect, self._name)
        return encoding.encode_result(self._codec, self._value, self.effect, self._name)

    def _sealed(self, reply: FenceDecision) -> None:
        self._reply = reply
        self.receipt = receipt_text(reply.receipt)


class GuardedCall:
    """Claim, effect, seal: one call of a fenced function, or one `with` block."""

    def __init__(
        self,
        spec: FenceSpec,
        codec: Codec,
        identity: str | None,
        request: str,
        *,
        source: tuple[str, str] | None,
        has_probe: bool,
        heartbeat: FenceHeartbeat | AsyncFenceHeartbeat,
        counters: Counters,
    ) -> None:
        self._spec = spec
        self._codec = codec
        self._identity = identity
        self._request = request
        self._has_probe = has_probe
        self._heartbeat = heartbeat
        self._token: ContextToken[HeldFence | None] | None = None
        self._log = DecisionLog(counters, encoding.log, "function", spec.name)
        key = None if identity is None else identity.replace(PART_SEPARATOR, "/")
        source_type, source_id = source or ("function", key)
        self._log.add(key=key, source_type=source_type, source_id=source_id)

    def read_probe(self, returned: object) -> ProbeFinding:
        return encoding.probe_finding(
            returned,
            lambda result, effect: encoding.encode_result(
                self._codec, result, effect, self._spec.name
            ),
            self._spec.name,
        )

    def enter(self) -> Instructions[HeldFence]:
        try:
            self._claim = yield from protocol.claim(
                self._spec, self._identity, self._request, has_probe=self._has_probe
            )
        except HelixError as error:
            self._log.record_error(error)
            raise
        held = self._held = HeldFence(self._claim, self._codec, self._spec.name)
        self._log.claimed(held.attempt, self._claim.waited, executes=held.first)
        if not held.first:
            self._log.record("duplicate", effect_id=held.effect)
        if self._identity is None:
            self._log.count("unknown")
        if self._claim.lease is not None:
            if self._spec.alone:
                held.tracked = self._heartbeat.track(self._claim.lease, self._spec.times)
            else:
                yield Savepoint("open")
        self._token = _current.set(held)
        return held

    def reset_context(self) -> None:
        """Not an instruction: a context variable is reset by the task that set it."""
        if self._token is not None:
            _current.reset(self._token)

    def leave(self, error: BaseException | None) -> Instructions[None]:
        if self._claim.lease is None:
            return
        try:
            if error is None:
                yield from self._seal(self._claim.lease)
            else:
                yield from self._give_up(self._claim.lease, error)
        finally:
            if self._held.tracked is not None:
                self._heartbeat.untrack(self._held.tracked)

    def _seal(self, lease: FenceLease) -> Instructions[None]:
        if not self._spec.alone:
            yield Savepoint("keep")
        result = self._held._encoded()  # noqa: SLF001 - the two sides of one fence
        try:
            reply = yield from protocol.seal(self._spec, lease, result)
        except HelixError as error:
            self._log.record_error(error)
            raise
        self._held._sealed(reply)  # noqa: SLF001
        self._log.record("new", effect_id=reply.effect)

    def _give_up(self, lease: FenceLease, error: BaseException) -> Instructions[None]:
        detail = encoding.error_text(error)
        try:
            if not self._spec.alone:
                # The effect is undone. The fence goes with the transaction, or is free within it.
                if (yield Savepoint("undo")):
                    yield from protocol.release(self._spec, lease, detail)
                self._log.record("released")
            elif isinstance(error, encoding.NotApplied):
                yield from protocol.release(self._spec, lease, detail)
                self._log.record("released")
            else:
                yield from protocol.doubt(self._spec, lease, detail)
                self._log.record("doubted")
        except HelixError:
            # The caller gets its own error. The lease expires, and that is the same doubt.
            encoding.log.exception("fence %s: could not be put in doubt", self._spec.name)
