"""Public ids of leases, for the request log only.

Workers identify batches by internal numbers. The ids of leases that this process handed out are
cached; others are looked up.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from helixqueue.engine import service_calls
from helixqueue.engine.service_calls import LeaseName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helixqueue.records.lease import LeaseRef, LeaseRow, Settlement
    from helixqueue.service.principal import Principal

CACHED_MAX: Final = 10_000
_Key = tuple[str, int, int, int]  # tenant, batch, epoch, number


class LeaseNames:
    def __init__(self) -> None:
        self._cache: OrderedDict[_Key, LeaseName] = OrderedDict()

    def add(self, principal: Principal, leases: Sequence[LeaseRow]) -> None:
        for lease in leases:
            name = LeaseName(lease.batch_id, lease.queue, None, lease.attempt)
            self._store(_key(principal, lease), name)

    async def get(
        self, principal: Principal, leases: Sequence[LeaseRef | Settlement]
    ) -> dict[int, LeaseName | None]:
        """Names by batch number; None for leases of other tenants."""
        unknown = [lease for lease in leases if _key(principal, lease) not in self._cache]
        names = {}
        if unknown:
            names = await principal.execute(service_calls.lease_names(unknown))
            for lease in unknown:
                if lease.batch in names:
                    self._store(_key(principal, lease), names[lease.batch])
        return {
            lease.batch: self._cache.get(_key(principal, lease)) or names.get(lease.batch)
            for lease in leases
        }

    def _store(self, key: _Key, name: LeaseName) -> None:
        self._cache[key] = name
        while len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)


def _key(principal: Principal, lease: LeaseRef | Settlement | LeaseRow) -> _Key:
    return principal.tenant, lease.batch, lease.token.epoch, lease.token.number
