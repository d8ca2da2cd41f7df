"""Background duties: this replica asks now and then whether one is due, and does it.

The database shares them out among any number of replicas (engine/sql/19_duty.sql), so there is
nothing to take over when one dies: the others go on asking. Each run is one short transaction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from typing import Final

from helixqueue.engine import duties
from helixqueue.errors import HelixError, NotPermitted
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.service.request_log import where

log = logging.getLogger("helixqueue.service.duties")
LOOK_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 1.0  # between two tries while the database is away
ROWS_MAX: Final = 1_000  # of one run


class Duties:
    def __init__(self, served: TenantSessions) -> None:
        self._served = served
        # In the ledger, on what is taken back from a worker that does not renew.
        self._actor = f"service {socket.gethostname()}.{os.getpid()}"[:255]
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="helix-duties")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        away = False
        while True:
            try:
                more = await self._one()
            except NotPermitted as error:
                # Claims still reap and promote for their own tenants.
                log.warning("this service does no background duties: %s", error)
                return
            except HelixError as error:
                if not away:
                    log.warning("background duties wait: %s", error)
                away = True
                await asyncio.sleep(AWAY_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - nobody else would be told
                log.error("a fault, and background duties go on: %s", where(error))  # noqa: TRY400
                await asyncio.sleep(AWAY_SECONDS)
                continue
            if away:
                log.warning("background duties go on")
                away = False
            if not more:
                await asyncio.sleep(LOOK_SECONDS)

    async def _one(self) -> bool:
        """Do a duty that is due; whether to look again at once."""
        done = await self._served.run_without_tenant(
            duties.run_duty(actor=self._actor, limit=ROWS_MAX)
        )
        if done is not None and done.error is not None:
            log.error("duty %s failed: %s", done.duty, done.error)
        return done is not None
