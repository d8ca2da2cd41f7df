"""Processes of their own, and waiting for conditions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import helixqueue

if TYPE_CHECKING:
    from collections.abc import Callable

USER = Path(__file__).with_name("user.py")
NOBODY = 65534
# For an interpreter that is not this environment's.
PACKAGES = os.pathsep.join(
    str(Path(str(module.__file__)).parents[1]) for module in (helixqueue, psycopg)
)


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition; a test that waits says for what."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for: {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody reaped has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def interpreter(uid: int | None) -> str:
    """A Python that `uid` may run; root's own often lies in /root, closed to others."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            subprocess.run([python, "-c", ""], cwd="/", user=uid, group=uid, check=True)
        except OSError:
            continue
        return python
    pytest.skip(f"uid {uid} can run no Python {sys.version_info.minor}: apt-get install python3")


class UserProcess:
    """`user.py` in a process of its own."""

    def __init__(self, kind: str, directory: Path, *flags: str, uid: int | None = None) -> None:
        self.process = subprocess.Popen(
            [interpreter(uid), USER, kind, directory, *flags],
            cwd="/",
            env={**os.environ, "PYTHONPATH": PACKAGES},
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._server_pid: int | None = None

    @property
    def server_pid(self) -> int:
        """The pid of its server; waits until that is up."""
        assert self.process.stdout is not None
        if self._server_pid is None:
            line = self.process.stdout.readline()
            assert line.startswith("up "), f"the user process said {line!r}"
            self._server_pid = int(line.split()[1])
        return self._server_pid

    def leave(self) -> None:
        out, _ = self.process.communicate("stop\n", timeout=60)
        assert out.endswith("left\n")
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
