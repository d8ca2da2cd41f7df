"""Counters of one intake process, and a snapshot of its stream; both go into its report.

`helix_stream_pending` is `pending_by_consumer`, `helix_xack_after_commit_failures` is
`xack_failures`, `helix_stream_deliveries_total` is `read`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class IntakeCounters:
    """Totals since the process started."""

    read: int = 0  # entries delivered to this process, first deliveries and others
    claimed: int = 0  # of those, entries that another consumer left pending
    new: int = 0
    duplicate: int = 0
    letters: int = 0  # messages that became dead letters
    vanished: int = 0  # pending entries that were deleted by others
    unnamed: int = 0  # accepted without identity
    acknowledged: int = 0
    xack_failures: int = 0  # XACK failed after the commit; it is repeated
    redis_failures: int = 0
    database_failures: int = 0
    alone: int = 0  # entries processed alone, after their chunk failed
    trimmed: int = 0


@dataclass
class StreamSnapshot:
    """The state of the consumer group."""

    length: int = 0
    pending: int = 0
    lag: int | None = None  # entries not delivered yet; unknown on Redis 6.2
    oldest_seconds: float | None = None  # age of the oldest entry without acknowledgement
    pending_by_consumer: dict[str, int] = field(default_factory=dict)


def report_of(counters: IntakeCounters, snapshot: StreamSnapshot | None) -> dict[str, Any]:
    """Return the figures of a report."""
    return asdict(counters) | ({} if snapshot is None else asdict(snapshot))
