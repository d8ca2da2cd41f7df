"""Metrics of fences: decisions, durations and gauges in Prometheus' text format.

Keys, tenants and request paths are never labels: labels must stay few and disclose nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helixqueue.engine.fences import FenceCount, SweepLag

_Sample = tuple["Mapping[str, str]", float]


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """The counters at one moment, by surface (function or http), fence name and word."""

    decisions: dict[tuple[str, str, str], int]
    seconds: dict[tuple[str, str, str], float]  # sealed: from the first call to the seal; waited
    times: dict[tuple[str, str, str], int]  # the number of calls behind those seconds
    retaken: dict[tuple[str, str], int]  # effects that a second or later attempt started
    hint: dict[str, int]  # replies of the cache: hit, miss, error, open (circuit), forged


@dataclass(slots=True)
class Counters:
    """The counters of one client since it was made."""

    _decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _microseconds: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _times: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _retaken: Counter[tuple[str, str]] = field(default_factory=Counter)
    _hint: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_decision(self, surface: str, name: str, decision: str) -> None:
        with self._lock:
            self._decisions[surface, name, decision] += 1

    def observe(self, surface: str, name: str, what: str, seconds: float) -> None:
        with self._lock:
            # A Counter keeps whole numbers.
            self._microseconds[surface, name, what] += round(seconds * 1_000_000)
            self._times[surface, name, what] += 1

    def count_retaken(self, surface: str, name: str) -> None:
        """After an expired lease, a release, a probe's NOT_APPLIED or a replayable doubt."""
        with self._lock:
            self._retaken[surface, name] += 1

    def count_hint(self, word: str) -> None:
        with self._lock:
            self._hint[word] += 1

    def snapshot(self) -> CounterSnapshot:
        with self._lock:
            return CounterSnapshot(
                dict(self._decisions),
                {label: n / 1_000_000 for label, n in self._microseconds.items()},
                dict(self._times),
                dict(self._retaken),
                dict(self._hint),
            )


def prometheus_text(counters: CounterSnapshot, open_fences: list[FenceCount], lag: SweepLag) -> str:
    """The counters of this process and the gauges of the database."""
    decision = ("surface", "fence", "decision")
    what = ("surface", "fence", "what")
    lines = [
        *_metric("decisions_total", "counter", "Fenced calls by decision.",
                 _samples(counters.decisions, decision)),
        *_metric("retaken_total", "counter", "Effects started by a second or later attempt.",
                 _samples(counters.retaken, decision[:2])),
        *_metric("seconds_sum", "counter", "Seconds until the seal, and waited for another holder.",
                 _samples(counters.seconds, what)),
        *_metric("seconds_count", "counter", "Number of calls in helix_fence_seconds_sum.",
                 _samples(counters.times, what)),
        *_metric("hint_total", "counter", "Replies of the cache of sealed answers.",
                 (({"answer": word}, n) for word, n in counters.hint.items())),
        *_metric("open", "gauge", "Fences that have not ended, at most 10,000 counted per state.",
                 (({"fence": row.name, "state": row.state}, row.number) for row in open_fences)),
        *_metric("open_oldest_seconds", "gauge", "Seconds since the oldest of them changed state.",
                 (({"fence": row.name, "state": row.state}, row.seconds) for row in open_fences)),
        *_metric("housekeeping_lag_seconds", "gauge", "Seconds by which housekeeping is behind.",
                 (({"of": of}, getattr(lag, of)) for of in ("leases", "answers", "tombstones"))),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _samples(counts: Mapping[Any, float], names: tuple[str, ...]) -> Iterable[_Sample]:
    return ((dict(zip(names, key, strict=True)), value) for key, value in counts.items())


def _metric(name: str, kind: str, help_text: str, samples: Iterable[_Sample]) -> list[str]:
    full = f"helix_fence_{name}"
    lines = sorted(f"{full}{{{_labels(labels)}}} {value:g}" for labels, value in samples)
    return [f"# HELP {full} {help_text}", f"# TYPE {full} {kind}", *lines]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
