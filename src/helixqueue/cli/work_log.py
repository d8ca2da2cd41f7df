"""What `helixq work` writes to standard error: lines for people, or JSON lines (messages.py)."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any, Final

from helixqueue.cli import messages
from helixqueue.cli.sanitize import plain
from helixqueue.json_log import JsonFormatter
from helixqueue.transport import operation_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOG_BYTES: Final = 10_000_000
_CLEAR: Final = "\r\x1b[2K"
_OUTCOMES: Final = {"COMPLETED": "completed", "FAILED": "failed", "PENDING": "failed, retries"}
_STYLES: Final = {"completed": "32", "failed": "1;31", "failed, retries": "33", "lost": "1;31"}


@contextmanager
def logging_to(file: Path | None) -> Iterator[None]:
    """Log to standard error; the operation log goes to `file`, if given."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    on_terminal = not messages.select_log_mode()
    log = TerminalLog() if on_terminal else logging.StreamHandler(sys.stderr)
    log.setFormatter(JsonFormatter())
    handlers: list[tuple[logging.Logger, logging.Handler]] = [(logging.getLogger(), log)]
    operations = operation_log.LOG
    if file is not None:
        rotating = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        rotating.setFormatter(JsonFormatter())
        handlers.append((operations, rotating))
        # On a terminal people see the same operations as lines of their own.
        operations.propagate = on_terminal
    for logger, handler in handlers:
        logger.addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    try:
        yield
    finally:
        operations.propagate = True
        for logger, handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class TerminalLog(logging.Handler):
    """A line per finished batch, and below them a line with the counts so far."""

    def __init__(self) -> None:
        super().__init__()
        self._claimed_at: dict[str, float] = {}
        self._counts = {"completed": 0, "failed": 0, "lost": 0}

    def emit(self, record: logging.LogRecord) -> None:
        operation: dict[str, Any] | None = getattr(record, "operation", None)
        if operation is None:
            error = record.exc_info[1] if record.exc_info else None
            text = record.getMessage() + ("" if error is None else f": {error}")
            style = "33" if record.levelno < logging.ERROR else "1;31"
            self._write([_styled(text, style if record.levelno > logging.INFO else "")])
            return
        self._write(self._lines(operation, getattr(record, "identity", "")))

    def close(self) -> None:
        """Remove the line with the counts."""
        super().close()
        if self._claimed_at or any(self._counts.values()):
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _lines(self, operation: dict[str, Any], identity: str) -> list[str]:
        batch = str(operation["batch"])
        if operation["operation"] == "claim":
            self._claimed_at[batch] = time.monotonic()
            return []
        seconds = time.monotonic() - self._claimed_at.pop(batch, time.monotonic())
        if operation["decision"] == "busy":
            return []
        if operation["decision"] == "refused":
            outcome = "lost"
        elif operation["operation"] == "release":
            outcome = "released"
        else:
            outcome = _OUTCOMES.get(str(operation.get("state")), "settled")
        name = outcome.partition(",")[0]
        if name in self._counts:
            self._counts[name] += 1
        attempt = f"  attempt {operation['attempt']}" if operation.get("attempt", 1) != 1 else ""
        what = f"{time.strftime('%H:%M:%S')}  {outcome:<15}  {identity or batch[:8]}"
        return [_styled(f"{what}  {seconds:.1f} s{attempt}", _STYLES.get(outcome, ""))]

    def _write(self, lines: list[str]) -> None:
        done = ", ".join(f"{number} {name}" for name, number in self._counts.items())
        status = f"{len(self._claimed_at)} running, {done}"
        width = shutil.get_terminal_size().columns - 1
        text = "".join(f"{line}\n" for line in lines)
        sys.stderr.write(f"{_CLEAR}{text}{status[:width]}")
        sys.stderr.flush()


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{plain(text)}\x1b[0m" if style else plain(text)
