"""Publishes output files that a worker left granted, and removes what retention and erasure end.

Every replica does it: tasks are taken one by one, and each step may be repeated. It needs the
credentials of the destinations in its environment; a task that fails stays for other processes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from helixqueue.engine import outputs
from helixqueue.errors import HelixError, NotPermitted
from helixqueue.log.lines import traceback_of
from helixqueue.outputs.publish import TASKS_MAX, Publisher
from helixqueue.service.background import BackgroundTask

if TYPE_CHECKING:
    from helixqueue.postgres.tenant_sessions import TenantSessions

log = logging.getLogger("helixqueue.service.outputs")
POLL_SECONDS: Final = 5.0


class OutputPublisher(BackgroundTask):
    def __init__(self, sessions: TenantSessions) -> None:
        self._publisher = Publisher(sessions.run_without_tenant, outputs, every_tenant=True)

    async def _run(self) -> None:
        while True:
            taken = 0
            try:
                taken = len(await self._publisher.publish())
            except NotPermitted as error:
                log.warning("this service publishes no output files: %s", error)
                return
            except HelixError as error:
                log.warning("output files are published later: %s", error)
            except Exception as error:  # noqa: BLE001 - keeps the loop alive
                log.error("output files are published later: %s", traceback_of(error))  # noqa: TRY400
            if taken < TASKS_MAX:
                await asyncio.sleep(POLL_SECONDS)
