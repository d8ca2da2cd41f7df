"""Counters of one intake process, and what a look at Redis finds about a consumer group.

`helix_stream_pending` is `pending_by_consumer`; the other gauges of streams have these names too.
The counters of /metrics are not these: they are counted in the transactions that decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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

    length: int
    pending: int
    lag: int | None  # entries not delivered yet; unknown on Redis 6.2
    oldest_seconds: float | None  # age of the oldest entry without acknowledgement
    readers: int  # consumers that have read lately
    pending_by_consumer: dict[str, int] = field(default_factory=dict)
