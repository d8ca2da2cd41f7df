"""An HTTP request: what to send, and how to read the response."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from helixqueue.errors import Unavailable
from helixqueue.transport.http.problem import error_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP response: status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            # Not from the service: a proxy, or another program at this address.
            raise Unavailable(
                f"expected JSON from the service, got {self.body[:60]!r}; check the URL",
                outcome_unknown=True,
                retry_after=math.inf,  # the repeat would get the same
            ) from None


@dataclass(frozen=True, slots=True)
class HttpCall(Generic[T_co]):
    method: str
    path: str
    read: Callable[[Reply], T_co]
    body: bytes | None = None
    # For requests whose repeats the engine does not recognise. Every retry sends the same key: the
    # service returns the first response again.
    key: str | None = field(default=None, repr=False)
    # The engine recognises repeats: the key is sent only where the service's policy demands it.
    spare_key: bool = False
    seconds: float = 0.0  # the service may delay the response this long


def get(path: str, read: Callable[[Any], T], query: Iterable[tuple[str, str]] = ()) -> HttpCall[T]:
    parameters = urlencode(list(query))
    return HttpCall("GET", f"{path}?{parameters}" if parameters else path, good(read))


def post(
    path: str,
    body: Mapping[str, Any] | bytes,
    read: Callable[[Any], T],
    *,
    method: str = "POST",
    needs_key: bool | None = None,
    seconds: float = 0.0,
) -> HttpCall[T]:
    """Describe a request. `needs_key`: True requires a request key, False allows one."""
    data = body if isinstance(body, bytes) else to_json(body)
    key = None if needs_key is None else f'"{uuid.uuid4()}"'
    return HttpCall(method, path, good(read), data, key, needs_key is False, seconds)


def good(read: Callable[[Any], T]) -> Callable[[Reply], T]:
    """Read the body of a 2xx response; raise the error of any other status."""

    def judged(reply: Reply) -> T:
        if 200 <= reply.status < 300:
            return read(reply.json() if reply.body else None)
        raise error_of(reply.status, reply.headers, reply.body)

    return judged


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def at(*parts: object) -> str:
    """Build a path from segments, quoting each."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
