"""How a worker is: counts, and whether it is deaf (alive, and unable to get work)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

# A worker that wanted work and could not even ask for so long says so.
DEAF_SECONDS = 30.0


@dataclass
class WorkSummary:
    """What one run of a worker did."""

    completed: int = 0
    failed: int = 0  # attempts, whether or not they are tried again
    lost: int = 0  # attempts that were somebody else's before they ended
    given_back: int = 0


@dataclass
class WorkerHealth:
    slots: int
    counts: WorkSummary = field(default_factory=WorkSummary)
    busy: int = 0  # slots that run a handler
    held: int = 0  # leases, those that wait for a slot included
    stuck: int = 0  # threads that go on though their lease is gone
    heard_at: float = field(default_factory=time.monotonic)
    trouble: str = ""

    def heard(self, trouble: Exception | None = None) -> None:
        """A claim was answered, or could not be made."""
        self.trouble = "" if trouble is None else str(trouble)[:200]
        if trouble is None:
            self.heard_at = time.monotonic()

    @property
    def deaf_seconds(self) -> float:
        return time.monotonic() - self.heard_at

    @property
    def is_deaf(self) -> bool:
        return self.busy < self.slots and self.deaf_seconds > DEAF_SECONDS

    def told(self) -> dict[str, Any]:
        return {
            "slots": self.slots,
            "busy": self.busy,
            "held": self.held,
            "stuck": self.stuck,
            "deaf_seconds": round(self.deaf_seconds, 1) if self.is_deaf else 0,
            "trouble": self.trouble,
            **asdict(self.counts),
        }
