"""Metrics of one worker on an HTTP endpoint, for Prometheus.

The endpoint is a thread of the worker's own process, so it also answers while handlers run. Figures
of all workers together come from the database, on /metrics of the service.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from helixqueue.errors import NotInstalled, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from helixqueue.worker.health import WorkerHealth

BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)


class Durations:
    """A histogram that the event loop fills and the endpoint's thread reads."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def running_sums(self) -> tuple[list[tuple[str, float]], float]:
        """Buckets as Prometheus wants them, and the sum of all durations."""
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), list(self._counts), strict=True):
            running += count
            buckets.append((bound, running))
        return buckets, self._sum


@contextmanager
def metrics_endpoint(health: WorkerHealth, host: str, port: int | None) -> Iterator[None]:
    """Serve the metrics of a worker while it runs, unless `port` is None."""
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NotInstalled(error.name, "metrics") from error
    registry = CollectorRegistry()
    registry.register(worker_collector(health))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise Refused(
            f"metrics_port: expected a free port of {host}, got {port}: {error.strerror}"
        ) from error
    health.metrics_port = server.server_port
    try:
        yield
    finally:
        # Neither call may hold up the event loop, which is about to end.
        threading.Thread(target=_close, args=(server, thread), daemon=True).start()


def _close(server: object, thread: threading.Thread) -> None:
    server.shutdown()  # type: ignore[attr-defined]
    server.server_close()  # type: ignore[attr-defined]
    thread.join()


def worker_collector(health: WorkerHealth) -> Collector:
    from prometheus_client.core import (  # noqa: PLC0415 - an extra
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector as BaseCollector  # noqa: PLC0415

    class WorkerCollector(BaseCollector):
        def collect(self) -> Iterable[Metric]:
            status = health.as_dict()
            attempts = CounterMetricFamily(
                "helix_worker_attempts", "Attempts by outcome.", labels=("outcome",)
            )
            for outcome in ("completed", "failed", "lost", "released"):
                attempts.add_metric((outcome,), status[outcome])
            yield attempts
            for name, text, value in (
                ("slots", "Concurrent handlers.", status["slots"]),
                ("busy", "Handlers that run now.", status["busy"]),
                ("leases", "Leases held now.", status["held"]),
                ("stuck_threads", "Handlers that run on after their lease.", status["stuck"]),
                ("unreachable_seconds", "Seconds without an answer to a claim, from 30 s on.",
                 status["unreachable_seconds"]),
            ):  # fmt: skip
                yield GaugeMetricFamily(f"helix_worker_{name}", text, value=value)
            for name, text, durations in (
                ("helix_worker_handler_seconds", "Duration of attempts.", health.handlers),
                ("helix_worker_claim_seconds", "Duration of calls that settle and claim.",
                 health.claims),
            ):  # fmt: skip
                histogram = HistogramMetricFamily(name, text)
                histogram.add_metric((), *durations.running_sums())
                yield histogram

    return WorkerCollector()
