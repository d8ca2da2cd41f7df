"""Where output files go: a local directory, S3 or, for tests, memory.

A final name is only ever created, never replaced: by `link` in a directory, by conditional requests
on S3. What is linked or copied is the copy that this process staged, not the file of the handler,
which may still have it open.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
import uuid
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, Protocol

from helixqueue.errors import HelixError, NotInstalled, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

STAGING = ".helix"
BLOCK_BYTES = 1024 * 1024
COPY_BUFFER_BYTES = 256 * 1024  # stays in the cache of a core between reading, writing and hashing
PART_BYTES = 8 * 1024 * 1024  # of an upload; two are in memory at a time
PARTS_MAX = 9_000  # S3 allows 10,000
# Smaller objects are read and written with one conditional request each; a server-side copy takes
# three. One part of a copy is at most 5 GiB, so larger objects pass through this process.
COPY_BYTES_MIN = 1024 * 1024
COPY_BYTES_MAX = 5 * 1024**3
REQUEST_TIMEOUT = "120s"  # of one part, so that a transfer that stalls ends


class NameOccupied(HelixError):
    """A final name has other content: an operator decides."""


class Store(Protocol):
    """One destination. Methods block: call them in threads."""

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


def staged_name(manifest: object, number: int) -> str:
    return f"{STAGING}/{manifest}/{number:07}"


def digest(store: Store, name: str) -> tuple[int, bytes]:
    """Size and SHA-256 of an object; `FileNotFoundError` if there is none."""
    size, hashed = 0, hashlib.sha256()
    for block in store.read(name):
        size += len(block)
        hashed.update(block)
    return size, hashed.digest()


def open_store(uri: str) -> Store:
    """The store of a destination, with credentials from the environment."""
    scheme, _, place = uri.partition("://")
    if scheme == "file":
        return LocalStore(Path(place))
    if scheme == "s3":
        bucket, _, prefix = place.partition("/")
        return ObjectStore(_s3(bucket, prefix))
    if scheme == "memory":
        return ObjectStore(_memory(uri))
    raise Refused(f"expected a destination with file://, s3:// or memory://, got {uri[:100]!a}")


def probe(store: Store, directory: Path) -> None:
    """Create an object twice: `Refused` unless the second time fails."""
    name = f"probe-{uuid.uuid4()}"
    files = [directory / "first", directory / "second"]
    try:
        for number, file in enumerate(files):
            file.write_text(file.name)
            store.stage(str(file), staged_name(name, number))
        sha256 = [hashlib.sha256(file.read_bytes()).digest() for file in files]
        target = staged_name(name, 9)
        try:
            store.publish(staged_name(name, 0), target, 5, sha256[0])
            store.publish(staged_name(name, 1), target, 6, sha256[1])
        except NameOccupied:
            return
        raise Refused("the destination replaces objects: expected exclusive creation and links")
    except OSError as error:
        raise Refused(f"the destination does not create or link files: {error}") from error
    finally:
        with suppress(HelixError, OSError):
            store.remove_staging(name)


class LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._touched: set[Path] = set()  # directories to sync

    def stage(self, source: str, name: str) -> tuple[int, bytes]:
        target = self._root / name
        self._make_directory(target.parent)
        size, hashed = 0, hashlib.sha256()
        with _open_regular(source) as file, target.open("xb", buffering=0) as copy:
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
            _demand_same(self, name, size, sha256)
        except FileNotFoundError:
            # Published and cleaned before, or erased.
            _demand_same(self, name, size, sha256)
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
        with _open_regular(str(self._root / name)) as file:
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

    def _make_directory(self, directory: Path) -> None:
        if directory in self._touched:
            return
        directory.mkdir(parents=True, exist_ok=True)
        below = len(directory.parts) - len(self._root.parts)
        self._touched.update([directory, *directory.parents[:below]])


def _open_regular(path: str) -> Any:
    """Open without following a link, and without waiting for the writer of a pipe."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise Refused(f"{path!a}: expected a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb", buffering=0)


def _demand_same(store: Store, name: str, size: int, sha256: bytes) -> None:
    try:
        found = digest(store, name)
    except FileNotFoundError:
        raise NameOccupied(f"{name}: neither its staged copy nor the file is there") from None
    except (NotADirectoryError, Refused) as error:
        raise NameOccupied(f"{name}: {error}") from None
    if found != (size, sha256):
        raise NameOccupied(
            f"{name}: expected {size} bytes with SHA-256 {sha256.hex()}, got {found[0]} bytes with "
            f"{found[1].hex()}"
        )


class ObjectStore:
    """An object store of obstore, whose names are literal."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def stage(self, source: str, name: str) -> tuple[int, bytes]:
        hashed = hashlib.sha256()
        size = 0

        def blocks(part: int) -> Iterator[bytes]:
            nonlocal size
            while block := file.read(part):
                size += len(block)
                hashed.update(block)
                yield block

        with _open_regular(source) as file, _errors():
            part = max(PART_BYTES, os.fstat(file.fileno()).st_size // PARTS_MAX)
            self._put(name, blocks(part), part)
        return size, hashed.digest()

    def publish(self, staged: str, name: str, size: int, sha256: bytes) -> None:
        import obstore  # noqa: PLC0415 - of an extra

        try:
            with _errors():
                if COPY_BYTES_MIN <= size <= COPY_BYTES_MAX:
                    obstore.copy(self._store, staged, name, overwrite=False)
                    return
                part = max(PART_BYTES, size // PARTS_MAX)
                self._put(name, self._blocks(staged, part), part, create=True)
        except (FileExistsError, FileNotFoundError):
            _demand_same(self, name, size, sha256)

    def _put(self, name: str, blocks: Iterator[bytes], part: int, *, create: bool = False) -> None:
        import obstore  # noqa: PLC0415

        first = next(blocks, b"")
        mode: Literal["create", "overwrite"] = "create" if create else "overwrite"
        if len(first) < part:
            content = b"".join([first, *blocks])
            obstore.put(self._store, name, content, mode=mode, use_multipart=False)
            return

        obstore.put(
            self._store, name, _read_ahead(chain([first], blocks)), mode=mode,
            use_multipart=True, chunk_size=part, max_concurrency=2,
        )  # fmt: skip

    def _blocks(self, name: str, part: int) -> Iterator[bytes]:
        import obstore  # noqa: PLC0415

        for block in obstore.get(self._store, name).stream(min_chunk_size=part):
            yield bytes(block)

    def sync(self) -> None:
        """An object store acknowledges what is durable."""

    def read(self, name: str) -> Iterator[bytes]:
        with _errors():
            yield from self._blocks(name, BLOCK_BYTES)

    def remove(self, name: str) -> None:
        import obstore  # noqa: PLC0415

        with _errors(), suppress(FileNotFoundError):
            obstore.delete(self._store, name)

    def remove_staging(self, manifest: object) -> None:
        import obstore  # noqa: PLC0415

        with _errors():
            for page in obstore.list(self._store, prefix=f"{STAGING}/{manifest}"):
                obstore.delete(self._store, [item["path"] for item in page])


def _read_ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Read in another thread: obstore cannot read from a store while it takes blocks to write."""
    ready: Queue[bytes | BaseException | None] = Queue(maxsize=1)
    is_over = threading.Event()

    def offer(item: bytes | BaseException | None) -> None:
        while not is_over.is_set():
            with suppress(Full):
                ready.put(item, timeout=0.1)
                return

    def read() -> None:
        try:
            for block in blocks:
                offer(block)
                if is_over.is_set():
                    return
            offer(None)
        except BaseException as error:  # noqa: BLE001 - raised by the writer
            offer(error)

    threading.Thread(target=read, name="helix-output-reader", daemon=True).start()
    try:
        while (block := ready.get()) is not None:
            if isinstance(block, BaseException):
                raise block
            yield block
    finally:
        is_over.set()


class _errors:  # noqa: N801 - a context manager
    """Errors of obstore as ours; what exists or is missing stays an error of Python."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None or not type(error).__module__.startswith("obstore"):
            return
        name = type(error).__name__
        if name in {"AlreadyExistsError", "PreconditionError"}:
            raise FileExistsError(str(error)[:500]) from None
        if name in {"PermissionDeniedError", "UnauthenticatedError"}:
            raise Unavailable(f"the store refused the credentials: {str(error)[:500]}") from error
        raise Unavailable(f"the store failed: {name}: {str(error)[:500]}") from error


@cache
def _s3(bucket: str, prefix: str) -> Any:
    """One client per destination; `multipart` is the only copy that refuses to replace."""
    store = _obstore()
    return store.S3Store(
        bucket,
        prefix=prefix or None,
        copy_if_not_exists="multipart",
        client_options={
            "timeout": REQUEST_TIMEOUT,
            "connect_timeout": "10s",
            "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:"),
        },
    )


@cache
def _memory(uri: str) -> Any:  # noqa: ARG001 - one per destination
    return _obstore().MemoryStore()


def _obstore() -> Any:
    try:
        from obstore import store  # noqa: PLC0415
    except ImportError:
        raise NotInstalled("obstore", "outputs") from None
    return store
