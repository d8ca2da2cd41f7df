"""A bucket as a destination, by obstore, whose names are literal."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from datetime import timedelta
from functools import cache
from itertools import chain
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from helixqueue.errors import NotInstalled
from helixqueue.outputs.store import STAGING, StoreUnavailable, demand_same, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

PART_BYTES = 8 * 1024 * 1024  # of an upload; two are in memory at a time
PARTS_MAX = 9_000  # S3 allows 10,000
# Smaller objects are read and written with one conditional request each; a server-side copy takes
# three. One part of a copy is at most 5 GiB, so larger objects pass through this process.
COPY_BYTES_MIN = 1024 * 1024
COPY_BYTES_MAX = 5 * 1024**3
# Of one request. Requests carry one part, so that a transfer that stalls ends and a slow one does
# not; only the server-side copy of a large object takes longer without a sign of life.
REQUEST_TIMEOUT = "120s"
COPY_TIMEOUT = "900s"
RETRIES = 10  # of a request that failed, with pauses that grow to 15 s


class Client(NamedTuple):
    """The connections to one bucket."""

    store: Any
    copier: Any  # the same with the time limit of a server-side copy


class ObjectStore:
    def __init__(self, client: Client, prefix: str = "") -> None:
        self._store, self._copier = client
        self._prefix = f"{prefix}/" if prefix else ""

    def require(self) -> None:
        """A bucket is the same one from everywhere."""

    def stage(self, source: str, name: str) -> tuple[int, bytes]:
        hashed = hashlib.sha256()
        size = 0

        def blocks(part: int) -> Iterator[bytes]:
            nonlocal size
            while block := file.read(part):
                size += len(block)
                hashed.update(block)
                yield block

        with open_regular(source) as file, _errors():
            part = _part_bytes(os.fstat(file.fileno()).st_size)
            self._put(name, blocks(part), part, mode="overwrite")
        return size, hashed.digest()

    def publish(self, staged: str, name: str, size: int, sha256: bytes) -> None:
        import obstore  # noqa: PLC0415 - of an extra

        try:
            with _errors():
                if COPY_BYTES_MIN <= size <= COPY_BYTES_MAX:
                    source, target = self._prefix + staged, self._prefix + name
                    obstore.copy(self._copier, source, target, overwrite=False)
                    return
                part = _part_bytes(size)
                self._put(name, self._blocks(staged, part, size), part, mode="create")
        except (FileExistsError, FileNotFoundError):
            demand_same(self, name, size, sha256)

    def _put(
        self, name: str, blocks: Iterator[bytes], part: int, *, mode: Literal["create", "overwrite"]
    ) -> None:
        import obstore  # noqa: PLC0415

        first = next(blocks, b"")
        if len(first) < part:
            content = b"".join([first, *blocks])
            obstore.put(self._store, self._prefix + name, content, mode=mode, use_multipart=False)
            return

        obstore.put(
            self._store, self._prefix + name, _read_ahead(chain([first], blocks)), mode=mode,
            use_multipart=True, chunk_size=part, max_concurrency=2,
        )  # fmt: skip

    def _blocks(self, name: str, part: int, size: int) -> Iterator[bytes]:
        """A request for each part: one for all of them would have one time limit."""
        import obstore  # noqa: PLC0415

        path = self._prefix + name
        if size <= part:
            yield bytes(obstore.get(self._store, path).bytes())
            return
        for start in range(0, size, part):
            yield bytes(
                obstore.get_range(self._store, path, start=start, end=min(start + part, size))
            )

    def sync(self) -> None:
        """An object store acknowledges what is durable."""

    def read(self, name: str) -> Iterator[bytes]:
        import obstore  # noqa: PLC0415

        with _errors():
            size = obstore.head(self._store, self._prefix + name)["size"]
            yield from self._blocks(name, PART_BYTES, size)

    def remove(self, name: str) -> None:
        import obstore  # noqa: PLC0415

        with _errors(), suppress(FileNotFoundError):
            obstore.delete(self._store, self._prefix + name)

    def remove_staging(self, manifest: object) -> None:
        import obstore  # noqa: PLC0415

        with _errors():
            for page in self._pages(f"{STAGING}/{manifest}"):
                obstore.delete(self._store, [item["path"] for item in page])

    def names(self) -> Iterator[tuple[str, int]]:
        with _errors():
            for page in self._pages(""):
                for item in page:
                    yield item["path"].removeprefix(self._prefix), item["size"]

    def _pages(self, below: str) -> Any:
        import obstore  # noqa: PLC0415

        return obstore.list(self._store, prefix=self._prefix + below)


def _part_bytes(size: int) -> int:
    return max(PART_BYTES, size // PARTS_MAX)


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
            raise StoreUnavailable(
                f"the store refused the credentials: {str(error)[:500]}"
            ) from error
        raise StoreUnavailable(f"the store failed: {name}: {str(error)[:500]}") from error


@cache
def s3_client(bucket: str) -> Client:
    """One per bucket; `multipart` is the only copy that refuses to replace."""
    store = _obstore()

    def connect(timeout: str) -> Any:
        return store.S3Store(
            bucket,
            copy_if_not_exists="multipart",
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(minutes=3)},
            client_options={
                "timeout": timeout,
                "connect_timeout": "10s",
                "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:"),
            },
        )

    return Client(connect(REQUEST_TIMEOUT), connect(COPY_TIMEOUT))


@cache
def memory_client(bucket: str) -> Client:  # noqa: ARG001 - one per bucket
    store = _obstore().MemoryStore()
    return Client(store, store)


def _obstore() -> Any:
    try:
        from obstore import store  # noqa: PLC0415
    except ImportError:
        raise NotInstalled("obstore", "outputs") from None
    return store
