"""How many of so many places each tenant has, and whether it may have another.

A tenant may have three times as many places as it leaves free. So one that is alone has three
quarters of them. The next finds a quarter, and may have three quarters of that at once, and more as
what the first one has comes to its end, until both have as many; a third likewise.

Half for each would take more from a tenant that is alone, as it is in most deployments, and two
tenants could shut a third out. To end what one has when another comes would set nothing aside, but
not everything that is counted here can be ended.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

TIMES_THE_FREE: Final = 3


class FairQuota:
    """Of `most` places. None is nobody's tenant: it may have all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0
        self._by_tenant: Counter[str | None] = Counter()

    def of(self, tenant: str | None) -> int:
        return self._by_tenant[tenant]

    def has_room(self, tenant: str | None) -> bool:
        """For one more of this tenant; for its first, whenever one is free."""
        own, left = self.of(tenant), self.most - self.taken - 1
        if tenant is None or not own:
            return left >= 0
        return own + 1 <= TIMES_THE_FREE * left

    def take(self, tenant: str | None) -> None:
        self._by_tenant[tenant] += 1
        self.taken += 1

    def give_back(self, tenant: str | None) -> None:
        self.taken -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]  # tenants come and go
