"""Counts for metrics: decisions by surface, name and word, and how long things took.

No key, tenant or path of a request is a label: labels must stay few, and say nothing of anybody.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from helixqueue.errors import (
    Conflict,
    HelixError,
    InDoubt,
    InProgress,
    LeaseLost,
    NotPermitted,
    Refused,
)

# The words are those of the problems that HTTP clients see; the same for functions.
_WORDS: Final[tuple[tuple[type[HelixError], str], ...]] = (
    (Conflict, "key-reused"),
    (InProgress, "in-progress"),
    (InDoubt, "in-doubt"),
    (LeaseLost, "fenced-out"),
    (NotPermitted, "scope-unavailable"),
    (Refused, "refused"),
)


def word_of(refused: HelixError) -> str:
    """What an error of ours is counted as."""
    known = (word for kind, word in _WORDS if isinstance(refused, kind))
    return next(known, "storage-unavailable")


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts at one moment. Labels: surface (function or http), the fence's name, a word."""

    decisions: dict[tuple[str, str, str], int]
    seconds: dict[tuple[str, str, str], float]  # sealed: from first seen to seal; waited
    times: dict[tuple[str, str, str], int]  # how many took those seconds
    retaken: dict[tuple[str, str], int]  # begun by a second attempt or a later one
    hint: dict[str, int]  # hit, miss, error, open (circuit), lie


@dataclass(slots=True)
class Counters:
    """One client's counts since it was made; read them with `snapshot`."""

    _decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _microseconds: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _times: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _retaken: Counter[tuple[str, str]] = field(default_factory=Counter)
    _hint: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decided(self, surface: str, name: str, decision: str) -> None:
        with self._lock:
            self._decisions[surface, name, decision] += 1

    def took(self, surface: str, name: str, what: str, seconds: float) -> None:
        with self._lock:
            # A Counter keeps whole numbers.
            self._microseconds[surface, name, what] += round(seconds * 1_000_000)
            self._times[surface, name, what] += 1

    def retook(self, surface: str, name: str) -> None:
        """After a lease that ran out, a release, a probe's no, or a drive of a replayable one."""
        with self._lock:
            self._retaken[surface, name] += 1

    def hinted(self, word: str) -> None:
        with self._lock:
            self._hint[word] += 1

    def snapshot(self) -> Counted:
        with self._lock:
            return Counted(
                dict(self._decisions),
                {label: n / 1_000_000 for label, n in self._microseconds.items()},
                dict(self._times),
                dict(self._retaken),
                dict(self._hint),
            )
