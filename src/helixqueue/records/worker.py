"""A worker as the engine lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from helixqueue.records.batch import BatchRow


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as it last reported itself."""

    tenant: str  # `*`: it serves every tenant
    name: str
    role: str | None  # login role; None over HTTP
    status: str  # alive, silent: it missed two reports, or ended
    free: Mapping[str, object]
    first_seen: datetime
    last_seen: datetime
    ended_at: datetime | None
    leases: int
    # Since midnight UTC, as the duty that keeps the figures last counted; None: not known here.
    completed_today: int | None = None
    failed_today: int | None = None  # attempts

    def serves(self, tenant: str) -> bool:
        return self.tenant in {tenant, "*"}


@dataclass(frozen=True, slots=True)
class WorkerDetail(WorkerRow):
    """A worker with the batches that it holds, newest first; the first 500."""

    batches: tuple[BatchRow, ...] = ()
