"""The last one out: a tiny process that stops a server whose users were all killed.

It sleeps in the kernel until the `users` file is free, which also happens when the last user dies
by `kill -9` and can stop nothing itself. Then it stops the server cleanly and ends. Run by path,
with the standard library only: `python -I -S sentinel.py DIRECTORY SIGNAL`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
from pathlib import Path


def watch(directory: Path, stop_signal: int) -> None:
    """Make sure that a sentinel watches `directory`; a second one ends at once."""
    subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(directory), str(int(stop_signal))],
        cwd="/",
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def server_pid(directory: Path) -> int | None:
    """The pid that the last launch wrote down."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((directory / "pid").read_text(encoding="ascii"))
    return None


def main(directory: Path, stop_signal: int) -> None:
    if not _flock(directory / "sentinel", fcntl.LOCK_EX | fcntl.LOCK_NB):
        return
    if os.fork():
        # Whoever started the server has no child to reap.
        os._exit(0)
    while True:
        free = _flock(directory / "users", fcntl.LOCK_EX)
        if free is None:
            return
        # Given back before `lock` is asked for: everyone takes `lock` first.
        os.close(free)
        lock = _flock(directory / "lock", fcntl.LOCK_EX)
        last = _flock(directory / "users", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if last is not None:
            _stop(directory, stop_signal)
            return
        if lock is not None:
            os.close(lock)


def _stop(directory: Path, stop_signal: int) -> None:
    reader = os.open(directory / "alive", os.O_RDONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(reader, 1) == b"":
            return
    pid = server_pid(directory)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, stop_signal)
            select.select([reader], [], [], 60)


def _flock(path: Path, kind: int) -> int | None:
    """The locked handle; None when it is taken or the directory is gone."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, kind)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
