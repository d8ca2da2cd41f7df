"""Log lines: JSON objects with a time, a level, and a message or an operation.

A line with an operation is an event. Its logger gets the finished line as the message, so that an
application that configures nothing logs it unchanged. Secrets are masked in every line: a client
may send a token as the name of a worker.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

MAX_CHARS: Final = 2048
MAX_ITEMS: Final = 20
PLAIN_TYPES: Final = frozenset({bool, int, float, UUID})
_LISTS: Final = (list, tuple, set, frozenset)
_URL_PASSWORD: Final = re.compile(r"(://[^/\s:@]*:)[^@\s]+@")


def _mask_url_password(run: re.Match[str]) -> str:
    text = run[0]
    return _URL_PASSWORD.sub(r"\1(masked)@", text) if text.endswith("@") else text


# Patterns of secrets, and their replacements: API tokens, login codes, passwords in DSNs.
_SECRETS: Final = (
    (re.compile(r"(h[xl]_)[A-Za-z0-9_-]{43}"), r"\1(masked)"),
    # Up to each @ by itself: without one, a search would read to the end again from every "://".
    (re.compile(r"[^@\s]+@?"), _mask_url_password),
    (re.compile(r"(password\s*=\s*)('[^']*'|[^\s\"']+)", re.IGNORECASE), r"\1(masked)"),
)
# Every secret contains one of these; a cheap test before the patterns.
_MARKERS: Final = ("hx_", "hl_", "://", "assword", "ASSWORD")


def masked(text: str) -> str:
    if not any(marker in text for marker in _MARKERS):
        return text
    for secret, replacement in _SECRETS:
        text = secret.sub(replacement, text)
    return text


def refused_fields(raw: bytes, reason: str) -> dict[str, str]:
    """The fields of a refused identity: its bytes in hex, without secrets, and the reason."""
    text = masked(raw.decode("utf-8", "surrogateescape"))
    return {"raw_hex": text.encode("utf-8", "surrogateescape").hex(), "reason": reason}


def traceback_of(error: BaseException) -> str:
    """The type and the stack, without the message: it may contain user data."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return masked(f"{type(error).__name__}\n{lines}")


def head(level: int) -> dict[str, Any]:
    """The first members of every line."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": logging.getLevelName(level).lower(),
    }


def message_line(level: int, message: str, **fields: Any) -> str:  # noqa: ANN401 - JSON
    # Escaped, so that no message ends a line or fails to be encoded.
    return json.dumps({**head(level), "message": message, **fields}, default=str)


def event(
    log: logging.Logger,
    level: int,
    operation: str,
    *,
    title: str = "",
    detail: str = "",
    **fields: Any,  # noqa: ANN401 - JSON
) -> None:
    """Log an event as a JSON line; only terminals show `title` and `detail`."""
    line = head(level) | {"operation": operation} | loggable(fields)
    text = orjson.dumps(line).decode()
    log.log(level, "%s", text, extra={"event": line, "title": title, "detail": detail})


def loggable(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if type(value) in PLAIN_TYPES else bounded(value)
        for name, value in fields.items()
        if value is not None
    }


def bounded(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, _LISTS):
        return [bounded(item) for item in list(value)[:MAX_ITEMS]]
    # Masked before it is cut, because a cut secret no longer matches its pattern.
    text = masked(str(value))[:MAX_CHARS]
    # A lone surrogate cannot be encoded as UTF-8.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class JsonFormatter(logging.Formatter):
    """One JSON line per record; a traceback is a member of it."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if hasattr(record, "event"):  # masked already, and may have a thousand lines
            return message
        fields = {"logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return masked(message_line(record.levelno, message, **fields))
