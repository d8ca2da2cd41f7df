"""Threads for stores: one that stalls must not hold the threads of anything else."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
PROCESS_THREADS = 16
THREADS = 4  # of one manifest
END_SECONDS = 5.0  # for the copies in progress when the attempt is cancelled


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(PROCESS_THREADS, thread_name_prefix="helix-outputs")


os.register_at_fork(after_in_child=_pool.cache_clear)


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool(), call)


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
    running = asyncio.gather(*(in_thread(work) for _ in range(count)), return_exceptions=True)
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
