"""The health of a worker: its counts, and whether it can reach the engine."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from helixqueue.worker.in_flight import InFlight

# A worker with a free slot whose claims fail for this long reports that it is unreachable.
UNREACHABLE_SECONDS = 30.0

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


@dataclass
class WorkSummary:
    """What one run of a worker did."""

    completed: int = 0
    failed: int = 0  # attempts, whether or not they are tried again
    lost: int = 0  # attempts whose lease ended before they did
    released: int = 0


class WorkerHealth:
    def __init__(self, slots: int, in_flight: InFlight) -> None:
        self.slots = slots
        self.counts = in_flight.counts
        self.last_error = ""
        self._in_flight = in_flight
        self.answered_at = time.monotonic()
        self.claims = Durations()  # calls that settle and claim
        self.handlers = Durations()
        self.metrics_port: int | None = None  # where the endpoint listens

    def claim_answered(self, sent_at: float) -> None:
        self.last_error = ""
        self.answered_at = time.monotonic()
        self.claims.observe(self.answered_at - sent_at)

    def call_failed(self, error: Exception) -> None:
        self.last_error = str(error)[:200]

    @property
    def silent_seconds(self) -> float:
        """Seconds since a claim was answered."""
        return time.monotonic() - self.answered_at

    @property
    def is_unreachable(self) -> bool:
        has_free_slot = len(self._in_flight.running) < self.slots
        return has_free_slot and self.silent_seconds > UNREACHABLE_SECONDS

    def as_dict(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "busy": len(self._in_flight.running),
            "held": len(self._in_flight.held),
            "stuck": self._in_flight.stuck_threads,
            "unreachable_seconds": round(self.silent_seconds, 1) if self.is_unreachable else 0,
            "last_error": self.last_error,
            **asdict(self.counts),
        }
