"""`helix.fence(...)`: surrounds a function or a block, so that it takes effect once.

```python
@helix.fence("refund", key=lambda order: (order.id, order.revision), probe=find_refund)
async def refund(order: Order) -> Refund: ...
```

A repeat returns the kept result before the expensive call, the first result wins, and the primary
key of `helix.fence` decides between concurrent callers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, cast

from helixqueue.engine import fences
from helixqueue.fence import encoding
from helixqueue.fence.base_fence import BaseFence, FenceOptions, Outcome, default_actor
from helixqueue.fence.heartbeat import AsyncFenceHeartbeat
from helixqueue.fence.metrics import Counters, prometheus_text
from helixqueue.fence.runner_async import AsyncInstructionRunner, AsyncRun
from helixqueue.operations.instructions import run_instructions_async

if TYPE_CHECKING:
    from helixqueue.fence.guarded_call import GuardedCall, HeldFence

PS = ParamSpec("PS")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class AsyncFencedFunction(Protocol[PS, R_co]):
    """A coroutine function with a fence around it."""

    def __call__(self, *args: PS.args, **kwargs: PS.kwargs) -> Coroutine[Any, Any, R_co]: ...

    def outcome(self, *args: PS.args, **kwargs: PS.kwargs) -> Coroutine[Any, Any, Outcome[R_co]]:
        """Call it, and return the result with its receipt."""

    def __get__(self, instance: object, owner: type | None = None) -> Any: ...  # noqa: ANN401


class AsyncFences:
    """Makes the fences of one client."""

    def __init__(
        self,
        run: AsyncRun,
        tenant: str,
        actor: str | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.run = run
        self.tenant = tenant
        self.actor = actor or default_actor()
        self.counters = counters or Counters()
        self.heartbeat = AsyncFenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> AsyncFence:
        """A decorator, and a context manager where `key` and `payload` are values."""
        return AsyncFence(self, name, key, options)

    async def metrics(self, *, with_counters: bool = True) -> str:
        """The counters of this client and gauges of the fences it can read, for Prometheus.

        A service shares its counters between the tenants and shows them once.
        """
        open_fences, lag = await self.run(fences.count_open()), await self.run(fences.sweep_lag())
        counters = self.counters if with_counters else Counters()
        return prometheus_text(counters.snapshot(), open_fences, lag)


class AsyncFence(BaseFence):
    """One fence: decorate a function with it, or enter it."""

    client_name = "AsyncHelixQueue"
    _client: AsyncFences
    _entered: tuple[GuardedCall, AsyncInstructionRunner] | None = None

    def __call__(
        self, function: Callable[PS, Coroutine[Any, Any, R]]
    ) -> AsyncFencedFunction[PS, R]:
        self._check_function(function)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        async def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401
            call = self._call(signature, args, kwargs)
            within, probe = self._within(args, kwargs), self._probe(args, kwargs)
            runner = AsyncInstructionRunner(self._client.run, call.read_probe, within, probe)
            held = await run_instructions_async(call.enter(), runner)
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
        runner = AsyncInstructionRunner(
            self._client.run, call.read_probe, options.get("within"), options.get("probe")
        )
        held = await run_instructions_async(call.enter(), runner)
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
    call: GuardedCall, runner: AsyncInstructionRunner, error: BaseException | None
) -> None:
    call.reset_context()
    await runner.finish(call.leave(error))
