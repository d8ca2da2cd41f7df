"""What a fence is made of: its options, its outcome, and the calls that it guards."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar

from helixqueue.errors import Refused
from helixqueue.fence import encoding
from helixqueue.fence.encoding import UNTYPED, Codec
from helixqueue.fence.guarded_call import GuardedCall
from helixqueue.fence.protocol import FenceSpec

if TYPE_CHECKING:
    from helixqueue.engine.fences import Times
    from helixqueue.fence.fence import Fences
    from helixqueue.fence.fence_async import AsyncFences

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


def default_actor() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"[:255]


def _check_options(name: str, options: FenceOptions) -> None:
    """A misspelled `within` would turn a local effect into a foreign one."""
    for option in options.keys() - FenceOptions.__annotations__.keys():
        near = get_close_matches(option, FenceOptions.__annotations__, 1)
        suggestion = f" (did you mean {near[0]}?)" if near else ""
        raise TypeError(
            f"fence {name}: expected options among "
            f"{', '.join(FenceOptions.__annotations__)}{suggestion}, got {option}"
        )


class BaseFence:
    """Name, key and options of one fence; the same for both clients."""

    client_name: ClassVar[str]  # the class of the client that makes it

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

    def _check_function(self, function: Callable[..., Any]) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"fence {self._spec.name}: expected a function that returns its result, got the "
                f"generator {function.__qualname__}, which would be sealed before it starts; "
                "return a list"
            )
        is_async = self.client_name == "AsyncHelixQueue"
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
