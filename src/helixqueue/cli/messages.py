"""Messages on standard error: text for people, JSON lines where standard error is a log.

The log mode of a long-running command: JSON lines unless standard error is a terminal, always with
HELIX_LOG=json. Other commands print text.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import traceback

from helixqueue.cli.sanitize import plain

JSON_LOG = {"HELIX_LOG": "json"}
_json_lines = False  # of the running command; its threads print messages, too


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
        from helixqueue.json_log import message_line  # noqa: PLC0415 - not for `helixq --help`

        sys.stderr.write(f"{message_line(level, message)}\n")
        return
    sys.stderr.write(f"{wrapped(plain(message))}\n")


def write_traceback() -> None:
    """Print the traceback of the current exception."""
    if not _json_lines:
        traceback.print_exc()
        return
    from helixqueue.json_log import message_line  # noqa: PLC0415

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
