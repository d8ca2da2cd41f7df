"""One line of JSON for each request, and one for each batch that a worker or a chunk was about.

So one batch's story is a search for its id: submitted, claimed, settled, refused, each line with
the request it came with. Only the fields named here are written, never a body, a header or a query.
What looks like a secret is masked even so: somebody may have sent it as the name of a worker.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

from helixqueue.engine.tokens import LOGIN, TOKEN

log = logging.getLogger("helixqueue.service.request")

FIELDS: Final = (
    "tenant", "token", "queue", "batch", "fence", "run", "attempt", "worker", "conflicting_worker",
    "decision", "count", "reason", "problem", "fault",
)  # fmt: skip
_FIELDS: Final = frozenset(FIELDS)
# Of the request, and so of each of its batches; the queue, where it is not the batch's own.
_OF_ALL_STEPS: Final[tuple[str, ...]] = ("tenant", "token", "worker")
_AS_THEY_ARE: Final = frozenset({bool, int, float, UUID})
_LISTS: Final = (list, tuple, set, frozenset)
MAX_CHARS: Final = 300
SCOPE_KEY: Final = "helixqueue.journal"
# What must not be read by whoever reads logs, and what stands in its place.
_SECRETS: Final = (
    (TOKEN, "hx_(masked)"),
    (LOGIN, "hl_(masked)"),
    (re.compile(r"(://[^/\s:@]*:)[^@\s]+@"), r"\1(masked)@"),
    (re.compile(r"(password\s*=\s*)('[^']*'|[^\s\"']+)", re.IGNORECASE), r"\1(masked)"),
)
# Without any of these there is none of them, which is quicker to see.
_SIGNS: Final = ("hx_", "hl_", "://", "assword", "ASSWORD")


class RequestLog:
    """What is known of one request so far."""

    def __init__(self, request_id: str, method: str, trace: str | None = None) -> None:
        self.request_id = request_id
        self.method = method
        self.route = "(none)"
        self.operation = "(none)"
        # Work without identity: a repeat could not be told from other work.
        self.unrepeatable = False
        self._trace = trace
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {}
        self._steps: list[tuple[str, dict[str, Any]]] = []
        self._has_mismatch = False

    def know(self, **facts: Any) -> None:  # noqa: ANN401 - whatever is known
        unknown = facts.keys() - _FIELDS
        if unknown:
            raise TypeError(f"unknown field {min(unknown)!r}; known: {', '.join(FIELDS)}")
        self._facts |= {name: value for name, value in facts.items() if value is not None}

    def step(self, operation: str, **facts: Any) -> None:  # noqa: ANN401 - whatever is known
        """What became of one of the batches that the request is about."""
        self._steps.append((operation, facts))
        # A worker had two results for one attempt: an error of the worker's, and people must know.
        self._has_mismatch = self._has_mismatch or bool(facts.get("mismatch"))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def write(self, status: int) -> None:
        """All lines as one message: a chunk has a thousand, and a record each was half its time."""
        level = logging.WARNING if status >= 500 else logging.INFO
        if self._has_mismatch:
            level = logging.ERROR
        if not log.isEnabledFor(level):
            return
        head: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": self.request_id,
        }
        if self._trace is not None:
            head["trace"] = self._trace
        lines = self._step_lines(head) if self._steps else []
        answer = {
            "operation": self.operation,
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(self.seconds * 1000, 2),
        }
        lines.append(orjson.dumps(head | answer | _told(self._facts)))
        log.log(level, "%s", b"\n".join(lines).decode())

    def _step_lines(self, head: dict[str, Any]) -> list[bytes]:
        common = {name: self._facts[name] for name in _OF_ALL_STEPS if name in self._facts}
        begin = orjson.dumps(head | _told(common))[:-1]
        return [
            b"%b,%b" % (begin, orjson.dumps({"operation": operation} | _told(facts))[1:])
            for operation, facts in self._steps
        ]


class MaskingFormatter(logging.Formatter):
    """The message alone, whoever wrote it, without its secrets."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        # The journal masks its fields, and may have a thousand lines.
        return text if record.name == log.name else masked(text)


def where(error: BaseException) -> str:
    """Where it happened, and not what was said: a message may hold somebody's data."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return masked(f"{type(error).__name__}\n{lines}")


def masked(text: str) -> str:
    if not any(sign in text for sign in _SIGNS):
        return text
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text


def _told(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if type(value) in _AS_THEY_ARE else _bounded(value)
        for name, value in facts.items()
        if value is not None
    }


def _bounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, _LISTS):
        return [_bounded(one) for one in list(value)[:20]]
    # Each by itself: what looks like the begin of a secret in one field must not hide the next. And
    # whole, because half a secret does not look like one.
    text = masked(str(value))[:MAX_CHARS]
    # A lone surrogate has no UTF-8, and a line that cannot be written tells nothing.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
