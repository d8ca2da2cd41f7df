"""A stored response: status, the headers that may be repeated, and the body, byte by byte.

```
4 bytes   length of the head, big-endian
head      JSON: {"status": 201, "headers": [["location", "/refunds/1"]], "omitted": false}
body      as it was sent; nothing when omitted
```
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from helixqueue.fence.http.asgi import Header

FORM: Final = "http"
# Headers that describe the content and its location. All others belong to one exchange (dates,
# cookies, trace ids, hop-by-hop) or to one user.
KEPT: Final = frozenset(
    {b"content-type", b"content-language", b"content-disposition", b"content-encoding",
     b"location", b"etag", b"link"}
)  # fmt: skip
NEVER_KEPT: Final = frozenset(
    {b"set-cookie", b"authorization", b"www-authenticate", b"proxy-authenticate", b"connection",
     b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"content-length",
     b"date", b"vary", b"traceparent", b"tracestate", b"x-request-id"}
)  # fmt: skip


class CorruptResponse(Exception):
    """Not the bytes of a stored response."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    status: int
    headers: tuple[Header, ...]
    body: bytes
    omitted: bool = False  # the body was too large, a stream, or could not be redacted

    @classmethod
    def of(
        cls,
        status: int,
        headers: Iterable[Header],
        body: bytes | None,
        more: Iterable[str] = (),
    ) -> Self:
        """The parts of a response that may be repeated; None as body marks it as omitted."""
        allowed = (KEPT | {name.lower().encode() for name in more}) - NEVER_KEPT
        kept = tuple((name.lower(), value) for name, value in headers if name.lower() in allowed)
        return cls(status, kept, body or b"", omitted=body is None)

    def write(self) -> bytes:
        head = json.dumps(
            {
                "status": self.status,
                "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in self.headers],
                "omitted": self.omitted,
            },
            separators=(",", ":"),
        ).encode()
        return len(head).to_bytes(4, "big") + head + self.body

    @classmethod
    def read(cls, data: bytes) -> Self:
        """The response; raises `CorruptResponse`."""
        length = int.from_bytes(data[:4], "big")
        try:
            head = json.loads(data[4 : 4 + length])
            headers = tuple((n.encode("latin-1"), v.encode("latin-1")) for n, v in head["headers"])
            return cls(int(head["status"]), headers, data[4 + length :], bool(head["omitted"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptResponse("expected a stored response, got other bytes") from error
