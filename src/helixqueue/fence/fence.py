# Generated from fence_async.py by `make twins`: change that file.
"""`helix.fence(...)`: surrounds a function or a block, so that it takes effect once.

```python
@helix.fence("refund", key=lambda order: (order.id, order.revision), probe=find_refund)
def refund(order: Order) -> Refund: ...
```

A repeat returns the kept result before the expensive call, the first result wins, and the primary
key of `helix.fence` decides between concurrent callers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, cast

from helixqueue.engine import fences
from helixqueue.fence import encoding
from helixqueue.fence.base_fence import BaseFence, FenceOptions, Outcome, default_actor
from helixqueue.fence.heartbeat import FenceHeartbeat
from helixqueue.fence.metrics import Counters, prometheus_text
from helixqueue.fence.runner import InstructionRunner, Run
from helixqueue.operations.instructions import run_instructions

if TYPE_CHECKING:
    from helixqueue.fence.guarded_call import GuardedCall, HeldFence

PS = ParamSpec("PS")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class FencedFunction(Protocol[PS, R_co]):
    """A coroutine function with a fence around it."""

    def __call__(self, *args: PS.args, **kwargs: PS.kwargs) -> R_co: ...

    def outcome(self, *args: PS.args, **kwargs: PS.kwargs) -> Outcome[R_co]:
        """Call it, and return the result with its receipt."""

    def __get__(self, instance: object, owner: type | None = None) -> Any: ...  # noqa: ANN401


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
        self.actor = actor or default_actor()
        self.counters = counters or Counters()
        self.heartbeat = FenceHeartbeat(run)

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> Fence:
        """A decorator, and a context manager where `key` and `payload` are values."""
        return Fence(self, name, key, options)

    def metrics(self, *, with_counters: bool = True) -> str:
        """The counters of this client and gauges of the fences it can read, for Prometheus.

        A service shares its counters between the tenants and shows them once.
        """
        open_fences, lag = self.run(fences.count_open()), self.run(fences.sweep_lag())
        counters = self.counters if with_counters else Counters()
        return prometheus_text(counters.snapshot(), open_fences, lag)


class Fence(BaseFence):
    """One fence: decorate a function with it, or enter it."""

    client_name = "HelixQueue"
    _client: Fences
    _entered: tuple[GuardedCall, InstructionRunner] | None = None

    def __call__(self, function: Callable[PS, R]) -> FencedFunction[PS, R]:
        self._check_function(function)
        signature = encoding.Signature(function, self._key, self._options.get("payload"))

        def outcome(*args: Any, **kwargs: Any) -> Outcome[Any]:  # noqa: ANN401
            call = self._call(signature, args, kwargs)
            within, probe = self._within(args, kwargs), self._probe(args, kwargs)
            runner = InstructionRunner(self._client.run, call.read_probe, within, probe)
            held = run_instructions(call.enter(), runner)
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
            return (outcome(*args, **kwargs)).result

        fenced.outcome = outcome  # type: ignore[attr-defined]
        return cast("FencedFunction[PS, R]", fenced)

    def __enter__(self) -> HeldFence:
        if self._entered is not None:
            raise self._entered_twice()
        call, options = self._block(), self._options
        runner = InstructionRunner(
            self._client.run, call.read_probe, options.get("within"), options.get("probe")
        )
        held = run_instructions(call.enter(), runner)
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


def _leave(call: GuardedCall, runner: InstructionRunner, error: BaseException | None) -> None:
    call.reset_context()
    runner.finish(call.leave(error))
