"""`--watch SECONDS` of list commands: the list again and again until Ctrl-C.

On a terminal each reading replaces the one before in a single write, so that the screen neither
scrolls nor tears. In a pipe, and with `--json`, the readings follow each other.
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TextIO

from rich.cells import cell_len, set_cell_size

from helixqueue.cli import connection, show
from helixqueue.cli.options import option
from helixqueue.errors import Unavailable
from helixqueue.log.terminal import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Watch = Annotated[
    float | None,
    option("--watch SECONDS", "Read again this long after each reading, until Ctrl-C.", min=0.1),
]
# A terminal has a second screen, which leaves the text of the first one as it was.
_OPEN: Final = "\x1b[?1049h"
_CLOSE: Final = "\x1b[?1049l"
# Terminals with synchronized updates show everything between these two at once.
_BEGIN: Final = "\x1b[?2026h\x1b[H"
_END: Final = "\x1b[J\x1b[?2026l"
_CLEAR_LINE: Final = "\x1b[2K"
_STYLE: Final = re.compile(r"\x1b\[[\d;]*m")


def watch(
    seconds: float, open_reader: Callable[[connection.Target], Callable[[], Any]], *, as_json: bool
) -> NoReturn:
    """Call what `open_reader` returns, which prints; a server that restarts does not end it."""
    on_screen = sys.stdout.isatty() and not as_json
    with _second_screen(seconds) if on_screen else nullcontext(_Pipe(seconds)) as display:
        while True:
            try:
                with connection.open_target() as target:
                    read = open_reader(target)
                    display.connected()
                    while True:
                        read()
                        display.show_reading()
                        display.pause()
            except Unavailable as error:
                display.show_failure(error)
            display.pause()


class _Pipe:
    """Readings in a pipe, which would keep them until the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_read = False
        self._resized = threading.Event()

    def connected(self) -> None: ...

    def pause(self) -> None:
        self._resized.wait(self._seconds)
        self._resized.clear()

    def show_reading(self) -> None:
        self._has_read = True
        sys.stdout.flush()

    def show_failure(self, error: Unavailable) -> None:
        if not self._has_read:
            raise error
        show.progress(f"not read: {error}")


class _Frame(io.StringIO):
    """Takes the output of a reading as if it were the terminal."""

    def isatty(self) -> bool:
        return True

    def take(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


class _Screen(_Pipe):
    """Readings on a terminal: a line with time and database, and below it the last one."""

    def __init__(self, terminal: TextIO, frame: _Frame, seconds: float) -> None:
        super().__init__(seconds)
        self._terminal = terminal
        self._frame = frame
        self._source = ""
        self.last = ""

        signal.signal(signal.SIGWINCH, lambda *_: self._resized.set())

    def connected(self) -> None:
        self._source = " ".join(self._frame.take().split())

    def show_reading(self) -> None:
        self._has_read = True
        self.last = self._frame.take()
        self._draw(f"every {self._seconds:g} s  {self._source}", "2")

    def show_failure(self, error: Unavailable) -> None:
        self._frame.take()
        if not self._has_read:
            raise error
        self._draw(f"not read: {' '.join(plain(str(error)).split())}", "1;31")

    def _draw(self, header: str, style: str) -> None:
        width, height = shutil.get_terminal_size()
        header = set_cell_size(f"{time.strftime('%H:%M:%S')}  {header}", width).rstrip()
        lines = [f"\x1b[{style}m{header}\x1b[0m", *_fitting(self.last, width, height - 1)]
        text = "\n".join(f"{_CLEAR_LINE}{line}" for line in lines)
        self._terminal.write(f"{_BEGIN}{text}{_END}")
        self._terminal.flush()


def _fitting(text: str, width: int, height: int) -> list[str]:
    """The lines that fit; the last one names how many do not."""
    lines = text.splitlines()
    rows = [max(1, -(-cell_len(_STYLE.sub("", line)) // width)) for line in lines]
    if sum(rows) <= height:
        return lines
    fit = 0
    while sum(rows[: fit + 1]) < height:
        fit += 1
    return [*lines[:fit], f"{len(lines) - fit} more lines: enlarge the window or add a filter"]


@contextmanager
def _second_screen(seconds: float) -> Iterator[_Screen]:
    """Open the second screen; at the end the last reading is printed on the first one."""
    terminal, frame = sys.stdout, _Frame()
    screen = _Screen(terminal, frame, seconds)
    terminal.write(_OPEN)
    try:
        with redirect_stdout(frame), redirect_stderr(frame):
            yield screen
    finally:
        terminal.write(f"{_CLOSE}{screen.last}")
        terminal.flush()
