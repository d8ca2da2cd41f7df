"""Checks, replays and seals run in a thread on their own connection, one at a time per tenant.

They read and compute for long, so they use neither the event loop nor the service's connections.
Like every other transaction of the service, theirs begin with the token, which names the tenant.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from helixqueue.engine import check_runs
from helixqueue.errors import Unavailable
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.operate.seal import add_after_missing, make_next_seal, read_document
from helixqueue.postgres import tenant_sessions
from helixqueue.postgres.database import Database
from helixqueue.records.check import CheckOutcome
from helixqueue.service.tenant_limits import TenantLimits

if TYPE_CHECKING:
    from psycopg import Connection

    from helixqueue.ledger.replay import ReplayResult
    from helixqueue.operate.check import CheckResult
    from helixqueue.service.principal import Principal
    from helixqueue.service.settings import ServiceSettings

T = TypeVar("T")
# Two, so that one tenant cannot block all others.
JOBS_MAX: Final = 2
SKIPPED: Final = "needs the database owner: a token may not read the rows"


class CheckJobs:
    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._limits = TenantLimits(
            JOBS_MAX, "checks and replays", kind="check-under-way", retry_after=1
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._connections: set[Connection[Any]] = set()
        self._closed = False

    async def check(self, principal: Principal, only: Collection[str] | None) -> list[CheckResult]:
        """Check every invariant, or `only` these, on the rows of the token's tenant.

        Invariants that did not finish in time are marked late. A run of all is recorded.
        """
        started_at = time.monotonic()
        seconds = self._settings.check_seconds
        job = partial(
            check,
            only=only,
            seconds=seconds,
            enter=_assume_tenant(principal, seconds),
            progress=lambda _: self._require_open(),
        )
        results = [
            replace(result, skipped=SKIPPED) if result.skipped and not result.late else result
            for result in await self._run_in_thread(principal.tenant, job)
        ]
        if only is None:
            found = [CheckOutcome(r.name, r.count, tuple(r.witnesses), r.skipped) for r in results]
            await principal.execute(
                check_runs.note_check(
                    tenant=principal.tenant,
                    actor=principal.grant.name,
                    seconds=time.monotonic() - started_at,
                    results=found,
                )
            )
        return results

    async def replay(self, principal: Principal, *, after: int, limit: int) -> ReplayResult:
        """Replay a range of the tenant's batches; the next range starts after `stopped_at`."""
        job = partial(
            replay,
            after=after,
            batches=self._settings.replay_batches,
            limit=limit,
            seconds=self._settings.replay_seconds,
            enter=_assume_tenant(principal, self._settings.statement_seconds),
        )
        return await self._run_in_thread(principal.tenant, job)

    async def seal(self, principal: Principal | None = None) -> dict[str, Any]:
        """Seal the records of all tenants since the last seal; `principal` asked for it."""
        tenant = "" if principal is None else principal.tenant
        actor = "service" if principal is None else principal.grant.name
        keys = [key.signer for key in self._settings.keys]
        return await self._run_in_thread(tenant, partial(make_next_seal, keys=keys, actor=actor))

    async def add_seal(self, place: Path, seal: dict[str, Any]) -> Path:
        """Write a seal to a place, after those of other replicas and callers."""
        return await self._run_in_thread("", partial(_add, place, seal))

    async def close(self) -> None:
        """Cancel the running jobs; their clients are disconnected."""
        self._closed = True
        # Repeated, because between two statements there is nothing to cancel.
        while tasks := set(self._tasks):
            for connection in list(self._connections):
                with suppress(psycopg.Error):
                    await asyncio.to_thread(connection.cancel_safe)
            await asyncio.wait(tasks, timeout=0.1)

    async def _run_in_thread(self, tenant: str, job: Callable[[Connection[Any]], T]) -> T:
        self._limits.take(tenant)
        task = asyncio.ensure_future(asyncio.to_thread(self._connect_and_run, job))
        self._tasks.add(task)
        # The thread continues when the client disconnects, and counts until it ends.
        task.add_done_callback(partial(self._finish, tenant))
        return await asyncio.shield(task)

    def _finish(self, tenant: str, task: asyncio.Task[Any]) -> None:
        self._limits.give_back(tenant)
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it when the client is gone

    def _connect_and_run(self, job: Callable[[Connection[Any]], T]) -> T:
        with Database.connect(
            self._settings.dsn,
            pooled=self._settings.pooled,
            timeout_seconds=self._settings.connect_seconds,
            statement_seconds=self._settings.check_seconds,
        ) as database:
            self._connections.add(database.connection)
            try:
                self._require_open()
                return job(database.connection)
            finally:
                self._connections.discard(database.connection)

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable("the service is shutting down; retry on another replica")


def _add(place: Path, seal: dict[str, Any], connection: Connection[Any]) -> Path:
    return add_after_missing(place, seal, partial(read_document, connection))


def _assume_tenant(principal: Principal, seconds: float) -> Callable[[Connection[Any]], None]:
    return partial(tenant_sessions.assume_tenant, token_hash=principal.token_hash, seconds=seconds)
