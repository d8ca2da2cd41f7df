"""Answers of the middleware itself: RFC 9457 problems with stable types that clients branch on."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Final

PREFIX: Final = "urn:helixqueue:problem:"

# Type, status, title. The guide has a line on each; a test compares.
PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "missing-key": (400, "This operation needs an idempotency key"),
    "invalid-key": (400, "The idempotency key is not one"),
    "non-canonical-json": (400, "The body has no single meaning"),
    "digest-mismatch": (400, "The body is not the one its digest was made of"),
    "body-too-large": (413, "The body is too large to be compared"),
    "key-reused": (409, "The key stands for another request"),
    "in-progress": (409, "The same request is still being worked on"),
    "in-doubt": (409, "Nobody knows yet whether this took effect"),
    "result-expired": (409, "It took effect, and its answer is no longer kept"),
    "scope-unavailable": (500, "Nobody was named whose request this is"),
    "storage-unavailable": (503, "Nothing was done: the store is away"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One answer; `more` are its extension members."""

    kind: str
    detail: str
    status: int | None = None  # unless it is the usual one
    retry_after: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    describedby: str | None = None

    def response(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        usual, title = PROBLEMS[self.kind]
        status = self.status or usual
        body = json.dumps(
            {
                "type": PREFIX + self.kind,
                "title": title,
                "status": status,
                "detail": self.detail,
                **self.more,
            },
            ensure_ascii=False,
        ).encode()
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if self.retry_after is not None:
            seconds = min(max(math.ceil(self.retry_after), 1), 30)
            headers.append((b"retry-after", str(seconds).encode()))
        if self.describedby is not None:
            link = f'<{self.describedby}>; rel="describedby"'
            headers.append((b"link", link.encode()))
        return status, headers, body
