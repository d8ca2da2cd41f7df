"""`Queue`: the declaration of a queue in a program.

Precedence, from the strongest: an option of one call (for that batch alone), the declaration, the
stored setting, the default. A setting that the declaration omits belongs to the operator and is
never changed. A setting that it names is written when a client first uses the declaration and the
stored value differs. The profile is the exception: it decides which identities are equal, so a
queue that exists with another profile is refused.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, get_type_hints, overload

from typing_extensions import TypeVar

from helixqueue.errors import Refused
from helixqueue.identity.keys import check_name
from helixqueue.queues.requirements import checked_requires
from helixqueue.queues.shapes import Shape
from helixqueue.records.parameter import check_value, kind_of
from helixqueue.records.queue import QueueSettings

if TYPE_CHECKING:
    from helixqueue.worker.lease import AsyncLease, Lease

P = TypeVar("P", default=Any)
R = TypeVar("R", default=Any)
Seconds = float | timedelta
_SETTINGS: Final = get_type_hints(QueueSettings, include_extras=True)


class Queue(Generic[P, R]):
    """A queue and the types of its payloads and results. Making one does no I/O."""

    def __init__(
        self,
        name: str,
        *,
        payload: type[P] | None = None,
        result: type[R] | None = None,
        profile: Literal["text-v1", "lab-id-v1"] | None = None,
        lease: Seconds | None = None,
        max_attempts: int | None = None,
        backoff: Seconds | None = None,
        backoff_max: Seconds | None = None,
        key_limit: int | None = None,
        unknown: Literal["refuse", "accept"] | None = None,
        placeholders: Sequence[str] | None = None,
        resubmit_failed: Literal["answer", "retry"] | None = None,
        requires: Mapping[str, Any] | None = None,
        stalled_after: Seconds | None = None,
        run_in: Literal["thread", "process"] = "thread",
        time_limit: Seconds | None = None,
    ) -> None:
        """`run_in` says where a `def` handler runs, and `time_limit` for how long any may.

        Both are the worker's business and are not stored with the queue.
        """
        self.name = check_name("queue", name)
        self.payload: Shape[P] | None = (
            None if payload is None else Shape(payload, f"payload of {name}")
        )
        self.result: Shape[R] | None = (
            None if result is None else Shape(result, f"result of {name}")
        )
        self.run_in = _one_of("run_in", run_in, ("thread", "process"))
        self.time_limit_seconds = _seconds("time_limit", time_limit, 0.05, 604_800)
        self.handler_function: Callable[..., Any] | None = None
        named = {
            "profile": _setting("profile", profile),
            "lease_seconds": _setting_seconds("lease", lease),
            "max_attempts": _setting("max_attempts", max_attempts),
            "backoff_seconds": _setting_seconds("backoff", backoff),
            "backoff_max_seconds": _setting_seconds("backoff_max", backoff_max),
            "key_limit": _setting("key_limit", key_limit),
            "unknown": _setting("unknown", unknown),
            "placeholders": None if placeholders is None else list(placeholders),
            "stalled_after_seconds": _setting_seconds("stalled_after", stalled_after),
            "resubmit_failed": _setting("resubmit_failed", resubmit_failed),
            "requires": None if requires is None else checked_requires(requires),
        }
        self._named = {setting: value for setting, value in named.items() if value is not None}

    def settings(self) -> dict[str, Any]:
        """What this declaration names, by the engine's names; schemas of its types included."""
        schemas = {"payload_schema": self.payload, "result_schema": self.result}
        return self._named | {
            setting: shape.schema for setting, shape in schemas.items() if shape is not None
        }

    @overload
    def handler(
        self, function: Callable[[AsyncLease[P, R]], Coroutine[Any, Any, R | None]]
    ) -> Callable[[AsyncLease[P, R]], Coroutine[Any, Any, R | None]]: ...
    @overload
    def handler(
        self, function: Callable[[Lease[P, R]], R | None]
    ) -> Callable[[Lease[P, R]], R | None]: ...
    def handler(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Register the function that does the work: a decorator that returns it unchanged.

        It returns the result; None if it settled in a transaction of its own.
        """
        if not callable(function):
            raise Refused(f"handler of {self.name}: expected a function, got {function!r}")
        if self.handler_function is not None:
            raise Refused(
                f"queue {self.name} already has the handler {self.handler_function.__qualname__}; "
                "declare another queue for another kind of work"
            )
        self.handler_function = function
        return function

    @property
    def handler_is_async(self) -> bool:
        """Whether the handler is a coroutine function, and so gets an `AsyncLease`."""
        return inspect.iscoroutinefunction(self.handler_function)

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"


def _seconds(name: str, value: Seconds | None, least: float, most: float) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or not least <= seconds <= most:
        raise Refused(
            f"{name}: expected seconds (or a timedelta) from {least} to {most}, got {value!r}"
        )
    return float(seconds)


def _setting(name: str, value: Any) -> Any:  # noqa: ANN401 - of its setting
    """The value, within the limits of `QueueSettings`."""
    if value is not None:
        check_value(name, _SETTINGS[name], value)
    return value


def _setting_seconds(name: str, value: Seconds | None) -> float | None:
    param = kind_of(_SETTINGS[f"{name}_seconds"]).param
    assert param.least is not None  # noqa: S101 - every setting has both
    assert param.most is not None  # noqa: S101
    return _seconds(name, value, param.least, param.most)


def _one_of(name: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        raise Refused(f"{name}: expected one of {', '.join(known)}; got {value!r}")
    return value
