"""GPUs of a host, and what leases hold of them."""

from __future__ import annotations

from typing import NamedTuple


class FormerAllocation(NamedTuple):
    """What a lease held that has ended, while its process may still be running."""

    id: int
    process: str  # of its worker
    batch_id: str
    device: str | None  # None: cores and memory
