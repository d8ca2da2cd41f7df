"""Metrics of one worker on an HTTP endpoint, for Prometheus.

The endpoint is a thread of the worker's own process, so it also answers while handlers run. Figures
of all workers together come from the database, on /metrics of the service.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from helixqueue.errors import NotInstalled, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from helixqueue.worker.health import WorkerHealth


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
