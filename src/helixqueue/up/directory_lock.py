"""A lock that allows one `helixq up` per data directory; the kernel releases it after a crash."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from helixqueue.errors import Refused, Unavailable

LOCK = "up.lock"
RETRY_SECONDS = 0.1


class AlreadyUp(Refused):
    """Another `helixq up` runs on this directory."""

    exit_status = 9

    def __init__(self, directory: Path, pid: int | None, url: str | None) -> None:
        self.directory = str(directory)
        self.pid = pid
        self.url = url
        address = f"at {url}" if url else "and is starting"
        process = f" (process {pid})" if pid else ""
        super().__init__(
            f"helixq up already runs in {directory}, {address}{process}; use it, stop it with "
            "Ctrl-C, or choose another directory with --data"
        )


class Owner(NamedTuple):
    """The process that holds the lock of a directory."""

    pid: int | None = None
    url: str | None = None
    tenant: str | None = None


class DirectoryLock:
    """The held lock of a data directory."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def publish(self, url: str | None, tenant: str | None = None) -> None:
        """Store what `running_up` and `AlreadyUp` report of this process."""
        text = json.dumps({"pid": os.getpid(), "url": url, "tenant": tenant}).encode()
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text, 0)


@contextmanager
def lock_directory(directory: Path) -> Iterator[DirectoryLock]:
    """Hold the lock of the directory; raises AlreadyUp when another process holds it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # Every command imports this module for AlreadyUp; this import would load the driver.
        from helixqueue.embedded.account import explain_os_error  # noqa: PLC0415

        raise Unavailable(
            f"expected a directory that this user can write to, got {directory}: "
            f"{explain_os_error(directory, error)}; choose another with --data"
        ) from error
    try:
        if not _locked(handle, fcntl.LOCK_EX):
            time.sleep(RETRY_SECONDS)  # `url_of` in another process holds it for a moment
            if not _locked(handle, fcntl.LOCK_EX):
                raise AlreadyUp(directory, *_owner(handle)[:2])
        lock = DirectoryLock(handle)
        lock.publish(None)
        yield lock
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def running_up(directory: Path) -> Owner:
    """The `helixq up` that runs on a directory; without URL when none runs or it is starting."""
    try:
        handle = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Owner()
    try:
        # A killed process leaves its URL in the file; another program may use that port now.
        return Owner() if _locked(handle, fcntl.LOCK_SH) else _owner(handle)
    finally:
        os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(handle: int) -> Owner:
    """What the lock file says; nothing while the owner is writing it."""
    try:
        content = json.loads(os.pread(handle, 4096, 0))
        return Owner(int(content["pid"]), content["url"], content["tenant"])
    except (ValueError, KeyError, TypeError):
        return Owner()
