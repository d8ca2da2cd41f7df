"""A terminal of 80 x 24: runs a program on it, types into it and reads its screen."""

from __future__ import annotations

import contextlib
import re
import time

import pexpect
import pyte

from tests.support.cli import HELIXQ

ROWS, COLUMNS = 24, 80
END_OF_FRAME = b"\x1b[?2026l"
# What pyte does not know: the second screen, and synchronized updates.
UNKNOWN = re.compile(rb"\x1b\[\?(?:1049|2026)[hl]")


class Terminal:
    """A program on a terminal."""

    def __init__(self, program, *arguments, environment, cwd=None, columns=COLUMNS, timeout=30):
        environment = {k: v for k, v in environment.items() if k not in {"COLUMNS", "LINES"}}
        self.child = pexpect.spawn(
            str(program), [str(argument) for argument in arguments], cwd=cwd, timeout=timeout,
            env=environment | {"TERM": "xterm-256color"}, dimensions=(ROWS, columns),
        )  # fmt: skip
        self.screen = pyte.HistoryScreen(columns, ROWS, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._unread = b""
        self.output = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.close(force=True)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        """Everything the terminal showed, without what was erased."""
        above = ["".join(row[x].data for x in range(self.screen.columns)).rstrip()
                 for row in self.screen.history.top]  # fmt: skip
        return "\n".join([*above, *self.lines]).rstrip()

    def read(self, seconds=0.2):
        """Feed what the program wrote to the screen; False at its end."""
        try:
            self.feed(self.child.read_nonblocking(65_536, timeout=seconds))
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        return True

    def feed(self, data):
        self.output += data
        data = self._unread + data
        # An escape sequence may be cut in two.
        cut = data.rfind(b"\x1b", -16)
        data, self._unread = (data[:cut], data[cut:]) if cut >= 0 else (data, b"")
        self._stream.feed(UNKNOWN.sub(b"", data))
        if re.fullmatch(rb"\x1b(?:\[[?\d;]*[A-Za-z].*|[^\[].*)", self._unread, re.DOTALL):
            self._stream.feed(UNKNOWN.sub(b"", self._unread))
            self._unread = b""

    def expect(self, pattern, seconds=30):
        """Wait until the screen or what scrolled off it matches; returns the match."""
        end = time.monotonic() + seconds
        while True:
            if found := re.search(pattern, self.text):
                return found
            alive = self.read()
            if found := re.search(pattern, self.text):
                return found
            assert alive, f"ended without {pattern!r}:\n{self.text}"
            assert time.monotonic() < end, f"no {pattern!r}:\n{self.text}"

    def interrupt(self):
        self.child.sendintr()

    def type(self, line):
        self.child.sendline(line)

    def exit_code(self, seconds=30):
        """Wait for the end of the program."""
        end = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < end, f"still running:\n{self.text}"
        with contextlib.suppress(pexpect.EOF):
            self.child.wait()
        return (
            self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus
        )


def helixq_on_terminal(helixq, *arguments, **options):
    """`helixq` with the database of a fixture."""
    return Terminal(HELIXQ, *arguments, environment=helixq.environment(), **options)
