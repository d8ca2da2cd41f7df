"""Several processes, one server: who uses it, who may start it, and whether it lives.

Three files in the server's directory, and the kernel keeps the books, so `kill -9` of anything
leaves no stale entry behind:

```
lock      flock, exclusive: held while somebody starts or stops the server
users     flock, shared: every user holds one; whoever gets it exclusively was the last user
alive     a FIFO: every process of the server holds its writing end; end-of-file = all are gone
```

Lock order: `lock`, then `users`. A registry of pids was rejected: it goes stale with every
`kill -9`, and a recycled pid makes a dead user look alive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Say = Callable[[str], None]


class Sharing:
    """One user's view of the three files."""

    def __init__(self, directory: Path) -> None:
        self._lock = directory / "lock"
        self._users = directory / "users"
        self._alive = directory / "alive"
        self._membership: int | None = None

    @contextmanager
    def exclusive(self, say: Say) -> Iterator[None]:
        """Hold `lock`: nobody else starts or stops this server meanwhile."""
        handle = _open(self._lock)
        try:
            if not _try_flock(handle, fcntl.LOCK_EX):
                say("waiting for another process that starts or stops this server")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def join(self) -> None:
        """Become a user; needs `exclusive`. Joining twice is joining once."""
        if self._membership is None:
            self._membership = _open(self._users)
            fcntl.flock(self._membership, fcntl.LOCK_SH)

    def leave(self) -> bool:
        """Stop being a user; needs `exclusive`. True when nobody is left."""
        if self._membership is not None:
            # Unlocked by hand: a forked child may still hold a copy of the handle.
            fcntl.flock(self._membership, fcntl.LOCK_UN)
            self.forget()
        handle = _open(self._users)
        try:
            # The sentinel waits for this file and may be given it first. It gives it back at once
            # and then waits for `lock`, which we hold: the second look tells it from a user.
            for _ in range(2):
                fcntl.flock(handle, fcntl.LOCK_SH)
                if _try_flock(handle, fcntl.LOCK_EX):
                    return True
            return False
        finally:
            os.close(handle)

    def forget(self) -> None:
        """Close the handle and leave the lock to whoever shares it: a child does so after fork."""
        if self._membership is not None:
            os.close(self._membership)
            self._membership = None

    @property
    def joined(self) -> bool:
        return self._membership is not None

    @contextmanager
    def breath(self) -> Iterator[int]:
        """The writing end of `alive`, for the server to inherit."""
        reader = self.listen()
        try:
            writer = os.open(self._alive, os.O_WRONLY | os.O_CLOEXEC)
        finally:
            os.close(reader)
        try:
            yield writer
        finally:
            os.close(writer)

    def listen(self) -> int:
        """The reading end of `alive`: `select` wakes when the last process of the server ends."""
        with suppress(FileExistsError):
            os.mkfifo(self._alive, 0o600)
        return os.open(self._alive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def alive(self) -> bool:
        """Whether any process of the server lives, be it the last child of a killed postmaster."""
        reader = self.listen()
        try:
            return breathing(reader)
        finally:
            os.close(reader)

    def wait_until_gone(self, timeout_s: float) -> bool:
        """Wait for the server's last process; False when it lives on after `timeout_s`."""
        reader = self.listen()
        try:
            if breathing(reader):
                select.select([reader], [], [], timeout_s)
            return not breathing(reader)
        finally:
            os.close(reader)


def breathing(reader: int) -> bool:
    """Whether the FIFO behind `reader` has a writer: without one, reading gives end-of-file."""
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
