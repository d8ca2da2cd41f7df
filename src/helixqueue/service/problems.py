"""How a client is told no: RFC 9457 problems with stable types, and what to do about each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from fastapi import HTTPException
from pydantic import BaseModel, ConfigDict
from starlette.responses import JSONResponse

from helixqueue.errors import (
    Conflict,
    HelixError,
    IllegalTransition,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    NoResult,
    NotPermitted,
    QueueClosed,
    Refused,
    Retryable,
    SchemaMismatch,
    Unavailable,
)
from helixqueue.fence.http.problem import PREFIX
from helixqueue.postgres.tenant_sessions import InvalidToken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Kind: status, title, remedy. docs/http.md has a line on each; a test compares.
PROBLEMS: Final[dict[str, tuple[int, str, str]]] = {
    "not-http": (400, "The request is not HTTP", "send HTTP/1.1"),
    "not-json": (400, "The body is not JSON with one meaning", "send strict JSON in UTF-8"),
    "unauthenticated": (
        401,
        "No good token",
        "send Authorization: Bearer with a token of `helixq token create` that is good now",
    ),
    "forbidden": (403, "The token does not allow this", "ask with a token that has the scope"),
    "not-found": (404, "There is no such path", "see /v1/openapi.json"),
    "no-such-batch": (404, "The tenant has no such batch", "look at the receipt"),
    "no-such-queue": (404, "The tenant has no such queue", "declare it with PUT /v1/queues/{name}"),
    "no-such-fence": (404, "The tenant has no such fence", "look at the answer that named it"),
    "no-such-login": (
        404,
        "The code does not log in",
        "ask for a new link (helixq token link): codes are good once",
    ),
    "no-such-token": (404, "The tenant has no such token to do this with", "list them"),
    "method-not-allowed": (405, "The path knows no such method", "see the header Allow"),
    "too-slow": (408, "The body did not come in time", "send it again"),
    "conflict": (
        409,
        "The identity stands for another payload",
        "send the same payload, or give this one a revision of its own",
    ),
    "illegal-transition": (409, "Not possible in the state the batch is in", "look at its state"),
    "in-progress": (409, "It is not finished", "ask again after Retry-After seconds"),
    "no-result": (409, "The batch ended without a result", "look at its story"),
    "queue-closed": (409, "The queue takes no new work", "an operator opens it"),
    "not-in-doubt": (409, "The fence is not in doubt (any more)", "look at it again"),
    "name-taken": (409, "The name was used before", "rotate that token, or take another name"),
    "body-too-large": (413, "The body is too large", "send less, or in several requests"),
    "unsupported-media-type": (
        415,
        "The body is in another form",
        "send JSON, as it is, with Content-Type: application/json",
    ),
    "invalid-request": (422, "The request is not what the operation takes", "see the faults"),
    "invalid-identity": (422, "The identity breaks its profile", "correct the identifier"),
    "invalid-payload": (422, "The payload is not what the queue takes", "correct the payload"),
    "refused": (422, "The answer is no", "asking again with the same words changes nothing"),
    "too-many-requests": (429, "Too many requests", "wait Retry-After seconds"),
    "queue-full": (429, "The queue is full", "submit again when work has been done"),
    "too-many-streams": (429, "Too many streams are open", "close one, or ask another service"),
    "check-under-way": (
        429,
        "Another check or replay is under way",
        "ask again after Retry-After seconds: one at a time of a tenant",
    ),
    "head-too-large": (431, "The head is too large", "send fewer and shorter headers"),
    "internal": (500, "A fault of the service", "report it with the request's id"),
    "unavailable": (503, "The database is away", "repeat the request after Retry-After seconds"),
    "retryable": (503, "Something else was in the way", "repeat the request"),
    "too-busy": (503, "Too many requests are under way", "ask again, or ask another service"),
    "not-ready": (503, "The service cannot serve", "see the detail"),
}


# What was expected and what came, where whoever refuses knows no better; faults have neither.
USUAL: Final[dict[str, tuple[str, str]]] = {
    "not-http": ("HTTP/1.1", "something else"),
    "not-json": ("strict JSON in UTF-8", "something else"),
    "unauthenticated": ("a token that is good now", "none that is"),
    "forbidden": ("a token that may do this", "one that may not"),
    "not-found": ("a path of /v1/openapi.json", "another one"),
    "no-such-batch": ("a batch of the tenant", "an id that it does not know"),
    "no-such-queue": ("a queue of the tenant", "a name that it does not know"),
    "no-such-fence": ("a fence of the tenant", "a key that it does not know"),
    "no-such-login": ("a code that was not used, in its time", "another one"),
    "no-such-token": ("a token of the tenant that is good", "a name that has none"),
    "method-not-allowed": ("a method of the path", "another one"),
    "too-slow": ("the whole body in time", "a part of it"),
    "conflict": ("the payload that the identity stands for", "another one"),
    "illegal-transition": ("a batch in a state that allows it", "one in another"),
    "in-progress": ("work that has ended", "work that is under way"),
    "no-result": ("a batch with a result", "one without"),
    "queue-closed": ("an open queue", "a closed one"),
    "name-taken": ("a name that was never used", "one that was"),
    "body-too-large": ("a smaller body", "more"),
    "unsupported-media-type": ("application/json", "something else"),
    "invalid-request": ("another request", "this one"),
    "invalid-identity": ("an identity that keeps to its profile", "one that does not"),
    "invalid-payload": ("a payload that the queue takes", "another one"),
    "refused": ("what the detail says", "what the detail says"),
    "too-many-requests": ("fewer requests", "one more"),
    "head-too-large": ("a smaller head", "more"),
    "queue-full": ("fewer batches pending", "more"),
    "too-many-streams": ("fewer streams", "one more"),
    "not-in-doubt": ("a fence in doubt, as it was looked at", "one that is not, or has moved on"),
    "check-under-way": ("one check or replay of a tenant at a time", "another one"),
}


class Problem(HTTPException):
    """One answer; `more` are its extension members."""

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
        **more: Any,  # noqa: ANN401 - JSON
    ) -> None:
        status, self.title, usual = PROBLEMS[kind]
        super().__init__(status_code=status, detail=detail)
        self.kind = kind
        wanted, came = USUAL.get(kind, (None, None))
        self.told = {
            "expected": expected or wanted,
            "got": got or came,
            "remedy": remedy or usual,
            **more,
        }
        self.extra = dict(headers or {})
        if retry_after is not None:
            self.extra["Retry-After"] = str(math.ceil(min(max(retry_after, 1), 60)))

    def body(self, request_id: str) -> dict[str, Any]:
        return {
            "type": PREFIX + self.kind,
            "title": self.title,
            "status": self.status_code,
            "detail": self.detail,
            "request": request_id,
            **{name: value for name, value in self.told.items() if value is not None},
        }

    def response(self, request_id: str) -> JSONResponse:
        headers = {"Cache-Control": "no-store", **self.extra}
        return JSONResponse(
            self.body(request_id), self.status_code, headers, "application/problem+json"
        )


def problem_of(error: HelixError, *, values: bool = False) -> Problem:
    """The problem for an error of ours; `values` says that the client may see payloads."""
    kind = next((name for one, name in _KINDS if isinstance(error, one)), "internal")
    headers, retry_after = None, None
    if kind == "unauthenticated":
        headers = {"WWW-Authenticate": "Bearer"}
    if kind in {"in-progress", "unavailable"}:
        retry_after = getattr(error, "retry_after", None) or 1.0
    # The client learns nothing of the inside; whoever runs it reads the log.
    detail = str(error) if isinstance(error, Refused | InProgress) else PROBLEMS[kind][1]
    more = _more(error, values=values)
    return Problem(kind, detail, retry_after=retry_after, headers=headers, **more)


# The first that fits.
_KINDS: Final[tuple[tuple[type[HelixError], str], ...]] = (
    (InvalidToken, "unauthenticated"),
    (Conflict, "conflict"),
    (InvalidIdentity, "invalid-identity"),
    (InvalidPayload, "invalid-payload"),
    (IllegalTransition, "illegal-transition"),
    (NotPermitted, "forbidden"),
    (QueueClosed, "queue-closed"),
    (NoResult, "no-result"),
    (Refused, "refused"),
    (InProgress, "in-progress"),
    (Unavailable, "unavailable"),
    (Retryable, "retryable"),
    (SchemaMismatch, "not-ready"),
)


def _more(error: HelixError, *, values: bool) -> dict[str, Any]:
    """What an error knows besides its words."""
    match error:
        case Conflict():
            # A difference is a disclosure: who may not read payloads gets the places alone.
            paths = [{name: op[name] for name in ("op", "path")} for op in error.diff]
            return {"diff": error.diff if values else paths}
        case InvalidIdentity():
            names = ("code", "code_point", "offset", "part", "suggestion")
            return {"got": error.code, **{name: getattr(error, name) for name in names}}
        case InvalidPayload():
            got = f"{error.code} at {error.path or 'the whole'}"
            return {"got": got, "code": error.code, "pointer": error.path}
        case Unavailable():
            # Whether it may have been done: a repeat finds out.
            return {"outcome_unknown": error.outcome_unknown}
    return {}


def unauthenticated(detail: str, got: str) -> Problem:
    return Problem("unauthenticated", detail, got=got, headers={"WWW-Authenticate": "Bearer"})


def invalid_request(errors: Sequence[Any]) -> Problem:
    """From what validation found; of what came, only where it stood: it may be a secret."""
    faults = [
        {
            "where": "/" + "/".join(str(part) for part in fault["loc"]),
            "expected": _wanted(fault),
            "got": _came(fault),
        }
        for fault in errors[:20]
    ]
    if not faults:
        return Problem("invalid-request", "the request is not what the operation takes")
    where, expected, got = faults[0].values()
    detail = f"{where}: expected {expected}, got {got}"
    return Problem("invalid-request", detail, expected=expected, got=got, faults=faults)


def _wanted(fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return "a value"
        case "extra_forbidden":
            return "no such name"
    said = str(fault["msg"])[:300]
    for begin, instead in _SAID.items():
        if said.startswith(begin):
            return instead + said.removeprefix(begin)
    return said


# How the framework begins, and how a sentence goes on behind "expected".
_SAID: Final = {
    "Input should be ": "",
    "String should ": "a string that should ",
    "Value error, expected ": "",
    "Value error, ": "",
}


def _came(fault: Mapping[str, Any]) -> str:
    """What kind of thing; never the thing itself."""
    if fault["type"] == "missing":
        return "none"
    came = fault.get("input")
    if isinstance(came, str):
        return f"a string of {len(came)} characters"
    if isinstance(came, list):
        return f"a list of {len(came)}"
    return _KINDS_OF_JSON.get(type(came), "something else")


_KINDS_OF_JSON: Final[dict[type, str]] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    dict: "an object",
}


class ProblemAnswer(BaseModel):
    """What every refusal looks like; some have more members, as docs/http.md says."""

    model_config = ConfigDict(title="Problem", extra="allow")

    type: str
    title: str
    status: int
    detail: str
    request: str | None = None
    expected: str | None = None
    got: str | None = None
    remedy: str | None = None
