"""Fetches the inputs of a datum into a directory of its attempt."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from helixqueue.errors import Refused
from helixqueue.outputs.stores import open_store
from helixqueue.outputs.threads import in_threads
from helixqueue.runs.expansion import Input
from helixqueue.runs.listing import list_names, split_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


async def fetch(inputs: Sequence[Input], directory: Path) -> None:
    """Fetch all files; `Refused` names what is not there, `Unavailable` a store that fails.

    A file gets its name when it is complete. Cancelling ends the transfers.
    """
    stopped = threading.Event()
    parts = directory / ".parts"
    parts.mkdir(parents=True)

    def copy(numbered: tuple[int, Input]) -> None:
        number, file = numbered
        root, name = split_uri(file.uri)
        part, target = parts / str(number), directory / file.path
        try:
            with part.open("wb") as copied:
                for block in open_store(root).read(name):
                    if stopped.is_set():
                        return
                    copied.write(block)
        except FileNotFoundError:
            raise Refused(f"input {file.uri} does not exist") from None
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)

    try:
        files = await asyncio.to_thread(lambda: list(_files(inputs)))
        await in_threads(copy, list(enumerate(files)))
    finally:
        stopped.set()
    parts.rmdir()


def _files(inputs: Sequence[Input]) -> Iterator[Input]:
    """The inputs, with the files of each directory in its place."""
    for each in inputs:
        if ".." in each.path.split("/") or each.path.startswith("/"):
            raise Refused(f"input {each.path!a}: expected a path below /pfs")
        if not each.uri.endswith("/"):
            yield each
            continue
        is_empty = True
        for name in list_names(each.uri):
            is_empty = False
            yield Input(each.uri + name, each.path + name)
        if is_empty:
            raise Refused(f"input {each.uri} has no files")
