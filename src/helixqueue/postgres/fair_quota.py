"""Shares a fixed number of slots between tenants.

A tenant may hold at most three times as many slots as are free after it takes one. A single tenant
gets three quarters of all slots. A second tenant finds a quarter free, gets three quarters of that
at once, and more as the first returns its slots, until both hold the same number; likewise for a
third.

Reserving half for each would take more from a single tenant, which is the most common deployment,
and two tenants could lock out a third. Revoking slots when another tenant arrives would waste
none, but not everything that is counted here can be interrupted.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

FREE_FACTOR: Final = 3


class FairQuota:
    """Counts the slots of each tenant. The tenant None stands for internal use: it may hold all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken = 0
        self._by_tenant: Counter[str | None] = Counter()

    def held_by(self, tenant: str | None) -> int:
        return self._by_tenant[tenant]

    def has_room(self, tenant: str | None) -> bool:
        """Return whether the tenant may take one more; its first whenever a slot is free."""
        held, free = self.held_by(tenant), self.size - self.taken - 1
        if tenant is None or not held:
            return free >= 0
        return held + 1 <= FREE_FACTOR * free

    def take(self, tenant: str | None) -> None:
        self._by_tenant[tenant] += 1
        self.taken += 1

    def give_back(self, tenant: str | None) -> None:
        self.taken -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]  # keeps the counter small as tenants come and go
