"""Copies the files of an attempt to the staging prefix of its manifest."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

from helixqueue.failpoints import failpoint
from helixqueue.outputs.store import staged_name
from helixqueue.records.output import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from helixqueue.outputs.scratch import ScratchFile
    from helixqueue.outputs.store import Store

T = TypeVar("T")
R = TypeVar("R")
THREADS = 4
END_SECONDS = 5.0  # for the copies in progress when the attempt is cancelled


async def stage(store: Store, manifest: UUID, files: Sequence[ScratchFile]) -> list[StagedFile]:
    """Copy and hash; the place of a file in the list is the name of its copy."""

    def copy(numbered: tuple[int, ScratchFile]) -> StagedFile:
        number, file = numbered
        size, sha256 = store.stage(file.source, staged_name(manifest, number))
        failpoint("outputs.stage")
        return StagedFile(file.path, size, sha256)

    staged = await in_threads(copy, list(enumerate(files)))
    await asyncio.to_thread(store.sync)
    return staged


async def in_threads(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call the function for each item, in a few threads; the first error ends all."""
    results: dict[int, R] = {}
    pending = iter(enumerate(items))
    lock = threading.Lock()
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with lock:
                place, item = next(pending, (None, None))
            if place is None:
                return
            try:
                results[place] = function(item)  # type: ignore[arg-type]
            except BaseException:
                stop.set()
                raise

    count = min(THREADS, len(items))
    running = asyncio.gather(
        *(asyncio.to_thread(work) for _ in range(count)), return_exceptions=True
    )
    try:
        ended = await asyncio.shield(running)
    except asyncio.CancelledError:
        # A copy in progress would else arrive after the removal of what was staged.
        stop.set()
        await asyncio.wait([running], timeout=END_SECONDS)
        raise
    for error in ended:
        if error is not None:
            raise error
    return [results[place] for place in range(len(items))]
