"""One hold on one batch, from its claim to its end."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.transport.protocol import LeaseRow, Settlement

# Of a lease: so long before its end a worker that could not renew it stops its own work.
FENCE_FRACTION = 0.1
FENCE_LEAST_S = 0.05


@lru_cache(maxsize=64)  # asked for every batch, and a queue has one length of lease
def margin(lease_seconds: float) -> float:
    """How long before its end a lease is over for whoever works on it."""
    return max(lease_seconds * FENCE_FRACTION, FENCE_LEAST_S)


class Attempt:
    """What a worker knows about a lease of its own. Belongs to the event loop's thread."""

    __slots__ = (
        "_on_lost",
        "doubt",
        "end",
        "fence_at",
        "finished",
        "note",
        "owner",
        "refused",
        "row",
        "settled",
        "since",
        "why",
        "works",
    )

    def __init__(self, row: LeaseRow, asked_at: float) -> None:
        """`asked_at` is when the claim was sent: the lease cannot have begun before."""
        self.row = row
        self.since = asked_at
        self.fence_at = asked_at + row.lease_seconds - margin(row.lease_seconds)
        self.end: Literal["lost", "given back", "timeout"] | None = None
        self.why = ""
        self.owner: str | None = None
        self.works = False  # its handler runs, and can be cancelled
        self.finished = False  # its handler has ended, and its settlement is on its way
        # In a transaction of the handler's, which has committed.
        self.settled: Literal["completed", "failed"] | None = None
        # Said in a transaction of which nobody told us (yet) whether it committed.
        self.doubt: Settlement | None = None
        # Said in a transaction, refused, and undone with it: to be said again, for the record.
        self.refused: Settlement | None = None
        self.note: tuple[float | None, str] | None = None
        self._on_lost: list[Callable[[], object]] = []

    def renewed(self, asked_at: float) -> None:
        lease = self.row.lease_seconds
        self.fence_at = asked_at + lease - margin(lease)

    def is_due(self, now: float) -> bool:
        """Whether it is to be fenced: its lease is about to end, and its work is not."""
        return self.fence_at <= now and not self.finished and not self.settled

    @property
    def is_young(self) -> bool:
        """Whether it cannot have been renewed yet, nor be about to be."""
        return time.monotonic() - self.since < self.row.lease_seconds / 5

    def ends(
        self, end: Literal["lost", "given back", "timeout"], why: str, owner: str | None = None
    ) -> None:
        """Stop it, whatever it does: from now on nothing of it is written."""
        if self.end is None:
            self.end, self.why, self.owner = end, why, owner
            for tell in self._on_lost:
                tell()

    def when_lost(self, tell: Callable[[], object]) -> None:
        self._on_lost.append(tell)
        if self.end is not None:
            tell()
