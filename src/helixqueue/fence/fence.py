"""`helix.fence(...)`: around a function or a block, so that it takes effect once.

```python
@helix.fence("refund", key=lambda order: (order.id, order.revision), probe=find_refund)
def refund(order: Order) -> Refund: ...
```

In one line the triple defence: a repeat returns the kept result before the expensive call, the
first result wins, and the primary key of `helix.fence` is the net under those who race.
"""

from __future__ import annotations

import inspect
import os
import socket
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast

from helixqueue.engine import fences
from helixqueue.errors import Refused
from helixqueue.fence import encoding
from helixqueue.fence.answer import UNTYPED, Codec
from helixqueue.fence.counters import Counters
from helixqueue.fence.exposition import exposition
from helixqueue.fence.guarded_call import GuardedCall, HeldFence
from helixqueue.fence.heartbeat import AsyncFenceHeartbeat, FenceHeartbeat
from helixqueue.fence.protocol import FenceSteps
from helixqueue.fence.runner import AsyncRun, AsyncStepRunner, Run, StepRunner, to_its_end
from helixqueue.operations.steps import run_steps, run_steps_async

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType

    from helixqueue.engine.fences import Times

F = TypeVar("F", bound="Callable[..., Any]")
R = TypeVar("R")


class FenceOptions(TypedDict, total=False):
    """How a fence is told what it guards; only name and key are needed."""

    # What the key stands for: a value, or a function of the arguments. All arguments unless said.
    payload: Any
    # Looks whether an effect took place: Applied(...), NOT_APPLIED or UNKNOWN. Same arguments.
    probe: Callable[..., Any] | None
    # The next system honours `current().downstream_key`: doubt is driven again, within bounds.
    replayable: bool
    max_attempts: int
    # How long the answer is kept, or all clocks.
    ttl: Times | timedelta | float | None
    # Seconds to wait for somebody else who is at it, before `InProgress`.
    wait: float
    # What to do with a call that has no key: refuse it, or run it each time and say so.
    unknown: encoding.Unknown
    # A connection in a transaction, or a function of the arguments that gives it: then the effect
    # is local, and commits or vanishes with its fence.
    within: Any
    # The type of the result, for a `with` block; functions have their annotation.
    result: Any


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """A fenced call in full: its result, its receipt, and whether it was a repeat."""

    result: R
    receipt: str
    repeated: bool
    effect: str | None


class _Site:
    """Where fences stand: a client's tenant, its name for the record, its counts."""

    def __init__(self, tenant: str, actor: str | None, counters: Counters | None) -> None:
        self.tenant = tenant
        self.actor = actor or f"{socket.gethostname()}:{os.getpid()}"[:255]
        self.counters = counters or Counters()


class Fences(_Site):
    """Makes fences that run on one client."""

    def __init__(
        self,
        run: Run,
        tenant: str,
        actor: str | None = None,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(tenant, actor, counters)
        self.run = run
        self.pulse = FenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """A decorator, and a context manager where `key` and `payload` are values."""
        return Fence(self, name, key, options)

    def metrics(self) -> str:
        """This client's counts and the state of the fences it may see, for Prometheus."""
        standing, behind = self.run(fences.count_open()), self.run(fences.sweep_lag())
        return exposition(self.counters.snapshot(), standing, behind)


class AsyncFences(_Site):
    """The same for an event loop."""

    def __init__(
        self,
        run: AsyncRun,
        tenant: str,
        actor: str | None = None,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(tenant, actor, counters)
        self.run = run
        self.pulse = AsyncFenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> AsyncFence:
        """A decorator of async functions, and an async context manager."""
        return AsyncFence(self, name, key, options)

    async def metrics(self) -> str:
        standing, behind = await self.run(fences.count_open()), await self.run(fences.sweep_lag())
        return exposition(self.counters.snapshot(), standing, behind)


def _known(name: str, options: FenceOptions) -> None:
    """A misspelt `within` would make a foreign effect of a local one."""
    for option in options.keys() - FenceOptions.__annotations__.keys():
        near = get_close_matches(option, FenceOptions.__annotations__, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(
            f"fence {name}: expected options among "
            f"{', '.join(FenceOptions.__annotations__)}{hint}, got {option}"
        )


class _Fence:
    """One fence as it was asked for; the same for both clients."""

    def __init__(
        self, site: Fences | AsyncFences, name: str, key: object, options: FenceOptions
    ) -> None:
        _known(name, options)
        self._site = site
        self._key = key
        self._options = options
        self._unknown: encoding.Unknown = options.get("unknown", "refuse")
        local = options.get("within") is not None
        self._plan = FenceSteps(
            tenant=site.tenant,
            name=name,
            actor=site.actor,
            times=encoding.times(options.get("ttl")),
            start=not local,
            replayable=options.get("replayable", False),
            max_attempts=options.get("max_attempts", 5),
            wait_seconds=options.get("wait", 2.0),
            alone=not local,
        )

    def _block(self, codec: Codec, key: object, request: str) -> GuardedCall:
        return GuardedCall(
            self._plan,
            codec,
            encoding.identity_text(key, self._plan.name, self._unknown),
            request,
            probes=self._options.get("probe") is not None,
            pulse=self._site.pulse,
            counters=self._site.counters,
        )

    def _own_block(self) -> GuardedCall:
        """For a `with`, where key and payload are values."""
        if callable(self._key) or callable(self._options.get("payload")):
            raise TypeError(
                f"fence {self._plan.name}: expected values for key and payload of a `with` block, "
                "got a function; functions of the arguments are for decorators"
            )
        codec = Codec(self._options.get("result", UNTYPED))
        return self._block(codec, self._key, encoding.request_text(self._options.get("payload")))

    def _within(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """The connection; a scoped session is callable, too, and is one."""
        within = self._options.get("within")
        if inspect.isfunction(within) or isinstance(within, partial):
            return within(*args, **kwargs)
        return within

    def _probe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        probe = self._options.get("probe")
        return None if probe is None else partial(probe, *args, **kwargs)

    def _demand(self, function: Callable[..., Any], *, is_async: bool) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"fence {self._plan.name}: {function.__qualname__} is a generator, which would be "
                "sealed before it began; return what it makes, as a list"
            )
        if inspect.iscoroutinefunction(function) is not is_async:
            wanted = "a function" if is_async else "an async function"
            other = "HelixQueue" if is_async else "AsyncHelixQueue"
            raise TypeError(
                f"fence {self._plan.name}: {function.__qualname__} is {wanted}; it needs the fence "
                f"of {other}"
            )


class Fence(_Fence):
    """One fence: decorate a function with it, or enter it."""

    _site: Fences
    _entered: tuple[GuardedCall, StepRunner] | None = None

    def __call__(self, function: F) -> F:
        self._demand(function, is_async=False)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401 - the function's
            block = self._block(
                signature.codec, signature.key(args, kwargs), signature.request(args, kwargs)
            )
            hands = StepRunner(
                self._site.run, self._within(args, kwargs), self._probe(args, kwargs)
            )
            held = _enter(block, hands)
            try:
                if held.first:
                    held.seal(function(*args, **kwargs))
            except BaseException as error:
                _leave(block, hands, error)
                raise
            _leave(block, hands, None)
            return Outcome(held.result, held.receipt or "", not held.first, held.effect)

        @wraps(function)
        def fenced(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            return outcome(*args, **kwargs).result

        fenced.outcome = outcome  # type: ignore[attr-defined]
        return cast("F", fenced)

    def __enter__(self) -> HeldFence:
        if self._entered is not None:
            raise Refused(f"fence {self._plan.name}: entered twice; make a new one for each block")
        block, hands = (
            self._own_block(),
            StepRunner(self._site.run, self._options.get("within"), self._options.get("probe")),
        )
        held = _enter(block, hands)
        self._entered = block, hands
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entered is not None  # noqa: S101 - Python enters before it exits
        _leave(*self._entered, error)


def _enter(block: GuardedCall, hands: StepRunner) -> HeldFence:
    hands.found = block.found
    return run_steps(block.entering(), hands)


def _leave(block: GuardedCall, hands: StepRunner, error: BaseException | None) -> None:
    block.leave()
    run_steps(block.leaving(error), hands)


class AsyncFence(_Fence):
    """The same for async functions and blocks."""

    _site: AsyncFences
    _entered: tuple[GuardedCall, AsyncStepRunner] | None = None

    def __call__(self, function: F) -> F:
        self._demand(function, is_async=True)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        async def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401
            block = self._block(
                signature.codec, signature.key(args, kwargs), signature.request(args, kwargs)
            )
            within, probe = self._within(args, kwargs), self._probe(args, kwargs)
            hands = AsyncStepRunner(self._site.run, within, probe)
            held = await _enter_async(block, hands)
            try:
                if held.first:
                    held.seal(await function(*args, **kwargs))
            except BaseException as error:
                await _leave_async(block, hands, error)
                raise
            await _leave_async(block, hands, None)
            return Outcome(held.result, held.receipt or "", not held.first, held.effect)

        @wraps(function)
        async def fenced(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            return (await outcome(*args, **kwargs)).result

        fenced.outcome = outcome  # type: ignore[attr-defined]
        return cast("F", fenced)

    async def __aenter__(self) -> HeldFence:
        if self._entered is not None:
            raise Refused(f"fence {self._plan.name}: entered twice; make a new one for each block")
        block, hands = (
            self._own_block(),
            AsyncStepRunner(
                self._site.run, self._options.get("within"), self._options.get("probe")
            ),
        )
        held = await _enter_async(block, hands)
        self._entered = block, hands
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entered is not None  # noqa: S101 - Python enters before it exits
        await _leave_async(*self._entered, error)


async def _enter_async(block: GuardedCall, hands: AsyncStepRunner) -> HeldFence:
    hands.found = block.found
    return await run_steps_async(block.entering(), hands)


async def _leave_async(
    block: GuardedCall, hands: AsyncStepRunner, error: BaseException | None
) -> None:
    block.leave()
    await to_its_end(run_steps_async(block.leaving(error), hands))
