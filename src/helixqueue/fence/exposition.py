"""Counts and gauges of fences in Prometheus' text form, for the service and any application."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from helixqueue.engine.fences import FenceCount, SweepLag
    from helixqueue.fence.counters import Counted

_Sample = tuple["Mapping[str, str]", float]


def exposition(counted: Counted, standing: list[FenceCount], behind: SweepLag) -> str:
    """What this process counted, and how the database's fences stand."""

    def labelled(keys: Iterable[tuple[str, ...]], names: tuple[str, ...]) -> list[dict[str, str]]:
        return [dict(zip(names, key, strict=True)) for key in keys]

    told = ("surface", "fence", "decision")
    timed = ("surface", "fence", "what")
    lines = [
        *_metric("decisions_total", "counter", "Fenced calls by what they were told.",
                 zip(labelled(counted.decisions, told), counted.decisions.values(), strict=True)),
        *_metric("retaken_total", "counter", "Effects begun by a second attempt or a later one.",
                 zip(labelled(counted.retaken, told[:2]), counted.retaken.values(), strict=True)),
        *_metric("seconds_sum", "counter", "Seconds to the seal, and waited for another holder.",
                 zip(labelled(counted.seconds, timed), counted.seconds.values(), strict=True)),
        *_metric("seconds_count", "counter", "How many calls those seconds are of.",
                 zip(labelled(counted.times, timed), counted.times.values(), strict=True)),
        *_metric("hint_total", "counter", "Answers of the cache of sealed answers.",
                 (({"answer": word}, n) for word, n in counted.hint.items())),
        *_metric("open", "gauge", "Fences that have not ended, at most 10,000 of a kind counted.",
                 (({"fence": one.name, "state": one.state}, one.number) for one in standing)),
        *_metric("open_oldest_seconds", "gauge", "For how long the oldest of them stands there.",
                 (({"fence": one.name, "state": one.state}, one.seconds) for one in standing)),
        *_metric("housekeeping_lag_seconds", "gauge", "How far housekeeping is behind.",
                 (({"of": of}, getattr(behind, of)) for of in ("leases", "answers", "tombstones"))),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, words: str, samples: Iterable[_Sample]) -> list[str]:
    full = f"helix_fence_{name}"
    shown = sorted(f"{full}{{{_labels(labels)}}} {value:g}" for labels, value in samples)
    return [f"# HELP {full} {words}", f"# TYPE {full} {kind}", *shown]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
