"""Claim hints of the workers that claim over HTTP (records/claim_hints.py).

A hint is a position in the claim order, and how far that has advanced depends on the work of all
tenants. So the service keeps hints for its workers. A worker whose next claim goes to another
replica claims without them, which costs time while an old snapshot is held, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from helixqueue.records.claim_hints import Hints

WORKERS_MAX: Final = 1_000  # per tenant: one tenant cannot displace the hints of another


class ClaimHints:
    def __init__(self) -> None:
        self._tenants: dict[str, OrderedDict[str, Hints]] = {}

    def of_worker(self, tenant: str, worker: str) -> Hints:
        workers = self._tenants.setdefault(tenant, OrderedDict())
        hints = workers.setdefault(worker, Hints())
        workers.move_to_end(worker)
        while len(workers) > WORKERS_MAX:
            workers.popitem(last=False)
        return hints
