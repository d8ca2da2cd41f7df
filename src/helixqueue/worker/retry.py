"""Repeats: bounded in all, further and further apart, drawn by chance from zero on.

The engine recognises repeats, so a call whose answer was lost is simply made again. What is refused
is never asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from helixqueue.errors import Retryable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.worker")
PATIENCE_S = 900.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0


async def retried(ask: Callable[[], Awaitable[T]], *, seconds: float = PATIENCE_S) -> T:
    deadline = time.monotonic() + seconds
    for tries in count():
        try:
            return await ask()
        except (Retryable, Unavailable) as error:
            pause = random.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**tries))  # noqa: S311
            if time.monotonic() + pause > deadline:
                raise
            if tries == 0:
                LOG.warning("repeating: %s", error)
            await asyncio.sleep(pause)
    raise AssertionError("count() does not end")
