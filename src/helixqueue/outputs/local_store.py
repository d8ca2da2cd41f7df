"""A directory as a destination: on one machine, or mounted under one path on all that use it."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from helixqueue.outputs.store import (
    STAGING,
    NameOccupied,
    StoreUnavailable,
    demand_same,
    open_regular,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK_BYTES = 1024 * 1024
COPY_BUFFER_BYTES = 256 * 1024  # stays in the cache of a core between reading, writing and hashing


class LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._touched: set[Path] = set()  # directories to sync

    def require(self) -> None:
        # Staging of a manifest is removed with its directory; the one above it stays.
        if not (self._root / STAGING).is_dir():
            raise StoreUnavailable(
                f"{self._root} has no directory {STAGING}: expected a directory in which workers "
                "stage, is it mounted here?"
            )

    def stage(self, source: str, name: str) -> tuple[int, bytes]:
        target = self._root / name
        self._make_directory(target.parent)
        size, hashed = 0, hashlib.sha256()
        with open_regular(source) as file, target.open("xb", buffering=0) as copy:
            buffer = memoryview(bytearray(COPY_BUFFER_BYTES))
            while count := file.readinto(buffer):
                block = buffer[:count]
                size += copy.write(block)
                hashed.update(block)
            os.fsync(copy.fileno())
        return size, hashed.digest()

    def publish(self, staged: str, name: str, size: int, sha256: bytes) -> None:
        source, target = self._root / staged, self._root / name
        try:
            self._make_directory(target.parent)
            if source.stat().st_size != size:
                raise NameOccupied(f"{staged}: the staged copy has not {size} bytes")
            os.link(source, target)
        except FileExistsError:
            if target.exists() and source.exists() and target.samefile(source):
                return
            demand_same(self, name, size, sha256)
        except FileNotFoundError:
            # Published and cleaned before, erased, or staged on another machine.
            demand_same(self, name, size, sha256)
        except NotADirectoryError:
            raise NameOccupied(f"{name}: one of its directories is a file") from None

    def sync(self) -> None:
        touched, self._touched = self._touched, set()
        for directory in touched:
            with suppress(FileNotFoundError):
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def read(self, name: str) -> Iterator[bytes]:
        with open_regular(str(self._root / name)) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def remove(self, name: str) -> None:
        path = self._root / name
        with suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        for parent in path.parents:
            if parent == self._root:
                break
            try:
                parent.rmdir()
            except OSError:
                break

    def remove_staging(self, manifest: object) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / STAGING / str(manifest))
        self._touched.clear()

    def names(self) -> Iterator[tuple[str, int]]:
        for folder, _, files in os.walk(self._root):
            for file in files:
                path = f"{folder}/{file}"
                with suppress(FileNotFoundError):
                    yield os.path.relpath(path, self._root), os.lstat(path).st_size

    def _make_directory(self, directory: Path) -> None:
        if directory in self._touched:
            return
        # What was made is durable when its parent is.
        made = len(directory.parts) - len(self._root.parts)
        while not directory.parents[made - 1].exists():
            made += 1
        directory.mkdir(parents=True, exist_ok=True)
        self._touched.update([directory, *directory.parents[:made]])
