"""What people call a lease that a worker names by number: for the log, and for nothing else.

Workers speak of batches by their internal numbers. Leases that this process handed out are
remembered; what another handed out is looked up.
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

REMEMBERED_MAX: Final = 10_000
_Place = tuple[str, int, int, int]  # tenant, batch, epoch, number


class Names:
    def __init__(self) -> None:
        self._known: OrderedDict[_Place, LeaseName] = OrderedDict()

    def learn(self, principal: Principal, leases: Sequence[LeaseRow]) -> None:
        for lease in leases:
            name = LeaseName(lease.batch_id, lease.queue, None, lease.attempt)
            self._keep(_place(principal, lease), name)

    async def of(
        self, principal: Principal, held: Sequence[LeaseRef | Settlement]
    ) -> dict[int, LeaseName | None]:
        """By batch; None for what is not the tenant's."""
        strange = [one for one in held if _place(principal, one) not in self._known]
        found = {}
        if strange:
            found = await principal.ask(service_calls.lease_names(strange))
            for one in strange:
                if one.batch in found:
                    self._keep(_place(principal, one), found[one.batch])
        return {
            one.batch: self._known.get(_place(principal, one)) or found.get(one.batch)
            for one in held
        }

    def _keep(self, place: _Place, name: LeaseName) -> None:
        self._known[place] = name
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)


def _place(principal: Principal, held: LeaseRef | Settlement | LeaseRow) -> _Place:
    return principal.tenant, held.batch, held.token.epoch, held.token.number
