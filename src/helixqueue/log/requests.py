"""The request log: one JSON line per request, and one per batch of a worker or bulk request.

A search for a batch id finds its history: submitted, claimed, settled, refused, each line with the
id of its request. Only the fields listed here are written, never a body, a header or a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import orjson

from helixqueue.log.lines import PLAIN_TYPES, bounded, head, loggable

log = logging.getLogger("helixqueue.service.request")

FIELDS: Final = (
    "tenant", "token", "queue", "ledger", "feed", "batch", "fence", "run", "attempt", "worker",
    "conflicting_worker",
    "decision", "effect_id", "source_type", "source_id",
    "count", "reason", "raw_hex", "without_identity", "problem", "fault",
)  # fmt: skip
_FIELDS: Final = frozenset(FIELDS)
# Fields of the request that every line repeats.
_COMMON_FIELDS: Final[tuple[str, ...]] = ("tenant", "token", "worker")
NO_ROUTE: Final = "(none)"
SCOPE_KEY: Final = "helixqueue.request_log"


class RequestLog:
    """Collects the fields of one request."""

    def __init__(self, request_id: str, method: str, trace: str | None = None) -> None:
        self.request_id = request_id
        self.method = method
        self.route = NO_ROUTE
        self.operation = NO_ROUTE
        # A submission without identity: a repeat would create another batch.
        self.unrepeatable = False
        self._trace = trace
        self._started_at = time.monotonic()
        self._fields: dict[str, Any] = {}
        self._lines: list[tuple[str, dict[str, Any], Sequence[str] | None]] = []
        self._has_mismatch = False
        self._has_warning = False

    def set_route(self, route: str, operation: str) -> None:
        self.route = route
        self.operation = operation

    def add(self, **fields: Any) -> None:  # noqa: ANN401 - JSON
        unknown = fields.keys() - _FIELDS
        if unknown:
            raise TypeError(f"unknown field {min(unknown)!r}; known: {', '.join(FIELDS)}")
        for name, value in fields.items():
            if value is not None:
                self._fields[name] = value

    def warn(self, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Add fields that an operator should see."""
        self.add(**fields)
        self._has_warning = True

    def add_line(self, operation: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Log the result of one batch of the request."""
        self._lines.append((operation, fields, None))
        # Another worker owns the batch, or the worker sent two different results for one attempt.
        is_mismatch = fields.get("mismatch") or fields.get("conflicting_worker")
        self._has_mismatch = self._has_mismatch or bool(is_mismatch)

    def add_batches(self, operation: str, batch_ids: Sequence[str], **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Log the same result of many batches, one line each."""
        self._lines.append((operation, fields, batch_ids))

    @property
    def is_routed(self) -> bool:
        return self.route is not NO_ROUTE

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    def write(self, status: int) -> None:
        """Write all lines as one record: a record per line took half the time of a bulk submit."""
        level = logging.WARNING if status >= 500 or self._has_warning else logging.INFO
        if self._has_mismatch:
            level = logging.ERROR
        if not log.isEnabledFor(level):
            return
        start = head(level) | {"request": self.request_id}
        if self._trace is not None:
            start["trace"] = self._trace
        lines = self._batch_lines(start) if self._lines else []
        summary = {
            "operation": self.operation,
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(self.seconds * 1000, 2),
        }
        lines.append(orjson.dumps(start | summary | loggable(self._fields)))
        log.log(level, "%s", b"\n".join(lines).decode(), extra={"event": None})

    def _batch_lines(self, start: dict[str, Any]) -> list[bytes]:
        common = {name: self._fields[name] for name in _COMMON_FIELDS if name in self._fields}
        prefix = orjson.dumps(start | loggable(common))[:-1] + b","
        # The lines of a request have few different texts: each is masked once.
        texts: dict[str, Any] = {}
        lines = []
        for operation, fields, batch_ids in self._lines:
            line: dict[str, Any] = {"operation": operation}
            for name, value in fields.items():
                if type(value) in PLAIN_TYPES:
                    line[name] = value
                elif type(value) is str:
                    line[name] = texts.get(value) or texts.setdefault(value, bounded(value))
                elif value is not None:
                    line[name] = bounded(value)
            text = prefix + orjson.dumps(line)[1:]
            if batch_ids is None:
                lines.append(text)
            else:
                row = text[:-1].decode() + ',"batch":"'
                lines.append((row + f'"}}\n{row}'.join(batch_ids) + '"}').encode())
        return lines
