"""Counts of this process, in Prometheus' text form. No tenant, key or real path is a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from helixqueue.engine.duties import DutyRow
from helixqueue.service.tenant_limits import TenantLimits

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Event loops have one thread: nothing here needs a lock."""

    def __init__(self, streams: TenantLimits, waits: TenantLimits) -> None:
        self._streams = streams
        self._waits = waits
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._times: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._answers: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[str] = Counter()
        self._let_go: Counter[str] = Counter()
        self.connections = 0
        self.under_way = 0

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests[method, route, str(status)] += 1
        self._times[route] += 1
        # A Counter keeps whole numbers; microseconds lose nothing that anybody sees.
        self._seconds[route] += round(seconds * 1_000_000)
        for bound in BUCKETS:
            if seconds <= bound:
                self._buckets[route, bound] += 1

    def decided(self, decision: str) -> None:
        """new, duplicate, conflict or refused: what became of a submission."""
        self._decisions[decision] += 1

    def worker_told(self, operation: str, answer: str) -> None:
        self._answers[operation, answer] += 1

    def turned_away(self, problem: str) -> None:
        self._refusals[problem] += 1

    def let_go(self, why: str) -> None:
        """A connection: silent, unread, or to make room for another."""
        self._let_go[why] += 1

    def text(self) -> str:
        lines = [
            *_head("helix_http_requests_total", "counter", "Requests by route and status."),
            *(f'helix_http_requests_total{{method="{m}",route="{r}",status="{s}"}} {n}'
              for (m, r, s), n in sorted(self._requests.items())),
            *_head("helix_http_request_seconds", "histogram", "Time to answer."),
            *self._histogram(),
            *_head("helix_submit_decisions_total", "counter", "Submissions by decision."),
            *(f'helix_submit_decisions_total{{decision="{d}"}} {n}'
              for d, n in sorted(self._decisions.items())),
            *_head("helix_worker_answers_total", "counter", "Writes of workers by answer."),
            *(f'helix_worker_answers_total{{operation="{o}",answer="{a}"}} {n}'
              for (o, a), n in sorted(self._answers.items())),
            *_head("helix_http_problems_total", "counter", "Requests turned away, by problem."),
            *(f'helix_http_problems_total{{problem="{p}"}} {n}'
              for p, n in sorted(self._refusals.items())),
            *_head("helix_http_connections", "gauge", "Connections of clients."),
            f"helix_http_connections {self.connections}",
            *_head("helix_http_connections_let_go_total", "counter", "Connections cut off."),
            *(f'helix_http_connections_let_go_total{{why="{w}"}} {n}'
              for w, n in sorted(self._let_go.items())),
            *_head("helix_http_streams", "gauge", "Streams of changes that are open."),
            f"helix_http_streams {self._streams.taken}",
            *_head("helix_http_waits", "gauge", "Requests of workers that are held."),
            f"helix_http_waits {self._waits.taken}",
            *_head("helix_http_requests_under_way", "gauge", "Requests being answered."),
            f"helix_http_requests_under_way {self.under_way}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name = "helix_http_request_seconds"
        lines = []
        for route, times in sorted(self._times.items()):
            for bound in BUCKETS:
                number = self._buckets[route, bound]
                lines.append(f'{name}_bucket{{route="{route}",le="{bound:g}"}} {number}')
            lines.append(f'{name}_bucket{{route="{route}",le="+Inf"}} {times}')
            lines.append(f'{name}_sum{{route="{route}"}} {self._seconds[route] / 1_000_000:g}')
            lines.append(f'{name}_count{{route="{route}"}} {times}')
        return lines


def duties_text(rows: Sequence[DutyRow]) -> str:
    """Of the background duties; the same from every replica, because the database has them."""
    lines = [
        *_head("helix_duty_last_run_seconds", "gauge", "When a duty was last done, as Unix time."),
        *(f'helix_duty_last_run_seconds{{duty="{row.duty}"}} {row.last_at.timestamp():.3f}'
          for row in rows if row.last_at is not None),
        *_head("helix_duty_lag_seconds", "gauge", "How long a duty is overdue."),
        *(f'helix_duty_lag_seconds{{duty="{row.duty}"}} {row.lag_seconds:.3f}' for row in rows),
        *_head("helix_duty_run_seconds", "gauge", "How long its last run took."),
        *(f'helix_duty_run_seconds{{duty="{row.duty}"}} {row.seconds:.6f}' for row in rows),
        *_head("helix_duty_rows_total", "counter", "Rows that a duty was about."),
        *(f'helix_duty_rows_total{{duty="{row.duty}"}} {row.total}' for row in rows),
        *_head("helix_duty_failures_total", "counter", "Runs that failed."),
        *(f'helix_duty_failures_total{{duty="{row.duty}"}} {row.failures}' for row in rows),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
