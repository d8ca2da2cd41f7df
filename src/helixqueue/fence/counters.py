"""Counts for metrics: decisions by surface, name and word, and how long things took.

No key, tenant or path of a request is a label: labels must stay few, and say nothing of anybody.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """One client's counts since it was made; read them with `snapshot`."""

    _decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _seconds: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _hint: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def decided(self, surface: str, name: str, decision: str) -> None:
        with self._lock:
            self._decisions[surface, name, decision] += 1

    def took(self, surface: str, name: str, what: str, seconds: float) -> None:
        """From first seen to seal, or the time waited for another holder."""
        with self._lock:
            # A Counter adds whatever number it is given; microseconds keep it whole.
            self._seconds[surface, name, what] += round(seconds * 1_000_000)

    def hinted(self, word: str) -> None:
        """hit, miss, error, open (circuit), lie."""
        with self._lock:
            self._hint[word] += 1

    def snapshot(self) -> dict[str, dict[tuple[str, ...], float]]:
        with self._lock:
            return {
                "decisions": {label: float(n) for label, n in self._decisions.items()},
                "seconds": {label: n / 1_000_000 for label, n in self._seconds.items()},
                "hint": {(word,): float(n) for word, n in self._hint.items()},
            }
