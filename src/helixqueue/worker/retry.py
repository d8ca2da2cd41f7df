"""Retries of a worker's calls: bounded in total, with exponential backoff and full jitter.

The engine recognizes a repeated call, so a call whose reply was lost is sent again. A refusal is
never retried.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.errors import Retryable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
LOG = logging.getLogger("helixqueue.worker")
TOTAL_SECONDS = 900.0
FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 5.0


async def with_retries(
    function: Callable[..., Awaitable[T]],
    *arguments: Any,
    seconds: float = TOTAL_SECONDS,
    on_error: Callable[[Exception], None] | None = None,
) -> T:
    """Call until it succeeds; `on_error` gets every error that can be retried."""
    deadline = time.monotonic() + seconds
    for retries in count():
        try:
            return await function(*arguments)
        except (Retryable, Unavailable) as error:
            if on_error is not None:
                on_error(error)
            limit = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**retries)
            delay = random.uniform(0, limit)  # noqa: S311 - jitter
            after = getattr(error, "retry_after", None) or 0.0
            # Infinite where a repeat cannot succeed: a worker goes on until the cause is corrected.
            delay += after if math.isfinite(after) else 0.0
            if time.monotonic() + delay > deadline:
                raise
            if retries == 0:
                LOG.warning("retrying: %s", error)
            await asyncio.sleep(delay)
    raise AssertionError("count() does not end")
