"""Metrics of fences: decisions, durations and gauges, for Prometheus.

Keys, tenants and request paths are never labels: labels must stay few and disclose nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from helixqueue.errors import NotInstalled

if TYPE_CHECKING:
    from prometheus_client import Metric

    from helixqueue.engine.fences import FenceCount, SweepLag


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
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.registry import Collector  # noqa: PLC0415
    except ImportError as error:
        raise NotInstalled(error.name, "metrics") from error

    class FenceCollector(Collector):
        def collect(self) -> Iterable[Metric]:
            yield from _counter_families(counters)
            yield from _gauge_families(open_fences, lag)

    return generate_latest(FenceCollector()).decode()


def _family(
    kind: str, name: str, text: str, labels: tuple[str, ...], rows: Iterable[Sequence[Any]]
) -> Metric:
    """A family of metrics; each row has the values of its labels, then the figures."""
    from prometheus_client import core  # noqa: PLC0415 - an extra

    family: Any = getattr(core, f"{kind}MetricFamily")(name, text, labels=labels)
    for values, *figures in rows:
        family.add_metric(values, *figures)
    metric: Metric = family
    return metric


def _counter_families(counters: CounterSnapshot) -> Iterable[Metric]:
    surface, fence = "surface", "fence"
    yield _family(
        "Counter",
        "helix_fence_decisions",
        "Fenced calls by decision.",
        (surface, fence, "decision"),
        sorted(counters.decisions.items()),
    )
    yield _family(
        "Counter",
        "helix_fence_retaken",
        "Effects started by a second or later attempt.",
        (surface, fence),
        sorted(counters.retaken.items()),
    )
    yield _family(
        "Summary",
        "helix_fence_seconds",
        "Seconds until the seal, and waited for another holder.",
        (surface, fence, "what"),
        [(key, number, counters.seconds[key]) for key, number in sorted(counters.times.items())],
    )
    yield _family(
        "Counter",
        "helix_fence_hint",
        "Replies of the cache of sealed answers.",
        ("answer",),
        [((word,), number) for word, number in sorted(counters.hint.items())],
    )


def _gauge_families(open_fences: list[FenceCount], lag: SweepLag) -> Iterable[Metric]:
    labels = ("fence", "state")
    yield _family(
        "Gauge",
        "helix_fence_open",
        "Fences that have not ended, at most 10,000 counted per state.",
        labels,
        [((row.name, row.state), row.number) for row in open_fences],
    )
    yield _family(
        "Gauge",
        "helix_fence_open_oldest_seconds",
        "Seconds since the oldest of them changed state.",
        labels,
        [((row.name, row.state), row.seconds) for row in open_fences],
    )
    yield _family(
        "Gauge",
        "helix_fence_housekeeping_lag_seconds",
        "Seconds by which housekeeping is behind.",
        ("of",),
        [((of,), getattr(lag, of)) for of in ("leases", "answers", "tombstones")],
    )
