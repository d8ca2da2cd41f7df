"""Looks at the consumer groups of intakes in Redis, so that their figures do not need an intake."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from helixqueue.engine import streams
from helixqueue.errors import HelixError
from helixqueue.service.background import BackgroundTask

if TYPE_CHECKING:
    from helixqueue.engine.streams import StreamGroup
    from helixqueue.intake.figures import StreamSnapshot
    from helixqueue.postgres.tenant_sessions import TenantSessions

log = logging.getLogger("helixqueue.service.streams")
# A group that an intake or another replica has looked at since is left out.
LOOK_SECONDS: Final = 5.0


class StreamWatch(BackgroundTask):
    def __init__(self, sessions: TenantSessions, redis: str) -> None:
        self._sessions = sessions
        self._redis = redis
        self._problem: str | None = None

    async def _run(self) -> None:
        call = streams.groups_to_look_at(seconds=LOOK_SECONDS)
        while True:
            problem = None
            try:
                for group in await self._sessions.run_without_tenant(call):
                    problem = await self._look(group) or problem
            except HelixError as error:  # of the database
                problem = str(error)
            if problem is not None and problem != self._problem:
                log.warning("the figures of streams are not read: %s", problem)
            self._problem = problem
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, group: StreamGroup) -> str | None:
        """Look at a group, unless it is in another Redis; returns what prevented it."""
        looked_at = time.monotonic()
        try:
            snapshot = await asyncio.to_thread(_snapshot, self._redis, group)
        except HelixError as error:  # one group does not affect the others
            return str(error)
        if snapshot is not None:
            seconds = time.monotonic() - looked_at
            look = streams.store_look(
                group, seconds=seconds, figures=asdict(snapshot), every_tenant=True
            )
            await self._sessions.run_without_tenant(look)
        return None


def _snapshot(redis: str, group: StreamGroup) -> StreamSnapshot | None:
    from helixqueue.intake.settings import EVERY_QUEUE, IntakeSettings  # noqa: PLC0415
    from helixqueue.intake.stream import StreamConsumer  # noqa: PLC0415 - needs the extra `intake`

    tenant, stream, name = group
    settings = IntakeSettings(stream, tenant, EVERY_QUEUE, redis, name)
    with closing(StreamConsumer(settings)) as consumer:
        return consumer.snapshot()
