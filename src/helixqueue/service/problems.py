"""Problem responses (RFC 9457): stable types, and what to do about each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from helixqueue.errors import (
    Conflict,
    HelixError,
    IllegalTransition,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    NotInDoubt,
    Refused,
    Unavailable,
)
from helixqueue.fence.http.problem import PREFIX

# Kind: status, title, remedy. A test compares them with docs/http.md.
PROBLEMS: Final[dict[str, tuple[int, str, str]]] = {
    "not-http": (400, "The request is not HTTP", "send HTTP/1.1"),
    "invalid-host": (400, "The Host header is not valid", "send one Host, a name of this service"),
    "invalid-cursor": (400, "The Last-Event-ID is not valid", "start without Last-Event-ID"),
    "not-json": (400, "The body is not strict JSON", "send strict JSON in UTF-8"),
    "unreadable-delivery": (
        400,
        "The delivery is authentic, but no event",
        "send JSON events with an id; see the detail",
    ),
    "unauthenticated": (
        401,
        "No valid token",
        "send Authorization: Bearer with a valid token of `helixq token create`",
    ),
    "bad-signature": (
        401,
        "The delivery is not authentic",
        "compare source, secret and clock; the request log of the service has the reason",
    ),
    "forbidden": (403, "The token does not permit this", "use a token that has the scope"),
    "not-found": (404, "No such path", "see /v1/openapi.json"),
    "no-such-batch": (404, "The tenant has no such batch", "check the batch id"),
    "no-such-queue": (404, "The tenant has no such queue", "declare it with PUT /v1/queues/{name}"),
    "no-such-worker": (404, "The tenant has no such worker", "list the workers"),
    "no-such-letter": (404, "The tenant has no such dead letter", "check its number"),
    "no-such-outputs": (404, "The batch has no published files", "see its manifests"),
    "no-such-run": (404, "The tenant has no such run", "GET /v1/runs lists them"),
    "no-such-seal": (404, "The service has made no such seal", "GET /v1/seals lists them"),
    "no-such-webhook": (404, "The tenant has no such source", "list them: helixq webhook list"),
    "no-such-ledger": (
        404,
        "The tenant has no such ledger",
        "declare it with PUT /v1/ledgers/{ledger}",
    ),
    "no-such-entity": (404, "The ledger has no event of this entity", "check the entity"),
    "no-such-feed": (404, "The tenant has no such feed", "declare it with PUT /v1/feeds/{feed}"),
    "no-such-fence": (404, "The tenant has no such fence", "check the fence key"),
    "no-such-login": (
        404,
        "The login code is not valid",
        "create a new link with helixq token link: a code works once",
    ),
    "no-such-token": (404, "The tenant has no such valid token", "list the tokens"),
    "method-not-allowed": (405, "The path does not support the method", "see the header Allow"),
    "too-slow": (408, "The body did not arrive in time", "send the request again"),
    "conflict": (
        409,
        "The identity was submitted with another payload",
        "send the same payload, or use a new revision",
    ),
    "reused-event-id": (
        409,
        "The event id belongs to another body",
        "give every event an id of its own; the diff shows what differs",
    ),
    "superseded": (409, "A newer version of the entity took effect", "do not send it again"),
    "illegal-transition": (409, "The state of the batch does not allow this", "check its state"),
    "in-progress": (409, "The work is not finished", "retry after Retry-After seconds"),
    "no-result": (409, "The batch ended without a result", "read its history"),
    "queue-closed": (409, "The queue is closed for submissions", "ask an operator to open it"),
    "queue-not-empty": (
        409,
        "The queue has or had batches",
        "close it with PUT /v1/queues/{name} and closed: true",
    ),
    "no-key": (409, "The service has no key to sign with", "start it with --key FILE"),
    "not-in-doubt": (409, "The fence is not in doubt", "read the fence again"),
    "name-taken": (409, "The name was used before", "rotate that token, or choose another name"),
    "body-too-large": (413, "The body is too large", "send less, or use several requests"),
    "unsupported-media-type": (
        415,
        "The content type is not supported",
        "send uncompressed JSON with Content-Type: application/json",
    ),
    "invalid-request": (422, "The request is not valid", "correct the listed faults"),
    "invalid-identity": (422, "The identity violates its profile", "correct the identity"),
    "invalid-payload": (422, "The payload does not match the queue", "correct the payload"),
    "refused": (422, "The request was refused", "change the request; a repeat is refused again"),
    "too-many-requests": (429, "Too many requests", "wait Retry-After seconds"),
    "queue-full": (429, "The queue is full", "retry when work has been completed"),
    "too-many-streams": (429, "Too many streams are open", "close one, or use another replica"),
    "check-under-way": (
        429,
        "Another check or replay is running",
        "retry after Retry-After seconds: one runs at a time per tenant",
    ),
    "head-too-large": (431, "The request head is too large", "send fewer and shorter headers"),
    "internal": (500, "Internal error", "report it with the request id"),
    "unavailable": (503, "The database is unreachable", "retry after Retry-After seconds"),
    "retryable": (503, "A concurrent transaction interfered", "repeat the request"),
    "delivery-in-progress": (503, "Another call processes this event", "send it again"),
    "too-busy": (503, "Too many requests are in progress", "retry, or use another replica"),
    "not-ready": (503, "The service is not ready", "see the detail"),
}


# Default `expected` and `got` members, by kind. Faults of the service have neither.
DEFAULTS: Final[dict[str, tuple[str, str]]] = {
    "not-http": ("HTTP/1.1", "other bytes"),
    "invalid-host": ("one Host header with a name of this service", "a name that it does not have"),
    "invalid-cursor": ("the id of an event of this stream", "a text that is none"),
    "not-json": ("strict JSON in UTF-8", "bytes that it does not allow"),
    "unauthenticated": ("a valid token", "an unknown, expired or revoked one"),
    "forbidden": ("a token that permits the operation", "a token without its scope"),
    "not-found": ("a path of /v1/openapi.json", "a path that it does not list"),
    "no-such-batch": ("a batch of the tenant", "an unknown id"),
    "no-such-queue": ("a queue of the tenant", "an unknown name"),
    "no-such-worker": ("the name of a worker, or its start", "an unknown or ambiguous name"),
    "no-such-letter": ("a dead letter of the tenant", "an unknown number"),
    "no-such-webhook": ("a source of the tenant", "an unknown name"),
    "bad-signature": ("a known source and a valid signature", "another path or signature"),
    "unreadable-delivery": ("an event in strict JSON", "a body without an event"),
    "reused-event-id": ("the body of the first delivery", "another body"),
    "superseded": ("the newest version", "an older version"),
    "delivery-in-progress": ("one delivery of an event at a time", "one more"),
    "no-such-outputs": ("a batch with published files", "one without"),
    "no-such-run": ("a run of the tenant", "an unknown name"),
    "no-such-seal": ("a seal of the service", "an unknown number"),
    "no-such-ledger": ("a ledger of the tenant", "an unknown name"),
    "no-such-entity": ("an entity with events", "an unknown entity"),
    "no-such-feed": ("a feed of the tenant", "an unknown name"),
    "no-such-fence": ("a fence of the tenant", "an unknown key"),
    "no-such-login": ("an unused code that has not expired", "an unknown or used code"),
    "no-such-token": ("a valid token of the tenant", "a name without one"),
    "method-not-allowed": ("a method of the path", "a method that it does not have"),
    "too-slow": ("the complete body in time", "a part of it"),
    "conflict": ("the payload of the first submission", "another payload"),
    "illegal-transition": ("a batch in a state that allows it", "a batch in another state"),
    "in-progress": ("finished work", "unfinished work"),
    "no-result": ("a batch with a result", "a batch without a result"),
    "queue-closed": ("an open queue", "a closed queue"),
    "queue-not-empty": ("a queue that never had a batch", "a queue with batches"),
    "no-key": ("a service with a key file", "one without"),
    "name-taken": ("a new name", "a name that was used before"),
    "body-too-large": ("a smaller body", "a larger body"),
    "unsupported-media-type": ("application/json", "a type that is not JSON"),
    "invalid-request": ("what /v1/openapi.json describes", "a value that it does not allow"),
    "invalid-identity": ("an identity that its profile allows", "one that breaks its rules"),
    "invalid-payload": ("a payload that matches the queue's schema", "one that breaks it"),
    "refused": ("see the detail", "see the detail"),
    "too-many-requests": ("fewer requests", "one more"),
    "head-too-large": ("a smaller head", "a larger head"),
    "queue-full": ("fewer pending batches", "more"),
    "too-many-streams": ("fewer streams", "one more"),
    "not-in-doubt": ("a fence in doubt, at the given version", "another state or version"),
    "check-under-way": ("one check or replay per tenant at a time", "one more"),
}


class Problem(HTTPException):
    """An error with its response; `members` are RFC 9457 extension members.

    A subclass of HTTPException, because FastAPI lets only those pass while it reads a body.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,  # noqa: ANN401 - JSON
    ) -> None:
        status, self.title, default_remedy = PROBLEMS[kind]
        super().__init__(status_code=status, detail=detail)
        self.kind = kind
        default_expected, default_got = DEFAULTS.get(kind, (None, None))
        self.members = {
            "expected": expected or default_expected,
            "got": got or default_got,
            "remedy": remedy or default_remedy,
            **members,
        }
        self.extra_headers = dict(headers or {})
        if retry_after is not None:
            self.extra_headers["Retry-After"] = str(math.ceil(min(max(retry_after, 1), 60)))

    def body(self, request_id: str) -> dict[str, Any]:
        return {
            "type": PREFIX + self.kind,
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "request": request_id,
            **{name: value for name, value in self.members.items() if value is not None},
        }

    def response(self, request_id: str) -> Response:
        headers = {"Cache-Control": "no-store", **self.extra_headers}
        text = orjson.dumps(self.body(request_id))
        return Response(text, self.status_code, headers, "application/problem+json")


def problem_of(error: HelixError, *, values: bool = False) -> Problem:
    """The problem of a HelixQueue error; `values` allows payloads in it."""
    kind = error.kind
    headers, retry_after = None, None
    if kind in {"unauthenticated", "bad-signature"}:
        scheme = "Bearer" if kind == "unauthenticated" else "Signature"
        headers = {"WWW-Authenticate": scheme}
    if kind in {"in-progress", "unavailable"}:
        retry_after = getattr(error, "retry_after", None) or 1.0
    # The texts of other errors may disclose internals; they go to the log only.
    detail = str(error) if isinstance(error, Refused | InProgress) else PROBLEMS[kind][1]
    members = _members(error, values=values)
    return Problem(kind, detail, retry_after=retry_after, headers=headers, **members)


def _members(error: HelixError, *, values: bool) -> dict[str, Any]:
    """Extension members of the problem of an error."""
    match error:
        case Conflict():
            # A diff contains payload values; without the scope payloads only paths are shown.
            paths = [{name: op[name] for name in ("op", "path")} for op in error.diff]
            return {"diff": error.diff if values else paths}
        case InvalidIdentity():
            names = ("code", "code_point", "offset", "part", "suggestion")
            return {"got": error.code, **{name: getattr(error, name) for name in names}}
        case InvalidPayload():
            got = f"{error.code} at {error.path or 'the root'}"
            return {"got": got, "code": error.code, "pointer": error.path}
        case IllegalTransition() | NotInDoubt():
            return {name: getattr(error, name, None) for name in ("state", "version", "note")}
        case Unavailable():
            # Whether the call may have taken effect; a repeat shows it.
            return {"outcome_unknown": error.outcome_unknown}
    return {}


def unauthenticated(detail: str, got: str) -> Problem:
    return Problem("unauthenticated", detail, got=got, headers={"WWW-Authenticate": "Bearer"})


def no_such_queue(queue: str) -> Problem:
    return Problem("no-such-queue", f"the tenant has no queue {queue}", got=queue)


def invalid_request(errors: Sequence[Any]) -> Problem:
    """The problem of validation errors; shows the type of a value, not the value itself."""
    faults = [
        {
            "where": "/" + "/".join(str(part) for part in fault["loc"]),
            "expected": _expected(fault),
            "got": _got(fault),
        }
        for fault in errors[:20]
    ]
    if not faults:
        return Problem("invalid-request", "the request is not valid")
    where, expected, got = faults[0].values()
    detail = f"{where}: expected {expected}, got {got}"
    return Problem("invalid-request", detail, expected=expected, got=got, faults=faults)


def _expected(fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return "a value"
        case "extra_forbidden":
            return "no such member"
    message = str(fault["msg"])[:300]
    for prefix, replacement in _PREFIXES.items():
        if message.startswith(prefix):
            return replacement + message.removeprefix(prefix)
    return message


# Prefixes of pydantic messages, and what follows "expected" in their place.
_PREFIXES: Final = {
    "Input should be ": "",
    "String should ": "a string that should ",
    "Value error, expected ": "",
    "Value error, ": "",
}


def _got(fault: Mapping[str, Any]) -> str:
    """The JSON type of a value, never the value itself: it may be a secret."""
    if fault["type"] == "missing":
        return "none"
    value = fault.get("input")
    if isinstance(value, str):
        return f"a string of {len(value)} characters"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return _JSON_TYPES.get(type(value), "another type")


_JSON_TYPES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
}


class ProblemResponse(BaseModel):
    """Members of every problem; some kinds have more (docs/http.md)."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request: str | None = None
    expected: str | None = None
    got: str | None = None
    remedy: str | None = None
