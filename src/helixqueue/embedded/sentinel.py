"""A small process that stops a server after all of its users were killed.

It waits for the lock of the `users` file, which the kernel also releases when the last user is
killed with `kill -9`. Then it stops the server cleanly and exits. It is run by path, with the
standard library only: `python -I -S sentinel.py DIRECTORY PID_FILE SIGNAL`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)


def watch(directory: Path, pid_file: Path, stop_signal: int) -> None:
    """Start a sentinel for `directory`; if one already runs, the new one exits at once."""
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, directory, pid_file, str(int(stop_signal))],
            cwd="/",
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        # In an embedding program (uwsgi) `sys.executable` is not Python. The server still works.
        log.warning(
            "no sentinel process: the server in %s keeps running if its users are killed", directory
        )


def server_pid(pid_file: Path) -> int | None:
    """The pid in the first line of a server's own pid file.

    None when that process belongs to another uid than the file: root must not signal a process
    that a compromised server named, nor one that reuses the pid of a dead server.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid = int(pid_file.read_text(encoding="utf-8").partition("\n")[0])
        process = Path(f"/proc/{pid}")
        if not process.exists() or process.stat().st_uid == pid_file.stat().st_uid:
            return pid
    return None


def main(directory: Path, pid_file: Path, stop_signal: int) -> None:
    if _flock(directory / "sentinel", fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_CREAT) is None:
        return
    if os.fork():
        # Detached, so that the starter has no child to reap.
        os._exit(0)
    while True:
        free = _flock(directory / "users", fcntl.LOCK_EX)
        if free is None:
            return
        # Released before taking `lock`: the lock order is `lock`, then `users`.
        os.close(free)
        lock = _flock(directory / "lock", fcntl.LOCK_EX)
        if _flock(directory / "users", fcntl.LOCK_EX | fcntl.LOCK_NB) is not None:
            _stop(directory / "alive", pid_file, stop_signal)
            return
        if lock is not None:
            os.close(lock)


def _stop(alive: Path, pid_file: Path, stop_signal: int) -> None:
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    signalled = None
    for _ in range(6000):
        with contextlib.suppress(BlockingIOError):
            if os.read(reader, 1) == b"":
                return
        # If its starter was killed early, the server may not have written its pid yet.
        pid = server_pid(pid_file)
        if pid is not None and pid != signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            signalled = pid
        select.select([reader], [], [], 0.05)


def _flock(path: Path, kind: int, create: int = 0) -> int | None:
    """The locked handle; None when another process holds the lock or the file is gone.

    Missing files are not created: after the last user has left, the directory may be deleted, and
    must stay so.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, kind)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
