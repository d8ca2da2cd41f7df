"""What every destination of output files does.

A final name is only ever created, never replaced: by `link` in a directory, by conditional requests
in an object store. What is linked or copied is the copy that a worker staged, not the file of the
handler, which may still have it open.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, Any, Protocol

from helixqueue.errors import HelixError, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STAGING = ".helix"
LOGS = "logs"  # below it


class NameOccupied(HelixError):
    """A final name has other content: an operator decides."""


class StoreUnavailable(Unavailable):
    """The destination cannot be reached from here, or refuses the credentials."""


class Store(Protocol):
    """One destination. Methods block: call them in threads.

    All raise `StoreUnavailable`.
    """

    def require(self) -> None:
        """Return if files were ever staged here; a directory may be another machine's."""

    def stage(self, source: str, name: str) -> tuple[int, bytes]:
        """Copy a local file; returns size and SHA-256 of what was copied."""

    def publish(self, staged: str, name: str, size: int, sha256: bytes) -> None:
        """Give staged content its final name; `NameOccupied` if the name has other content."""

    def sync(self) -> None:
        """Return when everything that was staged or published survives a power failure."""

    def read(self, name: str) -> Iterator[bytes]:
        """The content of an object; `FileNotFoundError` if there is none."""

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""

    def remove_staging(self, manifest: object) -> None:
        """Delete everything that was staged for a manifest."""

    def names(self) -> Iterator[tuple[str, int]]:
        """Name and size of every object, staging included."""


def staged_name(manifest: object, number: int) -> str:
    return f"{STAGING}/{manifest}/{number:07}"


def log_prefix(manifest: object) -> str:
    """Where the logs of an attempt are; they outlive its staging."""
    return f"{STAGING}/{LOGS}/{manifest}"


def digest(store: Store, name: str, write: Callable[[bytes], object] = len) -> tuple[int, bytes]:
    """Size and SHA-256 of an object, whose blocks `write` gets; `FileNotFoundError`: none."""
    size, hashed = 0, hashlib.sha256()
    for block in store.read(name):
        write(block)
        size += len(block)
        hashed.update(block)
    return size, hashed.digest()


def demand_same(store: Store, name: str, size: int, sha256: bytes) -> None:
    """Return if the name has this content: it was published before."""
    try:
        found = digest(store, name)
    except FileNotFoundError:
        # Erased, or staged in a directory of another machine.
        raise Unavailable(f"{name}: neither its staged copy nor the file is here") from None
    except (NotADirectoryError, Refused) as error:
        raise NameOccupied(f"{name}: {error}") from None
    if found != (size, sha256):
        raise NameOccupied(
            f"{name}: expected {size} bytes with SHA-256 {sha256.hex()}, got {found[0]} bytes with "
            f"{found[1].hex()}"
        )


def open_regular(path: str) -> Any:
    """Open without following a link, and without waiting for the writer of a pipe."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise Refused(f"{path!a}: expected a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb", buffering=0)
