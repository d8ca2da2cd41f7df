"""GPUs of a host, and what leases hold of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from helixqueue.records.batch import IdentityParts


class FormerAllocation(NamedTuple):
    """What a lease held that has ended, while its process may still be running."""

    id: int
    process: str  # of its worker
    batch_id: str
    device: str | None  # None: cores and memory


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of a host as its workers last described it, and what holds it."""

    host: str
    device: str  # UUID
    index: int
    model: str
    vram_gb: float
    cc: float  # compute capability
    fault: str | None  # why it is not handed out
    seen_at: datetime
    held: bool  # by a lease of any tenant, or by the process of one that has ended
    worker: str | None
    batch_id: UUID | None
    queue: str | None
    identity: IdentityParts
    since: datetime | None
    ended_at: datetime | None  # of the lease; its process may still be running

    @property
    def status(self) -> str:
        if self.fault is not None and not self.held:
            return f"unhealthy: {self.fault}"
        if self.ended_at is not None:
            return "waits for its former process"
        return "held" if self.held else "free"
