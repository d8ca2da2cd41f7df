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
# What was expected, what came, and what to do.
USUAL: Final[dict[str, tuple[str, str, str]]] = {
    "missing-key": ("a key", "none", "send one that is this request's own: a random UUID"),
    "invalid-key": ("a key", "something else", "send a random UUID, in quotes"),
    "non-canonical-json": ("JSON with one meaning", "something else", "send strict JSON"),
    "digest-mismatch": ("a body that fits its digest", "another one", "send the request again"),
    "body-too-large": ("a smaller body", "more", "send less, or in several requests"),
    "key-reused": (
        "the request that the key stands for",
        "another one",
        "send the first request again, or this one under a new key",
    ),
    "in-progress": (
        "a request that has ended",
        "one that is under way",
        "send the same request again after Retry-After seconds",
    ),
    "in-doubt": (
        "a request whose end is known",
        "one that began and did not end",
        "send no new key; whoever runs this looks whether it took effect",
    ),
    "result-expired": ("an answer that is kept", "its receipt", "keep the receipt as the proof"),
    "scope-unavailable": ("to know whose request this is", "nobody", "tell whoever runs this"),
    "storage-unavailable": ("a store that answers", "none", "send the same request again later"),
    "no-such-fence": ("a fence of yours", "another one", "look at the answer that named it"),
}
# Of the path where the state of a fence is asked for; operations do not answer with it.
OF_STATUS: Final = {"no-such-fence": (404, "There is no such fence of yours")}


@dataclass(frozen=True, slots=True)
class FenceProblem:
    """One answer; `more` are its extension members."""

    kind: str
    detail: str
    status: int | None = None  # unless it is the usual one
    retry_after: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    describedby: str | None = None
    status_url: str | None = None  # where the state of the fence is told

    def response(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        usual, title = PROBLEMS.get(self.kind) or OF_STATUS[self.kind]
        status = self.status or usual
        expected, got, remedy = USUAL[self.kind]
        body = json.dumps(
            {
                "type": PREFIX + self.kind,
                "title": title,
                "status": status,
                "detail": self.detail,
                "expected": expected,
                "got": got,
                "remedy": remedy,
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
        for url, relation in ((self.describedby, "describedby"), (self.status_url, "status")):
            if url is not None:
                headers.append((b"link", f'<{url}>; rel="{relation}"'.encode()))
        return status, headers, body
