"""The last check of each tenant that ran on this process: when, and what it found."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from helixqueue.service.routes.checks import SKIPPED

if TYPE_CHECKING:
    from helixqueue.operate.check import CheckResult
    from helixqueue.service.principal import Principal
    from helixqueue.service.service import Service

TENANTS_MAX: Final = 1_000


class LastCheck(NamedTuple):
    at: datetime
    seconds: float
    results: list[CheckResult]

    @property
    def found(self) -> list[CheckResult]:
        return [result for result in self.results if result.count]


class LastChecks:
    def __init__(self) -> None:
        self._checks: dict[str, LastCheck] = {}

    def of(self, tenant: str) -> LastCheck | None:
        return self._checks.get(tenant)

    async def run(self, service: Service, principal: Principal) -> None:
        """Check every invariant on the rows of the tenant, now."""
        started_at = time.monotonic()
        results = await service.check_jobs.check(principal, None)
        seconds = time.monotonic() - started_at
        if len(self._checks) >= TENANTS_MAX:
            self._checks.clear()
        shown = [
            replace(result, skipped=SKIPPED) if result.skipped and not result.late else result
            for result in results
        ]
        self._checks[principal.tenant] = LastCheck(datetime.now(UTC), seconds, shown)
