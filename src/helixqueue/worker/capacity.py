"""How many leases a worker asks for: one per free slot, and more ahead while handlers are quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helixqueue.worker.health import Durations
    from helixqueue.worker.in_flight import InFlight
    from helixqueue.worker.options import WorkerOptions

# One call. Larger calls cost less per batch, and hold more work ahead of its slots.
CLAIM_MAX = 400
AHEAD_SECONDS = 0.1  # of work that is claimed before a slot is free for it
AVERAGED_ATTEMPTS = 10


class Capacity:
    def __init__(self, options: WorkerOptions, in_flight: InFlight, handlers: Durations) -> None:
        self._handlers = handlers
        self._slots = options.slots
        self._calls = options.concurrent_calls
        self._prefetch = options.prefetch
        self._one_by_one = options.free is not None  # each slot claims what fits its resources
        self._in_flight = in_flight
        self._recorded = 0
        self.handler_seconds = 1.0  # moving average
        self.call_max = 1 if self._one_by_one else CLAIM_MAX

    def record(self, seconds: float) -> None:
        """Count the duration of one attempt: in the metrics, and into the average."""
        self._handlers.observe(seconds)
        self._recorded += 1
        weight = 1 / min(self._recorded, AVERAGED_ATTEMPTS)
        self.handler_seconds += (seconds - self.handler_seconds) * weight

    def free(self) -> int:
        """How many more leases the worker can use."""
        busy = len(self._in_flight.running) + len(self._in_flight.ready)
        return self._slots + self._ahead() - busy - self._in_flight.stuck_threads

    def call_size(self) -> tuple[int, int]:
        """The fewest leases that are worth a call, and the most that one call asks for.

        Quick work is divided equally among the calls. Slow work is claimed as soon as a slot is
        free for it.
        """
        ahead = self._ahead()
        if ahead < self._slots:
            return 1, min(self._slots, self.call_max)
        most = -(-(self._slots + ahead) // self._calls)
        return most // 2, min(most, self.call_max)

    def _ahead(self) -> int:
        """Quick work is claimed ahead of its slot, slow work never: other workers may be free."""
        if self._prefetch is not None:
            return self._prefetch - 1
        if self._one_by_one:
            return 0
        most = max(0, self._calls * CLAIM_MAX - self._slots)
        return min(most, int(self._slots * AHEAD_SECONDS / max(self.handler_seconds, 1e-4)))
