"""One line of JSON for each request, and one for each batch that a worker or a chunk was about.

So one batch's story is a search for its id: submitted, claimed, settled, refused, each line with
the request it came with. Only the fields named here are written, never a body, a header or a query.
What looks like a secret is masked even so: somebody may have sent it as the name of a worker.
"""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from typing import Any, Final

from helixqueue.store.tokens import LOGIN, TOKEN

log = logging.getLogger("helixqueue.service.request")

FIELDS: Final = (
    "tenant", "token", "queue", "batch", "run", "attempt", "worker", "conflicting_worker",
    "decision", "count", "reason", "problem", "fault",
)  # fmt: skip
_FIELDS: Final = frozenset(FIELDS)
_OF_ALL_STEPS: Final = ("tenant", "token", "queue", "worker")
MAX_CHARS: Final = 300
SCOPE_KEY: Final = "helixqueue.journal"
# What must not be read by whoever reads logs, and what stands in its place.
_SECRETS: Final = (
    (TOKEN, "hx_(masked)"),
    (LOGIN, "hl_(masked)"),
    (re.compile(r"(://[^/\s:@]*:)[^@\s]+@"), r"\1(masked)@"),
    (re.compile(r"(password\s*=\s*)('[^']*'|[^\s\"']+)", re.IGNORECASE), r"\1(masked)"),
)


class Journal:
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
        self._steps: list[dict[str, Any]] = []

    def know(self, **facts: Any) -> None:  # noqa: ANN401 - whatever is known
        unknown = facts.keys() - _FIELDS
        if unknown:
            raise TypeError(f"unknown field {min(unknown)!r}; known: {', '.join(FIELDS)}")
        self._facts |= {name: value for name, value in facts.items() if value is not None}

    def step(self, operation: str, **facts: Any) -> None:  # noqa: ANN401 - whatever is known
        """What became of one of the batches that the request is about."""
        self._steps.append({"operation": operation, **facts})

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def write(self, status: int) -> None:
        level = logging.WARNING if status >= 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        head: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": self.request_id,
        }
        if self._trace is not None:
            head["trace"] = self._trace
        for step in self._steps:
            known = {name: self._facts[name] for name in _OF_ALL_STEPS if name in self._facts}
            log.log(level, "%s", _line(head | {"operation": step["operation"]}, known | step))
        answer = {
            "operation": self.operation,
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(self.seconds * 1000, 2),
        }
        log.log(level, "%s", _line(head | answer, self._facts))


class MaskingFormatter(logging.Formatter):
    """The message alone, whoever wrote it, without its secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


def masked(text: str) -> str:
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    return text


def _line(head: dict[str, Any], facts: dict[str, Any]) -> str:
    told = {name: _plain(facts[name]) for name in FIELDS if facts.get(name) is not None}
    return masked(json.dumps(head | told, ensure_ascii=False))


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in list(value)[:20]]
    return value if isinstance(value, int | float | bool) else str(value)[:MAX_CHARS]
