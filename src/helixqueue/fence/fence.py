"""`helix.fence(...)`: surrounds a function or a block, so that it takes effect once.

```python
@helix.fence("refund", key=lambda order: (order.id, order.revision), probe=find_refund)
def refund(order: Order) -> Refund: ...
```

A repeat returns the kept result before the expensive call, the first result wins, and the primary
key of `helix.fence` decides between concurrent callers.
"""

from __future__ import annotations

import inspect
import os
import socket
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from helixqueue.engine import fences
from helixqueue.errors import Refused
from helixqueue.fence import encoding
from helixqueue.fence.encoding import UNTYPED, Codec
from helixqueue.fence.guarded_call import GuardedCall, HeldFence
from helixqueue.fence.heartbeat import AsyncFenceHeartbeat, FenceHeartbeat
from helixqueue.fence.metrics import Counters, prometheus_text
from helixqueue.fence.protocol import FenceSpec
from helixqueue.fence.runner import AsyncRun, AsyncStepRunner, Run, StepRunner, shielded
from helixqueue.operations.steps import run_steps, run_steps_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import timedelta
    from types import TracebackType

    from helixqueue.engine.fences import Times

PS = ParamSpec("PS")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class FenceOptions(TypedDict, total=False):
    """The options of a fence; only name and key are required."""

    # The request that the key belongs to: a value, or a function of the arguments. Default: all
    # arguments.
    payload: Any
    # Finds out whether the effect took place: Applied(...), NOT_APPLIED or UNKNOWN. Gets the
    # arguments of the function.
    probe: Callable[..., Any] | None
    # The next system honours `current().downstream_key`: a doubt is executed again, within
    # max_attempts.
    replayable: bool
    max_attempts: int
    # How long the result is kept, or all durations.
    ttl: Times | timedelta | float | None
    # Seconds to wait for another call that holds the fence, before `InProgress`.
    wait: float
    # A call without a key is refused, or executed every time with a warning.
    unknown: encoding.Unknown
    # A connection in a transaction, or a function of the arguments that returns one: the effect is
    # local, and commits or rolls back with its fence.
    within: Any
    # The type of the result of a `with` block; functions have their annotation.
    result: Any
    # (type, id) of the delivery behind the call, for the decision log: a value, or a function of
    # the arguments.
    source: Any


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R_co]):
    """The result of a fenced call with its receipt, and whether the call was a repeat."""

    result: R_co
    receipt: str
    repeated: bool
    effect: str | None


class FencedFunction(Protocol[PS, R_co]):
    """A function with a fence around it."""

    def __call__(self, *args: PS.args, **kwargs: PS.kwargs) -> R_co: ...

    def outcome(self, *args: PS.args, **kwargs: PS.kwargs) -> Outcome[R_co]:
        """Call it, and return the result with its receipt."""

    def __get__(self, instance: object, owner: type | None = None) -> Any: ...  # noqa: ANN401


class AsyncFencedFunction(Protocol[PS, R_co]):
    """A coroutine function with a fence around it."""

    def __call__(self, *args: PS.args, **kwargs: PS.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def outcome(
        self, *args: PS.args, **kwargs: PS.kwargs
    ) -> Coroutine[Any, Any, Outcome[R_co]]: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any: ...  # noqa: ANN401


def _default_actor() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:255]


class Fences:
    """Makes the fences of one client."""

    def __init__(
        self,
        run: Run,
        tenant: str,
        actor: str | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.run = run
        self.tenant = tenant
        self.actor = actor or _default_actor()
        self.counters = counters or Counters()
        self.heartbeat = FenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """A decorator, and a context manager where `key` and `payload` are values."""
        return Fence(self, name, key, options)

    def metrics(self) -> str:
        """The counters of this client and gauges of the fences it can read, for Prometheus."""
        open_fences, lag = self.run(fences.count_open()), self.run(fences.sweep_lag())
        return prometheus_text(self.counters.snapshot(), open_fences, lag)


class AsyncFences:
    """The same for an event loop."""

    def __init__(
        self,
        run: AsyncRun,
        tenant: str,
        actor: str | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.run = run
        self.tenant = tenant
        self.actor = actor or _default_actor()
        self.counters = counters or Counters()
        self.heartbeat = AsyncFenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> AsyncFence:
        """A decorator of async functions, and an async context manager."""
        return AsyncFence(self, name, key, options)

    async def metrics(self, *, with_counters: bool = True) -> str:
        """As `Fences.metrics`. A service shares its counters between the tenants."""
        open_fences, lag = await self.run(fences.count_open()), await self.run(fences.sweep_lag())
        counters = self.counters if with_counters else Counters()
        return prometheus_text(counters.snapshot(), open_fences, lag)


def _check_options(name: str, options: FenceOptions) -> None:
    """A misspelled `within` would turn a local effect into a foreign one."""
    for option in options.keys() - FenceOptions.__annotations__.keys():
        near = get_close_matches(option, FenceOptions.__annotations__, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(
            f"fence {name}: expected options among "
            f"{', '.join(FenceOptions.__annotations__)}{hint}, got {option}"
        )


class _Fence:
    """Name, key and options of one fence; the same for both clients."""

    def __init__(
        self, client: Fences | AsyncFences, name: str, key: object, options: FenceOptions
    ) -> None:
        _check_options(name, options)
        self._client = client
        self._key = key
        self._options = options
        self._unknown: encoding.Unknown = options.get("unknown", "refuse")
        local = options.get("within") is not None
        self._spec = FenceSpec(
            tenant=client.tenant,
            name=name,
            actor=client.actor,
            times=encoding.times(options.get("ttl")),
            start=not local,
            replayable=options.get("replayable", False),
            max_attempts=options.get("max_attempts", 5),
            wait_seconds=options.get("wait", 2.0),
            alone=not local,
        )

    def _guarded_call(
        self, codec: Codec, key: object, request: str, source: tuple[str, str] | None
    ) -> GuardedCall:
        return GuardedCall(
            self._spec,
            codec,
            encoding.identity_text(key, self._spec.name, self._unknown),
            request,
            source=source,
            has_probe=self._options.get("probe") is not None,
            heartbeat=self._client.heartbeat,
            counters=self._client.counters,
        )

    def _block(self) -> GuardedCall:
        """The call of a `with` block, where key and payload are values."""
        if callable(self._key) or callable(self._options.get("payload")):
            raise TypeError(
                f"fence {self._spec.name}: expected values for key and payload of a `with` block, "
                "got a function; functions of the arguments are for decorators"
            )
        codec = Codec(self._options.get("result", UNTYPED))
        request = encoding.request_text(self._options.get("payload"))
        return self._guarded_call(codec, self._key, request, self._options.get("source"))

    def _call(
        self, signature: encoding.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> GuardedCall:
        source = self._options.get("source")
        return self._guarded_call(
            signature.codec,
            signature.key(args, kwargs),
            signature.request(args, kwargs),
            source(*args, **kwargs) if callable(source) else source,
        )

    def _within(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """The connection. A scoped session is callable as well, so only functions are called."""
        within = self._options.get("within")
        if inspect.isfunction(within) or isinstance(within, partial):
            return within(*args, **kwargs)
        return within

    def _probe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        probe = self._options.get("probe")
        return None if probe is None else partial(probe, *args, **kwargs)

    def _check_function(self, function: Callable[..., Any], *, is_async: bool) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"fence {self._spec.name}: expected a function that returns its result, got the "
                f"generator {function.__qualname__}, which would be sealed before it starts; "
                "return a list"
            )
        if inspect.iscoroutinefunction(function) is not is_async:
            got, client = ("a function", "HelixQueue") if is_async else (
                "an async function", "AsyncHelixQueue")  # fmt: skip
            raise TypeError(
                f"fence {self._spec.name}: {function.__qualname__} is {got}; use the fence of "
                f"{client}"
            )

    def _entered_twice(self) -> Refused:
        return Refused(
            f"fence {self._spec.name}: expected a new fence for each block, got one that was "
            "entered before"
        )


class Fence(_Fence):
    """One fence: decorate a function with it, or enter it."""

    _client: Fences
    _entered: tuple[GuardedCall, StepRunner] | None = None

    def __call__(self, function: Callable[PS, R]) -> FencedFunction[PS, R]:
        self._check_function(function, is_async=False)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401 - the function's
            call = self._call(signature, args, kwargs)
            within, probe = self._within(args, kwargs), self._probe(args, kwargs)
            runner = StepRunner(self._client.run, call.read_probe, within, probe)
            held = run_steps(call.enter(), runner)
            try:
                if held.first:
                    held.seal(function(*args, **kwargs))
            except BaseException as error:
                _leave(call, runner, error)
                raise
            _leave(call, runner, None)
            return Outcome(held.result, held.receipt or "", not held.first, held.effect)

        @wraps(function)
        def fenced(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            return outcome(*args, **kwargs).result

        fenced.outcome = outcome  # type: ignore[attr-defined]
        return cast("FencedFunction[PS, R]", fenced)

    def __enter__(self) -> HeldFence:
        if self._entered is not None:
            raise self._entered_twice()
        call, options = self._block(), self._options
        runner = StepRunner(
            self._client.run, call.read_probe, options.get("within"), options.get("probe")
        )
        held = run_steps(call.enter(), runner)
        self._entered = call, runner
        return held

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entered is not None  # noqa: S101 - Python enters before it exits
        _leave(*self._entered, error)


def _leave(call: GuardedCall, runner: StepRunner, error: BaseException | None) -> None:
    call.reset_context()
    run_steps(call.leave(error), runner)


class AsyncFence(_Fence):
    """The same for async functions and blocks."""

    _client: AsyncFences
    _entered: tuple[GuardedCall, AsyncStepRunner] | None = None

    def __call__(
        self, function: Callable[PS, Coroutine[Any, Any, R]]
    ) -> AsyncFencedFunction[PS, R]:
        self._check_function(function, is_async=True)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        async def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401
            call = self._call(signature, args, kwargs)
            within, probe = self._within(args, kwargs), self._probe(args, kwargs)
            runner = AsyncStepRunner(self._client.run, call.read_probe, within, probe)
            held = await run_steps_async(call.enter(), runner)
            try:
                if held.first:
                    held.seal(await function(*args, **kwargs))
            except BaseException as error:
                await _leave_async(call, runner, error)
                raise
            await _leave_async(call, runner, None)
            return Outcome(held.result, held.receipt or "", not held.first, held.effect)

        @wraps(function)
        async def fenced(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
            return (await outcome(*args, **kwargs)).result

        fenced.outcome = outcome  # type: ignore[attr-defined]
        return cast("AsyncFencedFunction[PS, R]", fenced)

    async def __aenter__(self) -> HeldFence:
        if self._entered is not None:
            raise self._entered_twice()
        call, options = self._block(), self._options
        runner = AsyncStepRunner(
            self._client.run, call.read_probe, options.get("within"), options.get("probe")
        )
        held = await run_steps_async(call.enter(), runner)
        self._entered = call, runner
        return held

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._entered is not None  # noqa: S101 - Python enters before it exits
        await _leave_async(*self._entered, error)


async def _leave_async(
    call: GuardedCall, runner: AsyncStepRunner, error: BaseException | None
) -> None:
    call.reset_context()
    await shielded(run_steps_async(call.leave(error), runner))
