"""Seals on a clock: writes a seal of the ledger to a directory, beside the earlier ones.

The directory is outside of the database server. All replicas and callers make one series; each
directory gets all of it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from helixqueue.errors import HelixError
from helixqueue.service.background import BackgroundTask
from helixqueue.service.problems import Problem

if TYPE_CHECKING:
    from helixqueue.service.check_jobs import CheckJobs

log = logging.getLogger("helixqueue.service.sealing")


class LastSeal(NamedTuple):
    number: int
    sealed_at: datetime
    file: str


class Sealing(BackgroundTask):
    last: LastSeal | None = None  # that this process wrote; it begins with one

    def __init__(self, jobs: CheckJobs, place: Path, seconds: float) -> None:
        self._jobs = jobs
        self._place = place
        self._seconds = seconds

    async def _run(self) -> None:
        while True:
            try:
                seal = await self._jobs.seal()
                file = await self._jobs.add_seal(self._place, seal)
                sealed_at = datetime.fromisoformat(seal["sealed_at"])
                self.last = LastSeal(seal["number"], sealed_at, file.name)
                log.info("sealed %s entries in %s", seal["counts"].get("entry", 0), file)
            except (HelixError, Problem, OSError) as error:
                log.error("the ledger was not sealed, and will be later: %s", error)  # noqa: TRY400
            await asyncio.sleep(self._seconds)
