"""From a problem (RFC 9457) back to the error it was made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import (
    Conflict,
    HelixError,
    IllegalTransition,
    InDoubt,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    NoResult,
    NotPermitted,
    QueueClosed,
    Refused,
    ResultGone,
    Retryable,
    SchemaMismatch,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "urn:helixqueue:problem:"
LONGEST_RETRY_AFTER_S: Final = 60.0


def kind_of(body: bytes) -> str:
    """The last word of a problem's type; empty if it is none of ours."""
    return _kind(_told(body))


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> HelixError:
    """What the service refused with; whatever is not its own words means that it is away."""
    told = _told(body)
    return error_from(told, status, _retry_after(headers.get("retry-after")))


def error_from(
    told: dict[str, Any], status: int | None = None, retry_after: float | None = None
) -> HelixError:
    """The error of a problem, also of one inside of another answer."""
    kind = _kind(told)
    status = status or int(told.get("status", 500))
    said = str(told.get("detail") or told.get("title") or f"the service answered {status}")
    remedy = told.get("remedy")
    message = f"{said}; {remedy}" if remedy and remedy not in said else said
    make = _ERRORS.get(kind)
    if make is not None:
        return make(message, told, retry_after)
    if status == 413 and not kind:
        return Refused("a proxy before the service refused the body (413); it must take 1 MiB")
    if status >= 500 or status in {408, 429} or not kind:
        # A proxy's 502, or a fault in the middle of something: nobody knows what was done.
        unknown = status >= 500 and not (kind and told.get("outcome_unknown") is False)
        return Unavailable(message, outcome_unknown=unknown, retry_after=retry_after)
    return Refused(message)


def _told(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _kind(told: dict[str, Any]) -> str:
    kind = told.get("type")
    return kind.removeprefix(PREFIX) if isinstance(kind, str) and kind.startswith(PREFIX) else ""


def _retry_after(text: str | None) -> float | None:
    if text is None or not text.isdigit():
        return None
    return min(float(text), LONGEST_RETRY_AFTER_S)


def _unavailable(message: str, told: dict[str, Any], retry_after: float | None) -> HelixError:
    unknown = bool(told.get("outcome_unknown"))
    return Unavailable(message, outcome_unknown=unknown, retry_after=retry_after)


def _invalid_identity(message: str, told: dict[str, Any], _: float | None) -> HelixError:
    return InvalidIdentity(
        message,
        code=str(told.get("code")),
        code_point=told.get("code_point"),
        offset=told.get("offset"),
        suggestion=told.get("suggestion"),
        part=int(told.get("part") or 0),
    )


# By the types that the service and its middleware know; all others are plain refusals.
_ERRORS: Final[dict[str, Callable[[str, dict[str, Any], float | None], HelixError]]] = {
    "unauthenticated": lambda said, *_: NotPermitted(said),
    "forbidden": lambda said, *_: NotPermitted(said),
    "conflict": lambda said, told, _: Conflict(said, diff=list(told.get("diff") or [])),
    "invalid-identity": _invalid_identity,
    "invalid-payload": lambda said, told, _: InvalidPayload(
        said, code=str(told.get("code")), path=str(told.get("pointer") or "")
    ),
    "illegal-transition": lambda said, *_: IllegalTransition(said),
    "queue-closed": lambda said, *_: QueueClosed(said),
    "no-result": lambda said, told, _: NoResult(
        said, state=str(told.get("state")), failure=told.get("failure")
    ),
    "in-progress": lambda said, _, after: InProgress(said, retry_after=after or 1.0),
    "in-doubt": lambda said, told, after: InDoubt(said, key=told.get("fence"), retry_after=after),
    "result-expired": lambda said, told, _: ResultGone(said, receipt=str(told.get("receipt"))),
    "retryable": lambda said, _told, _after: Retryable(said),
    "not-ready": lambda said, *_: SchemaMismatch(said),
    "unavailable": _unavailable,
    "storage-unavailable": _unavailable,
    "too-busy": _unavailable,
    "too-many-requests": _unavailable,
    "queue-full": _unavailable,
    "too-many-streams": _unavailable,
}
