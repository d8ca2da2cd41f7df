"""Problem responses of the middleware (RFC 9457), with stable types that clients branch on."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import (
    Conflict,
    HelixError,
    InDoubt,
    InProgress,
    LeaseLost,
    NotPermitted,
)

if TYPE_CHECKING:
    from helixqueue.fence.policy import OnConflict, Policy

log = logging.getLogger("helixqueue.fence.http")
PREFIX: Final = "urn:helixqueue:problem:"
# Places of the compared document that contain the body.
_WITH_BODY: Final = frozenset({"", "/body"})

# Type: status and title. The guide describes each; a test compares.
PROBLEMS: Final[dict[str, tuple[int, str]]] = {
    "missing-key": (400, "This operation requires an idempotency key"),
    "invalid-key": (400, "The idempotency key is invalid"),
    "non-canonical-json": (400, "The JSON body is ambiguous"),
    "digest-mismatch": (400, "The body does not match its digest"),
    "body-too-large": (413, "The body is too large"),
    "key-reused": (409, "The key belongs to another request"),
    "in-progress": (409, "The same request is still in progress"),
    "in-doubt": (409, "The outcome of this request is unknown"),
    "result-expired": (409, "The request took effect; its response is not kept"),
    "scope-unavailable": (500, "The request has no verified owner"),
    "storage-unavailable": (503, "The database is unreachable; nothing was done"),
}
# Expected, got, remedy.
USUAL: Final[dict[str, tuple[str, str, str]]] = {
    "missing-key": ("an idempotency key", "none", "send a random UUID, new for each operation"),
    "invalid-key": ("a valid key", "another text", "send a random UUID in quotes"),
    "non-canonical-json": (
        "JSON without duplicate names, NaN or integers beyond 2^53",
        "a body that parsers read differently",
        "send strict JSON",
    ),
    "digest-mismatch": ("a body that matches Content-Digest", "another body", "send it again"),
    "body-too-large": ("a smaller body", "more bytes", "send less, or several requests"),
    "key-reused": (
        "the body that was sent first with this key",
        "a body with other values",
        "send the first request again, or this request with a new key",
    ),
    "in-progress": (
        "a finished request",
        "a request in progress",
        "send the same request again after Retry-After seconds",
    ),
    "in-doubt": (
        "a request with a known outcome",
        "a request that started and did not report its end",
        "do not send it with a new key; the operator of this service decides",
    ),
    "result-expired": ("a kept response", "its receipt", "keep the receipt as the proof"),
    "scope-unavailable": (
        "a verified tenant and principal",
        "none",
        "contact the operator of this service",
    ),
    "storage-unavailable": ("a reachable database", "none", "send the same request again later"),
    "no-such-fence": (
        "a fence of this client",
        "another text",
        "use the link of an in-doubt or in-progress response",
    ),
    "key-not-accepted": (
        "an operation that the idempotency policy lists",
        "another operation",
        "send it without a key if it may take effect twice",
    ),
}
# Not of fenced operations: of the status path, and of routes that the policy does not list.
ELSEWHERE: Final = {
    "no-such-fence": (404, "This client has no such fence"),
    "key-not-accepted": (400, "This operation does not accept an idempotency key"),
}


@dataclass(frozen=True, slots=True)
class FenceProblem:
    """One problem response; `more` are its extension members."""

    kind: str
    detail: str
    status: int | None = None  # where it is not the usual one
    retry_after: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    describedby: str | None = None
    status_url: str | None = None  # where the state of the fence can be read

    def response(self) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        usual, title = PROBLEMS.get(self.kind) or ELSEWHERE[self.kind]
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


def problem_of(error: HelixError, policy: Policy, root: str = "") -> FenceProblem:
    """The problem that a client sees; `root` is the path below which the application is mounted.

    Messages of errors name hosts and processes: they go to the log, not to the client.
    """
    if isinstance(error, Conflict):
        return _key_reused(error, policy)
    if isinstance(error, InProgress):
        log.info("idempotency: %s", error)
        return FenceProblem(
            "in-progress",
            "send the same request again after Retry-After",
            retry_after=error.retry_after,
            status_url=_status_url(policy, root, error.key),
        )
    if isinstance(error, LeaseLost):
        log.warning("idempotency: %s", error)
        return FenceProblem(
            "in-progress",
            "another attempt took over; send the same request again for its response",
            retry_after=1,
        )
    if isinstance(error, InDoubt):
        log.warning("idempotency: %s", error)
        return _in_doubt(error, policy, root)
    if isinstance(error, NotPermitted):
        log.error("idempotency: the database role has no access to this tenant: %s", error)
        return FenceProblem(
            "scope-unavailable", "the database role of this service has no access to the tenant"
        )
    log.error("idempotency: the database is unreachable: %s", error)
    return FenceProblem(
        "storage-unavailable", "nothing was done; send the same request again later", retry_after=1
    )


def _in_doubt(error: InDoubt, policy: Policy, root: str) -> FenceProblem:
    return FenceProblem(
        "in-doubt",
        "the request started and its outcome is unknown; do not send it with a new key",
        retry_after=error.retry_after or None,
        more={"fence": error.key},
        describedby=policy.documentation,
        status_url=_status_url(policy, root, error.key),
    )


def _status_url(policy: Policy, root: str, key: str | None) -> str | None:
    path = policy.status_path
    return None if path is None or key is None else f"{root}{path}/{key}"


def _key_reused(error: Conflict, policy: Policy) -> FenceProblem:
    rules = policy.on_conflict
    more: dict[str, Any] = {}
    if rules.include_diff != "none":
        more = {"diff": [_shown(op, rules) for op in error.diff]}
    return FenceProblem(
        "key-reused",
        "send the first request again, or this request with a new key",
        status=rules.status,
        more=more,
        describedby=policy.documentation,
    )


def _shown(op: dict[str, Any], rules: OnConflict) -> dict[str, Any]:
    """An operation as far as the policy discloses it."""
    path: str = op["path"]
    if rules.include_diff != "values":
        return {"op": op["op"], "path": path}
    # Pointers of the policy refer to the body, which is under /body in the compared document.
    hidden = bool(rules.mask) and (
        rules.hides(path.removeprefix("/body")) if path.startswith("/body/") else path in _WITH_BODY
    )
    return {
        name: "(masked)" if hidden and name in {"value", "was"} else value
        for name, value in op.items()
    }
