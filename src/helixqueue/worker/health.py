"""The health of a worker: its counts, and whether it can reach the engine."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from helixqueue.worker.metrics import Durations

if TYPE_CHECKING:
    from helixqueue.worker.in_flight import InFlight

# A worker with a free slot whose claims fail for this long reports that it is unreachable.
UNREACHABLE_SECONDS = 30.0


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
