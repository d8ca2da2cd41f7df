"""Messages on standard error: text for people, JSON lines where standard error is a log.

The log mode of a long-running command: JSON lines unless standard error is a terminal, always with
HELIX_LOG=json. Other commands print text. `helixq work` shows one line per finished batch on a
terminal, and JSON lines elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from helixqueue.identity import escaped

LOG_BYTES: Final = 10_000_000
_CLEAR: Final = "\r\x1b[2K"
_OUTCOMES: Final = {"COMPLETED": "completed", "FAILED": "failed", "PENDING": "failed, retries"}
_STYLES: Final = {"completed": "32", "failed": "1;31", "failed, retries": "33", "lost": "1;31"}

JSON_LOG = {"HELIX_LOG": "json"}
RELAY_LOG = {"HELIX_LOG": "relay"}  # of a process whose lines `TerminalLog.relay` takes
_RELAYED: Final = '{"msg": '
_INDENT: Final = " " * 10
_json_lines = False  # of the running command; its threads print messages, too
_terminal_log: TerminalLog | None = None


def plain(text: str) -> str:
    r"""Text that is safe to print.

    Texts of workers, files and databases may contain escape sequences that repaint the terminal, or
    characters that change the reading direction. They are printed as escapes such as \u{1b}.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else escaped(char) for char in text)


def select_log_mode(*, by_default: bool | None = None) -> bool:
    """Print messages of this command as JSON lines from now on, if its log has that mode."""
    global _json_lines  # noqa: PLW0603 - one command per process
    if by_default is None:
        by_default = not sys.stderr.isatty()
    mode = os.environ.get("HELIX_LOG")
    _json_lines = mode == JSON_LOG["HELIX_LOG"] if mode else by_default
    return _json_lines


def reset_log_mode() -> None:
    """Print text, before a command."""
    global _json_lines  # noqa: PLW0603
    _json_lines = False


def write(message: str, level: int = logging.INFO) -> None:
    """Print a message to standard error; on a terminal it wraps between words."""
    if _json_lines:
        from helixqueue.log.lines import message_line  # noqa: PLC0415 - not for `helixq --help`

        sys.stderr.write(f"{message_line(level, message)}\n")
        return
    if _terminal_log is not None:
        _terminal_log.handle(logging.makeLogRecord({"levelno": level, "msg": message}))
        return
    sys.stderr.write(f"{wrapped(plain(message))}\n")


def write_traceback() -> None:
    """Print the traceback of the current exception."""
    if not _json_lines:
        traceback.print_exc()
        return
    from helixqueue.log.lines import message_line  # noqa: PLC0415

    line = message_line(logging.ERROR, "unexpected error", traceback=traceback.format_exc())
    sys.stderr.write(f"{line}\n")


def wrapped(text: str, indent: str = "") -> str:
    """Break lines between words if standard error is a terminal, which would break words."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        line
        if len(line) <= width
        else textwrap.fill(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        for line in text.split("\n")
    )


@contextmanager
def logging_to(file: Path | None) -> Iterator[None]:
    """Log to standard error; the operation log goes to `file`, if given."""
    # Imported here: `helixq --help` needs neither.
    from logging.handlers import RotatingFileHandler  # noqa: PLC0415

    from helixqueue.log.events import WORKER_LOG  # noqa: PLC0415
    from helixqueue.log.lines import JsonFormatter  # noqa: PLC0415

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    is_relayed = os.environ.get("HELIX_LOG") == RELAY_LOG["HELIX_LOG"]
    on_terminal = not select_log_mode()
    terminal = on_terminal and not is_relayed
    log = TerminalLog() if terminal else logging.StreamHandler(sys.stderr)
    log.setFormatter(RelayFormatter() if is_relayed else JsonFormatter())
    handlers: list[tuple[logging.Logger, logging.Handler]] = [(logging.getLogger(), log)]
    if file is not None:
        rotating = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        rotating.setFormatter(JsonFormatter())
        handlers.append((WORKER_LOG, rotating))
        # On a terminal people see the same operations as lines of their own.
        WORKER_LOG.propagate = on_terminal
    for logger, handler in handlers:
        logger.addHandler(handler)
    logging.getLogger().setLevel(logging.INFO)
    try:
        yield
    finally:
        WORKER_LOG.propagate = True
        for logger, handler in handlers:
            logger.removeHandler(handler)
            handler.close()


def text_of(record: logging.LogRecord) -> str:
    """The message of a record and its error, without the traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + ("" if error is None else f": {error}")


class TerminalLog(logging.Handler):
    """A line per finished batch, and below them a line with the counts so far.

    Every message of the process goes through it while it is open, so that the counts stay below.
    """

    def __init__(self) -> None:
        global _terminal_log  # noqa: PLW0603 - one terminal per process
        super().__init__()
        # By process, batch and attempt.
        self._claimed_at: dict[tuple[str, str, int], float] = {}
        self._counts = dict.fromkeys(("completed", "failed", "lost", "released"), 0)
        _terminal_log = self

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] | None = getattr(record, "event", None)
        source = getattr(record, "source", "")
        if event is None or "worker" not in event:
            text = f"{source and f'{source}: '}{text_of(record)}"
            style = "33" if record.levelno < logging.ERROR else "1;31"
            self._write([_styled(wrapped(text), style if record.levelno > logging.INFO else "")])
            return
        key = (source, str(event["batch"]), int(event["attempt"]))
        name = getattr(record, "title", "") or key[1][:8]
        self._write(self._lines(event, key, name, getattr(record, "detail", "")))

    def relay(self, source: str, line: str | None) -> None:
        """Print a line of a child process, which has `RELAY_LOG`; None: the process has ended."""
        if line is None:
            left = [key for key in self._claimed_at if key[0] == source]
            for key in left:
                del self._claimed_at[key]
            self._counts["lost"] += len(left)
            self._write([])
            return
        try:
            fields = json.loads(line) if line.startswith(_RELAYED) else {"msg": line}
        except ValueError:
            fields = {"msg": line}
        self.handle(logging.makeLogRecord({"levelno": logging.INFO, **fields, "source": source}))

    def close(self) -> None:
        """Remove the line with the counts."""
        global _terminal_log  # noqa: PLW0603
        super().close()
        _terminal_log = None
        if self._has_counts():
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def summary(self) -> str:
        """What the workers did; "" for nothing."""
        return self._texts() if any(self._counts.values()) else ""

    def _lines(
        self, event: dict[str, Any], key: tuple[str, str, int], name: str, detail: str
    ) -> list[str]:
        if event["operation"] == "claim":
            self._claimed_at[key] = time.monotonic()
            return []
        # The transaction of a settlement may still roll back; and an attempt ends once.
        if event.get("committed") is False or key not in self._claimed_at:
            return []
        seconds = time.monotonic() - self._claimed_at.pop(key)
        if event["decision"] not in {"ok", "repeat"}:
            outcome = "lost"
        elif event["operation"] == "release":
            outcome = "released"
        else:
            outcome = _OUTCOMES.get(str(event.get("state")), "failed")
        self._counts[outcome.partition(",")[0]] += 1
        attempt = f"  attempt {event['attempt']}" if event.get("attempt", 1) != 1 else ""
        text = f"{time.strftime('%H:%M:%S')}  {outcome:<15}  {name}  {seconds:.1f} s{attempt}"
        if detail and outcome != "completed":
            text += "\n" + wrapped(f"{_INDENT}{detail}", indent=_INDENT)
        return [_styled(text, _STYLES.get(outcome, ""))]

    def _has_counts(self) -> bool:
        return bool(self._claimed_at) or any(self._counts.values())

    def _texts(self) -> str:
        return ", ".join(f"{number} {name}" for name, number in self._counts.items())

    def _write(self, lines: list[str]) -> None:
        status = f"{len(self._claimed_at)} running, {self._texts()}" if self._has_counts() else ""
        width = shutil.get_terminal_size().columns - 1
        text = "".join(f"{line}\n" for line in lines)
        sys.stderr.write(f"{_CLEAR}{text}{status[:width]}")
        sys.stderr.flush()


class RelayFormatter(logging.Formatter):
    """A line per record, of which the parent process prints what a terminal shows."""

    def format(self, record: logging.LogRecord) -> str:
        names = ("levelno", "event", "title", "detail")
        fields = {name: getattr(record, name) for name in names if hasattr(record, name)}
        text = "" if "worker" in fields.get("event", ()) else text_of(record)
        return json.dumps({"msg": text, **fields}, default=str)


def _styled(text: str, style: str) -> str:
    return f"\x1b[{style}m{plain(text)}\x1b[0m" if style else plain(text)
