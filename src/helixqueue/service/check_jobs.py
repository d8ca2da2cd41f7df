"""Checks and replays: in a thread, on a connection of their own, one at a time of a tenant.

They read much and think long, so the event loop and the connections that serve are kept out of it.
Each transaction begins as every other of the service: with the token, which names the tenant.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from helixqueue.errors import Unavailable
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.postgres import tenant_sessions
from helixqueue.postgres.database import Database
from helixqueue.service.tenant_limits import TenantLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

    from helixqueue.ledger.replay import ReplayResult
    from helixqueue.operate.check import CheckResult
    from helixqueue.service.principal import Principal
    from helixqueue.service.settings import ServiceSettings

T = TypeVar("T")
# At a time, so that a tenant that asks without end does not keep all others from asking.
AT_ONCE: Final = 2


class CheckJobs:
    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._places = TenantLimits(
            AT_ONCE, "checks and replays", kind="check-under-way", retry_after=1
        )
        self._under_way: set[asyncio.Task[Any]] = set()
        self._connections: set[Connection[Any]] = set()
        self._closed = False

    async def check(self, asker: Principal, only: Collection[str] | None) -> list[CheckResult]:
        """Every invariant (or `only` these), for the rows of the token's tenant.

        Those that time does not suffice for are late.
        """
        return await self._in_a_thread(asker, partial(self._checked, asker.token_hash, only))

    async def replay(self, asker: Principal, *, behind: int, limit: int) -> ReplayResult:
        """A stretch of the tenant's batches after one; `stopped_at` is where the next begins."""
        return await self._in_a_thread(
            asker, partial(self._replayed, asker.token_hash, behind, limit)
        )

    async def close(self) -> None:
        """End what is under way: nobody waits for the answer."""
        self._closed = True
        # Again and again: between two statements there is nothing to cancel.
        while under_way := set(self._under_way):  # they may all have ended before the wait
            for connection in list(self._connections):
                with suppress(psycopg.Error):
                    await asyncio.to_thread(connection.cancel_safe)
            await asyncio.wait(under_way, timeout=0.1)

    async def _in_a_thread(self, asker: Principal, work: Callable[[Connection[Any]], T]) -> T:
        self._places.take(asker.tenant)
        task = asyncio.ensure_future(asyncio.to_thread(self._connected, work))
        self._under_way.add(task)
        # The thread goes on when whoever asked has left, and has its place until it ends.
        task.add_done_callback(partial(self._ended, asker.tenant))
        return await asyncio.shield(task)

    def _ended(self, tenant: str, task: asyncio.Task[Any]) -> None:
        self._places.give_back(tenant)
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, in case nobody waits for it any more

    def _connected(self, work: Callable[[Connection[Any]], T]) -> T:
        with Database.connect(
            self._settings.dsn,
            pooled=self._settings.pooled,
            timeout_seconds=self._settings.connect_seconds,
            statement_seconds=self._settings.check_seconds,
        ) as database:
            self._connections.add(database.connection)
            try:
                self._demand_open()
                return work(database.connection)
            finally:
                self._connections.discard(database.connection)

    def _demand_open(self) -> None:
        if self._closed:
            raise Unavailable("the service is about to end; ask another one")

    def _checked(
        self, token_hash: bytes, only: Collection[str] | None, connection: Connection[Any]
    ) -> list[CheckResult]:
        seconds = self._settings.check_seconds
        return check(
            connection,
            only=only,
            seconds=seconds,
            enter=partial(tenant_sessions.assume_tenant, token_hash=token_hash, seconds=seconds),
            progress=lambda _: self._demand_open(),
        )

    def _replayed(
        self, token_hash: bytes, behind: int, limit: int, connection: Connection[Any]
    ) -> ReplayResult:
        seconds = self._settings.statement_seconds
        return replay(
            connection,
            after=behind,
            batches=self._settings.replay_batches,
            limit=limit,
            seconds=self._settings.replay_seconds,
            enter=partial(tenant_sessions.assume_tenant, token_hash=token_hash, seconds=seconds),
        )
