"""Places of which a process has so many, and whose they are.

A tenant may have three times as many places as it leaves free. So one that is alone has three
quarters of them. The next finds a quarter, and may have three quarters of that at once, and more as
what the first one has comes to its end, until both have as many; a third likewise.

Half for each would take more from a tenant that is alone, as it is in most deployments, and two
tenants could shut a third out. To end what one has when another comes would set nothing aside, but
not everything that is counted here can be ended.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES_THE_FREE: Final = 3


class Places:
    """`what` they are, in plural; when there is none, the problem has this `kind`."""

    def __init__(self, most: int, what: str, *, kind: str, retry_after: float) -> None:
        self._most = most
        self._what = what
        self._kind = kind
        self._retry_after = retry_after
        self._by_tenant: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        self.take(tenant)
        try:
            yield
        finally:
            self.give_back(tenant)

    def take(self, tenant: str) -> None:
        own, left = self._by_tenant[tenant], self._most - self.taken - 1
        if left < 0 or (own and own + 1 > TIMES_THE_FREE * left):
            raise self._none(own)
        self._by_tenant[tenant] += 1
        self.taken += 1

    def give_back(self, tenant: str) -> None:
        self.taken -= 1
        self._by_tenant[tenant] -= 1
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]  # tenants come and go

    def _none(self, own: int) -> Problem:
        return Problem(
            self._kind,
            f"the tenant has {own} of the {self._most} {self._what} that this process has, and one "
            f"tenant has at most {TIMES_THE_FREE} times as many as it leaves free",
            expected=f"at most {own} of one tenant at this moment",
            got=str(own + 1),
            retry_after=self._retry_after,
        )
