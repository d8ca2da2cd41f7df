"""The last one out: a tiny process that stops a server whose users were all killed.

It sleeps in the kernel until the `users` file is free, which also happens when the last user dies
by `kill -9` and can stop nothing itself. Then it stops the server cleanly and ends. Run by path,
with the standard library only: `python -I -S sentinel.py DIRECTORY PID_FILE SIGNAL`.
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
    """Make sure that a sentinel watches `directory`; a second one ends at once."""
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
        # Inside another program (uwsgi) `sys.executable` is no Python. The server works without.
        log.warning("nobody will stop the server in %s if its users are killed", directory)


def server_pid(pid_file: Path) -> int | None:
    """The pid in the first line of a server's own pid file.

    None when that process belongs to another uid than the file: root signals no process on the
    word of a server gone bad, nor one that was given a dead server's pid.
    """
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid = int(pid_file.read_text(encoding="utf-8").partition("\n")[0])
        process = Path(f"/proc/{pid}")
        if not process.exists() or process.stat().st_uid == pid_file.stat().st_uid:
            return pid
    return None


def main(directory: Path, pid_file: Path, stop_signal: int) -> None:
    mine = os.O_CREAT
    if _flock(directory / "sentinel", fcntl.LOCK_EX | fcntl.LOCK_NB, mine) is None:
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
        if _flock(directory / "users", fcntl.LOCK_EX | fcntl.LOCK_NB) is not None:
            _stop(directory / "alive", pid_file, stop_signal)
            return
        if lock is not None:
            os.close(lock)


def _stop(alive: Path, pid_file: Path, stop_signal: int) -> None:
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    asked = None
    for _ in range(6000):
        with contextlib.suppress(BlockingIOError):
            if os.read(reader, 1) == b"":
                return
        # A server whose starter was killed early may not have written its pid yet.
        pid = server_pid(pid_file)
        if pid is not None and pid != asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            asked = pid
        select.select([reader], [], [], 0.05)


def _flock(path: Path, kind: int, create: int = 0) -> int | None:
    """The locked handle; None when it is taken or the file is gone.

    The users' files are not made anew: whoever removes the directory after the last user left must
    not find it filled again.
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
