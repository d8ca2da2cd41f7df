"""Metrics of this process, and those that the database keeps, for Prometheus.

What the database counts, such as submissions and attempts, is not counted here again.

Labels are bounded and never contain keys, batch ids or actual paths. Tenants are labels only in the
response to a token with the scope `metrics`, which an operator grants.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from helixqueue.engine.metrics import SERIES_MAX
from helixqueue.records.duty import DutyRow
from helixqueue.records.metric import (
    FAMILIES,
    LABEL_SEPARATOR,
    LATENCY_BUCKETS,
    MetricFamily,
    MetricRow,
)
from helixqueue.service.tenant_limits import TenantLimits

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
EVERY_TENANT: Final = "*"  # the tenant of series that belong to none

disable_created_metrics()  # type: ignore[no-untyped-call]  # else every counter has a second series with its creation time


class Metrics(Collector):
    """Counters and gauges of one service.

    Counters of several processes of one host are summed if PROMETHEUS_MULTIPROC_DIR is set.
    """

    def __init__(self, streams: TenantLimits, waits: TenantLimits) -> None:
        self._streams = streams
        self._waits = waits
        self.connections = 0
        self.requests_in_progress = 0
        registry = self._registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "helix_http_requests_total", "Requests by route and status.",
            ("method", "route", "status"), registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "helix_http_request_seconds", "Time to respond.", ("route",), buckets=BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._problems = Counter(
            "helix_http_problems_total", "Problem responses by kind.", ("problem",),
            registry=registry,
        )  # fmt: skip
        self._cut = Counter(
            "helix_http_connections_let_go_total", "Connections cut off.", ("why",),
            registry=registry,
        )  # fmt: skip

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_problem(self, problem: str) -> None:
        self._problems.labels(problem).inc()

    def count_cut_connection(self, reason: str) -> None:
        """Count a closed connection: silent, unread, or closed to make room."""
        self._cut.labels(reason).inc()

    def collect(self) -> Iterable[Metric]:
        """Gauges that this process reads from its own state."""
        for name, text, value in (
            ("helix_http_connections", "Client connections.", self.connections),
            ("helix_http_streams", "Open change streams.", self._streams.taken),
            ("helix_http_waits", "Worker requests that wait for work.", self._waits.taken),
            ("helix_http_requests_under_way", "Requests in progress.", self.requests_in_progress),
        ):
            yield GaugeMetricFamily(name, text, value=value)

    def text(self) -> str:
        registry = self._registry
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return _text(registry) + _text(self)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text(collector: Collector) -> str:
    return generate_latest(collector).decode()


def duties_text(rows: Sequence[DutyRow]) -> str:
    """Metrics of the background duties, which are the same in every replica."""
    last = GaugeMetricFamily(
        "helix_duty_last_run_seconds", "Unix time of the last run of a duty.", labels=["duty"]
    )
    lag = GaugeMetricFamily("helix_duty_lag_seconds", "Seconds a duty is overdue.", labels=["duty"])
    seconds = GaugeMetricFamily(
        "helix_duty_run_seconds", "Duration of the last run of a duty.", labels=["duty"]
    )
    total = CounterMetricFamily(
        "helix_duty_rows_total", "Rows processed by a duty.", labels=["duty"]
    )
    failures = CounterMetricFamily(
        "helix_duty_failures_total", "Failed runs of a duty.", labels=["duty"]
    )
    for row in rows:
        if row.last_at is not None:
            last.add_metric([row.duty], row.last_at.timestamp())
        lag.add_metric([row.duty], row.lag_seconds)
        seconds.add_metric([row.duty], row.seconds)
        total.add_metric([row.duty], row.total)
        failures.add_metric([row.duty], row.failures)
    return _text(_Families([last, lag, seconds, total, failures]))


def stored_text(rows: Sequence[MetricRow], *, tenants: bool) -> str:
    """The series that the database keeps; every family is named, also one without series.

    Written without prometheus-client, whose objects take 12 µs per series: a response has up to
    50,000 series.
    """
    by_name: dict[str, list[MetricRow]] = {family.name: [] for family in FAMILIES}
    for row in rows:
        if row.name in by_name:
            by_name[row.name].append(row)
    truncated = GaugeMetricFamily(
        "helix_series_truncated", "Whether series were left out.", value=len(rows) > SERIES_MAX
    )
    parts = [_text(_Families([truncated]))]
    for family in FAMILIES:
        parts.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
        write = _histogram_lines if family.kind == "histogram" else _lines
        parts.extend(write(family, by_name[family.name], tenants=tenants))
    return "".join(parts)


def _lines(family: MetricFamily, rows: list[MetricRow], *, tenants: bool) -> Iterable[str]:
    name, queue = family.name, family.queue
    names = family.label.split(",") if family.label else []
    for row in rows:
        labels = _owner_labels(row, queue, tenants=tenants)
        for label, value in zip(names, row.label.split(LABEL_SEPARATOR), strict=False):
            labels += f'{label}="{_escaped(value)}",'
        yield f"{name}{{{labels[:-1]}}} {row.value}\n" if labels else f"{name} {row.value}\n"


def _owner_labels(row: MetricRow, queue: str, *, tenants: bool) -> str:
    """The labels for tenant and queue, each with a comma behind it."""
    labels = ""
    if tenants:
        labels = f'tenant="{"" if row.tenant == EVERY_TENANT else _escaped(row.tenant)}",'
    return f'{labels}{queue}="{_escaped(row.queue)}",' if queue else labels


@lru_cache(maxsize=4096)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _histogram_lines(
    family: MetricFamily, rows: list[MetricRow], *, tenants: bool
) -> Iterable[str]:
    """The database keeps one row per bucket, Prometheus wants their running sum."""
    name = family.name
    rows = sorted(rows, key=lambda row: (row.tenant, row.queue))
    for _, group in groupby(rows, lambda row: (row.tenant, row.queue)):
        series = list(group)
        labels = _owner_labels(series[0], family.queue, tenants=tenants)
        values = {row.label: row.value for row in series}
        running = 0.0
        for bound in LATENCY_BUCKETS:
            running += values.get(bound, 0.0)
            yield f'{name}_bucket{{{labels}le="{bound}"}} {running}\n'
        yield f"{name}_count{{{labels[:-1]}}} {running}\n"
        yield f"{name}_sum{{{labels[:-1]}}} {values.get('sum', 0.0)}\n"
