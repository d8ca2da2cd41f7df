"""One `helixq up` a directory. The kernel keeps the lock, so a killed one leaves none behind."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helixqueue.errors import Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = "up.lock"
LOOK_SECONDS = 0.1


class AlreadyUp(Refused):
    """Another `helixq up` has this directory."""

    def __init__(self, directory: Path, pid: int | None, url: str | None) -> None:
        self.directory = str(directory)
        self.pid = pid
        self.url = url
        what = f"at {url}" if url else "and is just starting"
        who = f" (process {pid})" if pid else ""
        super().__init__(
            f"helixq up runs already in {directory}, {what}{who}; use that one, stop it with "
            "Ctrl-C there, or name another directory with --data"
        )


class DirectoryLock:
    """The directory, once it is ours."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def tell(self, url: str | None) -> None:
        """Leave word for whoever comes second."""
        text = json.dumps({"pid": os.getpid(), "url": url}).encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text, 0)


@contextmanager
def taken(directory: Path) -> Iterator[DirectoryLock]:
    """Have the directory for ourselves; raises AlreadyUp when somebody else has it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # Not above: every command knows of AlreadyUp, and this brings the driver of PostgreSQL.
        from helixqueue.embedded.account import why_not  # noqa: PLC0415

        raise Unavailable(
            f"expected a directory that this user can write to, got {directory}: "
            f"{why_not(directory, error)}; name another with --data"
        ) from error
    try:
        if not _locked(handle, fcntl.LOCK_EX):
            time.sleep(LOOK_SECONDS)  # it may be somebody who only looks
            if not _locked(handle, fcntl.LOCK_EX):
                raise AlreadyUp(directory, *_word(handle))
        place = DirectoryLock(handle)
        place.tell(None)
        yield place
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def url_of(directory: Path) -> str | None:
    """Where the `helixq up` of a directory serves; None when none does."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The word of one that was killed stays behind, and its port may be a stranger's by now.
        return None if _locked(handle, fcntl.LOCK_SH) else _word(handle)[1]
    finally:
        os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _word(handle: int) -> tuple[int | None, str | None]:
    """What the other one left; it may be writing at this moment."""
    try:
        told = json.loads(os.pread(handle, 4096, 0))
        return int(told["pid"]), told["url"]
    except (ValueError, KeyError, TypeError):
        return None, None
