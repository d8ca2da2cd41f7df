"""Stops the use of a cache that fails or is slow, so that it does not slow down every call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

TIMEOUT_SECONDS: Final = 0.05  # the longest wait for an answer
SLOW_SECONDS: Final = 0.02  # an answer that takes longer is a fault: the database is as fast
FAULTS_TO_OPEN: Final = 3  # in a row
OPEN_SECONDS: Final = 5.0


class Breaker:
    """Open after several faults in a row; then one call tries the cache every few seconds."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._faults = 0
        self._open_until = 0.0  # by the monotonic clock

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self._open_until

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Around one call of the cache, which may await; its exception passes through."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:
            self._count(f"{type(error).__name__}: {error}")
            raise
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            self._count(f"an answer took {seconds * 1000:.0f} ms")
        else:
            self._faults = 0

    def _count(self, fault: str) -> None:
        self._faults += 1
        if self._faults >= FAULTS_TO_OPEN:
            self._faults = FAULTS_TO_OPEN - 1  # the next fault opens it again
            self._open_until = time.monotonic() + OPEN_SECONDS
            self._log.warning("hint: the cache is not used for %g s: %s", OPEN_SECONDS, fault)
