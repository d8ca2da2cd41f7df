"""Background duties: the service polls the database for a duty that is due, and runs it.

The database distributes duties among the replicas (engine/sql/75_duty.sql). No failover is needed
when a replica dies, because the others keep polling. Each run is one short transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from typing import Final

from helixqueue.engine import duties
from helixqueue.errors import HelixError, NotPermitted
from helixqueue.log.lines import traceback_of
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.postgres.transaction_bounds import END_OVERDUE
from helixqueue.service.background import BackgroundTask

log = logging.getLogger("helixqueue.service.duties")
POLL_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 1.0  # while the database is unreachable
ROWS_MAX: Final = 1_000  # per run
OVERDUE_SECONDS: Final = 10.0  # between two looks at transactions of this login past their limit


class Duties(BackgroundTask):
    def __init__(self, sessions: TenantSessions) -> None:
        self._sessions = sessions
        # The ledger names this actor when a lease of a worker that stopped renewing ends.
        self._actor = f"service {socket.gethostname()}.{os.getpid()}"[:255]
        self._look_at = 0.0

    async def _run(self) -> None:
        is_waiting = False
        while True:
            try:
                more = await self._run_next()
            except NotPermitted as error:
                # Claims still reap and promote for their own tenants.
                log.warning("background duties are disabled: %s", error)
                return
            except HelixError as error:
                if not is_waiting:
                    log.warning("background duties paused: %s", error)
                is_waiting = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - keeps the loop alive
                log.error("background duties failed and continue: %s", traceback_of(error))  # noqa: TRY400
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if is_waiting:
                log.warning("background duties resumed")
                is_waiting = False
            if not more:
                await asyncio.sleep(POLL_SECONDS)

    async def _run_next(self) -> bool:
        """Run a duty that is due; returns whether to poll again at once."""
        if time.monotonic() > self._look_at:
            self._look_at = time.monotonic() + OVERDUE_SECONDS
            for process in await self._sessions.run_without_tenant(END_OVERDUE):
                log.warning("ended server process %d: its client froze in a transaction", process)
        result = await self._sessions.run_without_tenant(
            duties.run_duty(actor=self._actor, limit=ROWS_MAX)
        )
        if result is not None and result.error is not None:
            log.error("duty %s failed: %s", result.duty, result.error)
        return result is not None
