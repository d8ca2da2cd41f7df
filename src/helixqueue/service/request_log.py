"""The request log: one JSON line per request, and one per batch of a worker or bulk request.

A search for a batch id finds its history: submitted, claimed, settled, refused, each line with the
id of its request. Only the fields listed here are written, never a body, a header or a query.
Values that look like secrets are masked: a client may send a token as the name of a worker.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from helixqueue.engine.tokens import LOGIN, TOKEN
from helixqueue.json_log import JsonFormatter, level_name

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("helixqueue.service.request")

FIELDS: Final = (
    "tenant", "token", "queue", "ledger", "feed", "batch", "fence", "run", "attempt", "worker",
    "conflicting_worker",
    "decision", "count", "reason", "raw_hex", "without_identity", "problem", "fault",
)  # fmt: skip
_FIELDS: Final = frozenset(FIELDS)
# Fields of the request that every step line repeats.
_COMMON_FIELDS: Final[tuple[str, ...]] = ("tenant", "token", "worker")
_PLAIN_TYPES: Final = frozenset({bool, int, float, UUID})
_LISTS: Final = (list, tuple, set, frozenset)
MAX_CHARS: Final = 300
NO_ROUTE: Final = "(none)"
SCOPE_KEY: Final = "helixqueue.request_log"
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^@\s]+@")


def _mask_url_password(run: re.Match[str]) -> str:
    text = run[0]
    return _URL_PASSWORD.sub(r"\1(masked)@", text) if text.endswith("@") else text


# Patterns of secrets, and their replacements.
_SECRETS: Final = (
    (TOKEN, "hx_(masked)"),
    (LOGIN, "hl_(masked)"),
    # Up to each @ by itself: without one, a search would read to the end again from every "://".
    (re.compile(r"[^@\s]+@?"), _mask_url_password),
    (re.compile(r"(password\s*=\s*)('[^']*'|[^\s\"']+)", re.IGNORECASE), r"\1(masked)"),
)
# Every secret contains one of these; a cheap test before the patterns.
_MARKERS: Final = ("hx_", "hl_", "://", "assword", "ASSWORD")


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
        self._steps: list[tuple[str, dict[str, Any], Sequence[str] | None]] = []
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

    def add_step(self, operation: str, **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Log the result of one batch of the request."""
        self._steps.append((operation, fields, None))
        # Another worker owns the batch, or the worker sent two different results for one attempt.
        is_mismatch = fields.get("mismatch") or fields.get("conflicting_worker")
        self._has_mismatch = self._has_mismatch or bool(is_mismatch)

    def add_batches(self, operation: str, batch_ids: Sequence[str], **fields: Any) -> None:  # noqa: ANN401 - JSON
        """Log the same result of many batches, one line each."""
        self._steps.append((operation, fields, batch_ids))

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
        head: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level_name(level),
            "request": self.request_id,
        }
        if self._trace is not None:
            head["trace"] = self._trace
        lines = self._step_lines(head) if self._steps else []
        summary = {
            "operation": self.operation,
            "method": self.method,
            "route": self.route,
            "status": status,
            "ms": round(self.seconds * 1000, 2),
        }
        lines.append(orjson.dumps(head | summary | _loggable(self._fields)))
        log.log(level, "%s", b"\n".join(lines).decode())

    def _step_lines(self, head: dict[str, Any]) -> list[bytes]:
        common = {name: self._fields[name] for name in _COMMON_FIELDS if name in self._fields}
        prefix = orjson.dumps(head | _loggable(common))[:-1] + b","
        # The steps of a request have few different texts: each is masked once.
        texts: dict[str, Any] = {}
        lines = []
        for operation, fields, batch_ids in self._steps:
            line: dict[str, Any] = {"operation": operation}
            for name, value in fields.items():
                if type(value) in _PLAIN_TYPES:
                    line[name] = value
                elif type(value) is str:
                    line[name] = texts.get(value) or texts.setdefault(value, _bounded(value))
                elif value is not None:
                    line[name] = _bounded(value)
            text = prefix + orjson.dumps(line)[1:]
            if batch_ids is None:
                lines.append(text)
            else:
                start = text[:-1].decode() + ',"batch":"'
                lines.append((start + f'"}}\n{start}'.join(batch_ids) + '"}').encode())
        return lines


class MaskingFormatter(JsonFormatter):
    """JSON lines, with secrets masked."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        # The request log has masked its fields, and may have a thousand lines.
        return text if record.name == log.name else masked(text)


def traceback_of(error: BaseException) -> str:
    """The type and the stack, without the message: it may contain user data."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return masked(f"{type(error).__name__}\n{lines}")


def masked(text: str) -> str:
    if not any(marker in text for marker in _MARKERS):
        return text
    for secret, replacement in _SECRETS:
        text = secret.sub(replacement, text)
    return text


def refused_fields(raw: bytes, reason: str) -> dict[str, str]:
    """The fields of a refused identity: its bytes in hex, without secrets, and the reason."""
    text = raw.decode("utf-8", "surrogateescape")
    hidden = masked(text)
    return {
        "raw_hex": (raw if hidden == text else hidden.encode("utf-8", "surrogateescape")).hex(),
        "reason": reason,
    }


def _loggable(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if type(value) in _PLAIN_TYPES else _bounded(value)
        for name, value in fields.items()
        if value is not None
    }


def _bounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, _LISTS):
        return [_bounded(item) for item in list(value)[:20]]
    # Masked before it is cut, because a cut secret no longer matches its pattern.
    text = masked(str(value))[:MAX_CHARS]
    # A lone surrogate cannot be encoded as UTF-8.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
