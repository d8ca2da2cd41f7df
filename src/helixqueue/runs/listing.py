"""Lists the files below a stored URI: in a directory, on S3 or in memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from helixqueue.errors import Refused, Unavailable
from helixqueue.outputs.object_store import memory_client, s3_client
from helixqueue.outputs.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 1_000


def split_uri(uri: str) -> tuple[str, str]:
    """The whole store, such as `s3://bucket`, and the name in it."""
    scheme, _, rest = uri.partition("://")
    bucket, _, name = rest.partition("/")
    return (f"{scheme}://{bucket}", name) if scheme != "file" else ("file:///", name)


def list_names(uri: str) -> Iterator[str]:
    """The names of all files below a URI, relative to it, in any order."""
    root, name = split_uri(uri.rstrip("/"))
    return _walk(f"/{name}") if root == "file:///" else _list(root, name)


def _walk(root: str) -> Iterator[str]:
    pending = [root]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        yield os.path.relpath(entry.path, root)
                    else:
                        raise Refused(f"{entry.path!a}: expected a regular file or a directory")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Refused(f"the inputs in {root!a} cannot be listed: {error}") from error


def _list(root: str, prefix: str) -> Iterator[str]:
    import obstore  # noqa: PLC0415 - of an extra
    from obstore.exceptions import BaseError  # noqa: PLC0415

    store = _client(root)
    try:
        for page in obstore.list(store, prefix=prefix or None, chunk_size=PAGE):
            for item in page:
                name = item["path"]
                # The marker of a directory is listed without its slash.
                if name != prefix and (item["size"] or _exists(store, name)):
                    yield name[len(prefix) + 1 :] if prefix else name
    except BaseError as error:
        text = str(error).partition("\n")[0][:500]
        if type(error).__name__ == "InvalidPathError":
            raise Refused(f"{root}: a name there cannot be used: {text}") from error
        raise Unavailable(f"the inputs in {root} cannot be listed: {text}") from error


def _client(root: str) -> Any:
    scheme, _, bucket = root.partition("://")
    open_store(root)  # refuses other schemes
    return (s3_client if scheme == "s3" else memory_client)(bucket).store


def _exists(store: Any, name: str) -> bool:
    import obstore  # noqa: PLC0415

    try:
        obstore.head(store, name)
    except FileNotFoundError:
        return False
    return True
