"""Turns problem responses (RFC 9457) of a service into errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from helixqueue import errors
from helixqueue.errors import (
    Conflict,
    HelixError,
    IllegalTransition,
    InDoubt,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    NoResult,
    NotInDoubt,
    NotPermitted,
    Refused,
    ResultGone,
    Retryable,
    SchemaMismatch,
    Unavailable,
)

PREFIX: Final = "urn:helixqueue:problem:"
LONGEST_RETRY_AFTER_S: Final = 60.0
_PASSING: Final = {408, 425, 429}  # statuses below 500 that a repeat may change


def kind_of(body: bytes) -> str:
    """The kind of a problem: its type without the prefix; empty for any other body."""
    return _kind(_document(body))


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> HelixError:
    """The error of a response. A response that is no problem of the service means Unavailable."""
    document = _document(body)
    return error_from(document, status, _retry_after(headers.get("retry-after")))


def error_from(
    document: dict[str, Any], status: int | None = None, retry_after: float | None = None
) -> HelixError:
    """The error of a problem, also of one inside another response."""
    kind = _kind(document)
    status = status or int(document.get("status", 500))
    message = str(
        document.get("detail") or document.get("title") or f"the service answered {status}"
    )
    remedy = document.get("remedy")
    message = f"{message}; {remedy}" if remedy and remedy not in message else message
    make = _ERRORS.get(kind)
    if make is not None:
        return make(message, document, retry_after)
    if kind in _PLAIN:
        return _PLAIN[kind](message)
    if status == 413 and not kind:
        return Refused("a proxy before the service refused the body (413); it must take 1 MiB")
    if 400 <= status < 500 and not kind and status not in _PASSING:
        return Refused(f"{message}; the response is not of the service: check URL and proxy")
    if status >= 500 or status in _PASSING or not kind:
        # A 502 of a proxy, or a fault while the service processed the request.
        unknown = status >= 500 and not (kind and document.get("outcome_unknown") is False)
        return Unavailable(message, outcome_unknown=unknown, retry_after=retry_after)
    return Refused(message)


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _kind(document: dict[str, Any]) -> str:
    kind = document.get("type")
    return kind.removeprefix(PREFIX) if isinstance(kind, str) and kind.startswith(PREFIX) else ""


def _retry_after(text: str | None) -> float | None:
    if text is None or not text.isdigit():
        return None
    return min(float(text), LONGEST_RETRY_AFTER_S)


def _unavailable(message: str, document: dict[str, Any], retry_after: float | None) -> HelixError:
    unknown = bool(document.get("outcome_unknown"))
    return Unavailable(message, outcome_unknown=unknown, retry_after=retry_after)


def _invalid_identity(message: str, document: dict[str, Any], _: float | None) -> HelixError:
    return InvalidIdentity(
        message,
        code=str(document.get("code")),
        code_point=document.get("code_point"),
        offset=document.get("offset"),
        suggestion=document.get("suggestion"),
        part=int(document.get("part") or 0),
    )


# Errors whose only argument is the message, by the kind of their problem.
_PLAIN: Final[dict[str, type[HelixError]]] = {
    error.kind: error
    for error in vars(errors).values()
    if isinstance(error, type)
    and issubclass(error, Refused | Retryable | SchemaMismatch)
    and {"kind", "__init__"} & vars(error).keys() == {"kind"}
}
# Errors with more arguments, and kinds that share an error; all others are plain refusals.
_ERRORS: Final[dict[str, Callable[[str, dict[str, Any], float | None], HelixError]]] = {
    "unauthenticated": lambda message, *_: NotPermitted(message),
    "conflict": lambda message, document, _: Conflict(
        message, diff=list(document.get("diff") or [])
    ),
    "invalid-identity": _invalid_identity,
    "invalid-payload": lambda message, document, _: InvalidPayload(
        message, code=str(document.get("code")), path=str(document.get("pointer") or "")
    ),
    "illegal-transition": lambda message, document, _: IllegalTransition(
        message, state=document.get("state"), note=document.get("note")
    ),
    "no-result": lambda message, document, _: NoResult(
        message, state=str(document.get("state")), failure=document.get("failure")
    ),
    "not-in-doubt": lambda message, document, _: NotInDoubt(
        message, state=str(document.get("state")), version=int(document.get("version") or 0)
    ),
    "in-progress": lambda message, _, after: InProgress(message, retry_after=after or 1.0),
    "in-doubt": lambda message, document, after: InDoubt(
        message, key=document.get("fence"), retry_after=after
    ),
    "result-expired": lambda message, document, _: ResultGone(
        message, receipt=str(document.get("receipt"))
    ),
    "unavailable": _unavailable,
    "storage-unavailable": _unavailable,
    "too-busy": _unavailable,
    "too-many-requests": _unavailable,
    "queue-full": _unavailable,
    "too-many-streams": _unavailable,
}
