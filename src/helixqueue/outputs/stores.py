"""Opens destinations: a local directory, S3 or, for tests, memory."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from helixqueue.errors import HelixError, Refused
from helixqueue.outputs.local_store import LocalStore
from helixqueue.outputs.object_store import ObjectStore, memory_client, s3_client
from helixqueue.outputs.store import NameOccupied, staged_name

if TYPE_CHECKING:
    from helixqueue.outputs.store import Store


def open_store(uri: str) -> Store:
    """The store of a destination, with credentials from the environment."""
    scheme, _, place = uri.partition("://")
    if scheme == "file":
        return LocalStore(Path(place))
    bucket, _, prefix = place.partition("/")
    if scheme == "s3":
        return ObjectStore(s3_client(bucket), prefix)
    if scheme == "memory":
        return ObjectStore(memory_client(bucket), prefix)
    raise Refused(f"expected a destination with file://, s3:// or memory://, got {uri[:100]!a}")


def probe(store: Store) -> None:
    """Publish two contents under one name: `Refused` unless the second is refused.

    A store that ignores the condition, or a file system without links, would lose files of one of
    two attempts without an error.
    """
    trial = f"probe-{uuid.uuid4()}"
    target = staged_name(trial, 9)
    try:
        with tempfile.TemporaryDirectory(prefix="helix-probe-") as directory:
            for number, content in enumerate((b"first", b"second")):
                source = Path(directory, str(number))
                source.write_bytes(content)
                store.stage(str(source), staged_name(trial, number))
        store.publish(staged_name(trial, 0), target, 5, hashlib.sha256(b"first").digest())
        try:
            store.publish(staged_name(trial, 1), target, 6, hashlib.sha256(b"second").digest())
        except NameOccupied:
            return
        raise Refused("expected a destination that refuses to replace a file, got one that does")
    except OSError as error:
        raise Refused(f"expected a destination that creates and links files: {error}") from error
    finally:
        with suppress(HelixError, OSError):
            store.remove_staging(trial)
