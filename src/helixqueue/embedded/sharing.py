"""Files by which several processes share one server.

The kernel maintains the locks, so `kill -9` of any process leaves no stale entry:

```
lock      flock, exclusive: held while a process starts or stops the server
users     flock, shared: held by every user; a process that locks it exclusively is the last user
alive     a FIFO whose write end every server process holds; end-of-file means that all have ended
```

Lock order: `lock`, then `users`. A registry of pids would go stale with every `kill -9`, and
a reused pid would make a dead user look alive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Progress = Callable[[str], None]


class Sharing:
    """One user's handles of the three files."""

    def __init__(self, directory: Path) -> None:
        self._lock = directory / "lock"
        self._users = directory / "users"
        self._alive = directory / "alive"
        self._membership: int | None = None

    @contextmanager
    def exclusive(self, progress: Progress) -> Iterator[None]:
        """Hold `lock`: no other process starts or stops this server meanwhile."""
        handle = _open(self._lock)
        try:
            if not _try_flock(handle, fcntl.LOCK_EX):
                progress("waiting for another process that is starting or stopping this server")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def join(self) -> None:
        """Become a user; requires `exclusive`. Idempotent."""
        if self._membership is None:
            self._membership = _open(self._users)
            fcntl.flock(self._membership, fcntl.LOCK_SH)

    def leave(self) -> bool:
        """Stop being a user; requires `exclusive`. True when no user is left."""
        if self._membership is not None:
            # Unlock explicitly: a forked child may hold a copy of the handle.
            fcntl.flock(self._membership, fcntl.LOCK_UN)
            self.forget()
        handle = _open(self._users)
        try:
            # The sentinel also waits for this lock and may get it first. It releases it at once and
            # then waits for `lock`, which this process holds, so the second try succeeds.
            for _ in range(2):
                fcntl.flock(handle, fcntl.LOCK_SH)
                if _try_flock(handle, fcntl.LOCK_EX):
                    return True
            return False
        finally:
            os.close(handle)

    def forget(self) -> None:
        """Close the handle without unlocking: after a fork, the parent still holds the lock."""
        if self._membership is not None:
            os.close(self._membership)
            self._membership = None

    @property
    def joined(self) -> bool:
        return self._membership is not None

    @contextmanager
    def liveness_writer(self) -> Iterator[int]:
        """The write end of `alive`, for the server to inherit."""
        reader = self.open_liveness_reader()
        try:
            writer = os.open(self._alive, os.O_WRONLY | os.O_CLOEXEC)
        finally:
            os.close(reader)
        try:
            yield writer
        finally:
            os.close(writer)

    def open_liveness_reader(self) -> int:
        """The read end of `alive`: `select` returns when the last server process ends."""
        with suppress(FileExistsError):
            os.mkfifo(self._alive, 0o600)
        return os.open(self._alive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def alive(self) -> bool:
        """Whether any server process runs, including children of a killed postmaster."""
        reader = self.open_liveness_reader()
        try:
            return has_writer(reader)
        finally:
            os.close(reader)

    def wait_until_gone(self, timeout_s: float) -> bool:
        """Wait for the last server process to end; False when one still runs after `timeout_s`."""
        reader = self.open_liveness_reader()
        try:
            if has_writer(reader):
                select.select([reader], [], [], timeout_s)
            return not has_writer(reader)
        finally:
            os.close(reader)


def has_writer(reader: int) -> bool:
    """Whether the FIFO has a writer; without one, reading returns end-of-file."""
    try:
        return os.read(reader, 1) != b""
    except BlockingIOError:
        return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_flock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EWOULDBLOCK}:
            return False
        raise
    return True
