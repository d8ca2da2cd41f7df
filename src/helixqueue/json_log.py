"""Log records as JSON lines: every line has a time, a level and a message or an operation."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

# Loggers whose messages are JSON lines already.
JSON_LOGGERS = frozenset({"helixqueue.worker.operation", "helixqueue.service.request"})


def level_name(level: int) -> str:
    return logging.getLevelName(level).lower()


def message_line(level: int, message: str, **fields: Any) -> str:  # noqa: ANN401 - JSON
    line = {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level_name(level),
        "message": message,
        **fields,
    }
    # Escaped, so that no message ends a line or fails to be encoded.
    return json.dumps(line, default=str)


class JsonFormatter(logging.Formatter):
    """One JSON line per record; a traceback is a member of it."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.name in JSON_LOGGERS:
            return message
        fields = {"logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return message_line(record.levelno, message, **fields)
