"""One HTTP request, described once: what to send, and how to read the answer."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from helixqueue.errors import Unavailable
from helixqueue.transport.http.problem import error_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whoever received it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            # Not ours: a proxy on the way, or another program at this address.
            raise Unavailable(
                f"expected JSON from the service, got {self.body[:60]!r}; look at the URL",
                outcome_unknown=True,
            ) from None


@dataclass(frozen=True, slots=True)
class HttpCall(Generic[T_co]):
    method: str
    path: str
    read: Callable[[Reply], T_co]
    body: bytes | None = None
    # For what the engine would not recognise when it comes again. Made once a call, kept over all
    # repeats: the service gives the first answer again.
    key: str | None = field(default=None, repr=False)
    # The engine would recognise it: the key goes along only where the service's policy demands one.
    spare_key: bool = False
    seconds: float = 0.0  # that the service may hold the answer back


def get(path: str, read: Callable[[Any], T], query: Iterable[tuple[str, str]] = ()) -> HttpCall[T]:
    asked = urlencode(list(query))
    return HttpCall("GET", f"{path}?{asked}" if asked else path, good(read))


def post(
    path: str,
    body: Mapping[str, Any] | bytes,
    read: Callable[[Any], T],
    *,
    method: str = "POST",
    keyed: bool | None = None,
    seconds: float = 0.0,
) -> HttpCall[T]:
    """`keyed`: it needs an idempotency key; False: it may have one; None: it takes none."""
    data = body if isinstance(body, bytes) else to_json(body)
    key = None if keyed is None else f'"{uuid.uuid4()}"'
    return HttpCall(method, path, good(read), data, key, keyed is False, seconds)


def good(read: Callable[[Any], T]) -> Callable[[Reply], T]:
    """Read what a 2xx says; anything else is raised as the error it stands for."""

    def judged(reply: Reply) -> T:
        if 200 <= reply.status < 300:
            return read(reply.json() if reply.body else None)
        raise error_of(reply.status, reply.headers, reply.body)

    return judged


def unless(kind: str, call: HttpCall[T], instead: Callable[[dict[str, Any]], T]) -> HttpCall[T]:
    """The same call, for which this problem is an answer."""

    def judged(reply: Reply) -> T:
        if reply.status >= 400 and kind_of(reply.body) == kind:
            return instead(reply.json())
        return call.read(reply)

    return replace(call, read=judged)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def at(*parts: object) -> str:
    """A path; each part is one, whatever stands in it."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
