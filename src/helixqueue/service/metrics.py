"""Metrics of this process in the Prometheus text format.

Labels never contain tenants, keys or actual paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from helixqueue.engine.duties import DutyRow
from helixqueue.service.tenant_limits import TenantLimits

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Needs no lock: only the event loop uses it."""

    def __init__(self, streams: TenantLimits, waits: TenantLimits) -> None:
        self._streams = streams
        self._waits = waits
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._worker_writes: Counter[tuple[str, str]] = Counter()
        self._problems: Counter[str] = Counter()
        self._cut: Counter[str] = Counter()
        self.connections = 0
        self.requests_in_progress = 0

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, str(status)] += 1
        self._counts[route] += 1
        # Whole microseconds: a Counter of integers.
        self._seconds[route] += round(seconds * 1_000_000)
        for bound in BUCKETS:
            if seconds <= bound:
                self._buckets[route, bound] += 1

    def count_decision(self, decision: str) -> None:
        """Count a submission: new, duplicate, conflict or refused."""
        self._decisions[decision] += 1

    def count_worker_write(self, operation: str, answer: str) -> None:
        self._worker_writes[operation, answer] += 1

    def count_problem(self, problem: str) -> None:
        self._problems[problem] += 1

    def count_cut_connection(self, reason: str) -> None:
        """Count a closed connection: silent, unread, or closed to make room."""
        self._cut[reason] += 1

    def text(self) -> str:
        lines = [
            *_head("helix_http_requests_total", "counter", "Requests by route and status."),
            *(f'helix_http_requests_total{{method="{m}",route="{r}",status="{s}"}} {n}'
              for (m, r, s), n in sorted(self._requests.items())),
            *_head("helix_http_request_seconds", "histogram", "Time to respond."),
            *self._histogram(),
            *_head("helix_submit_decisions_total", "counter", "Submissions by decision."),
            *(f'helix_submit_decisions_total{{decision="{d}"}} {n}'
              for d, n in sorted(self._decisions.items())),
            *_head("helix_worker_answers_total", "counter", "Worker writes by answer."),
            *(f'helix_worker_answers_total{{operation="{o}",answer="{a}"}} {n}'
              for (o, a), n in sorted(self._worker_writes.items())),
            *_head("helix_http_problems_total", "counter", "Problem responses by kind."),
            *(f'helix_http_problems_total{{problem="{p}"}} {n}'
              for p, n in sorted(self._problems.items())),
            *_head("helix_http_connections", "gauge", "Client connections."),
            f"helix_http_connections {self.connections}",
            *_head("helix_http_connections_let_go_total", "counter", "Connections cut off."),
            *(f'helix_http_connections_let_go_total{{why="{w}"}} {n}'
              for w, n in sorted(self._cut.items())),
            *_head("helix_http_streams", "gauge", "Open change streams."),
            f"helix_http_streams {self._streams.taken}",
            *_head("helix_http_waits", "gauge", "Worker requests that wait for work."),
            f"helix_http_waits {self._waits.taken}",
            *_head("helix_http_requests_under_way", "gauge", "Requests in progress."),
            f"helix_http_requests_under_way {self.requests_in_progress}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name = "helix_http_request_seconds"
        lines = []
        for route, count in sorted(self._counts.items()):
            for bound in BUCKETS:
                number = self._buckets[route, bound]
                lines.append(f'{name}_bucket{{route="{route}",le="{bound:g}"}} {number}')
            lines.append(f'{name}_bucket{{route="{route}",le="+Inf"}} {count}')
            lines.append(f'{name}_sum{{route="{route}"}} {self._seconds[route] / 1_000_000:g}')
            lines.append(f'{name}_count{{route="{route}"}} {count}')
        return lines


def duties_text(rows: Sequence[DutyRow]) -> str:
    """Metrics of the background duties, which are the same in every replica."""
    lines = [
        *_head("helix_duty_last_run_seconds", "gauge", "Unix time of the last run of a duty."),
        *(f'helix_duty_last_run_seconds{{duty="{row.duty}"}} {row.last_at.timestamp():.3f}'
          for row in rows if row.last_at is not None),
        *_head("helix_duty_lag_seconds", "gauge", "Seconds a duty is overdue."),
        *(f'helix_duty_lag_seconds{{duty="{row.duty}"}} {row.lag_seconds:.3f}' for row in rows),
        *_head("helix_duty_run_seconds", "gauge", "Duration of the last run of a duty."),
        *(f'helix_duty_run_seconds{{duty="{row.duty}"}} {row.seconds:.6f}' for row in rows),
        *_head("helix_duty_rows_total", "counter", "Rows processed by a duty."),
        *(f'helix_duty_rows_total{{duty="{row.duty}"}} {row.total}' for row in rows),
        *_head("helix_duty_failures_total", "counter", "Failed runs of a duty."),
        *(f'helix_duty_failures_total{{duty="{row.duty}"}} {row.failures}' for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
