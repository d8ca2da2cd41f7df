"""What one running service has: its connections, who asked lately, its counts."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from helixqueue.engine import duties, reads, revision, service_calls
from helixqueue.errors import HelixError, NotPermitted, SchemaMismatch
from helixqueue.fence.counters import Counters
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.fair_semaphore import FairSemaphore
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.postgres.wakeups import Wakeups
from helixqueue.service.admission import PRINCIPAL_KEY
from helixqueue.service.change_marks import ChangeMarks
from helixqueue.service.check_jobs import CheckJobs
from helixqueue.service.duties import Duties
from helixqueue.service.metrics import Metrics
from helixqueue.service.names import Names
from helixqueue.service.principal import Principal, Principals
from helixqueue.service.problems import Problem
from helixqueue.service.rate_limit import AnonymousRateLimit
from helixqueue.service.request_log import SCOPE_KEY, RequestLog
from helixqueue.service.tenant_limits import TenantLimits

if TYPE_CHECKING:
    from helixqueue.engine.duties import DutyRow
    from helixqueue.service.settings import ServiceSettings

READY_SECONDS: Final = 1.0
# How old a count of a queue may be: a deep one is looked at often, a shallow one now and then.
DEEP_SECONDS: Final = 1.0
SHALLOW_SECONDS: Final = 10.0
COUNTED_MAX: Final = 10_000
AWAY: Final = "the database is away"
MISFIT: Final = "the database's schema does not fit this release; run helixq migrate"
BIND_IT: Final = (
    "create a role for the service: create role helix_service login; grant helix_client to "
    "helix_service; select helix.bind_v1('helix_service', '*', true)"
)


class Service:
    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.served = TenantSessions(
            settings.dsn,
            connections=settings.connections,
            connect_seconds=settings.connect_seconds,
            statement_seconds=settings.statement_seconds,
            wait_seconds=settings.wait_seconds,
            pooled=settings.pooled,
        )
        self.principals = Principals(self.served, settings, Counters())
        self.strangers = AnonymousRateLimit(settings.strangers_per_second, settings.strangers_burst)
        # Apart: behind a proxy all have one address, and who guesses tokens must keep nobody out
        # who has a good link.
        self.logins = AnonymousRateLimit(settings.strangers_per_second, settings.strangers_burst)
        self.marks = ChangeMarks(self.served)
        self.bell = self._bell()
        # A stream that is far behind looks for seconds: half of the connections are for others.
        self.looks = FairSemaphore(max(1, settings.connections // 2))
        self.requests = TenantLimits(
            settings.max_requests, "requests under way", kind="too-busy", retry_after=1
        )
        self.streams = TenantLimits(
            settings.max_streams, "streams", kind="too-many-streams", retry_after=10
        )
        self.waits = TenantLimits(
            settings.max_waits, "held requests of workers", kind="too-many-streams", retry_after=10
        )
        self.metrics = Metrics(self.streams, self.waits)
        self.names = Names()
        self.duties = Duties(self.served)
        self.audits = CheckJobs(settings)
        self.duty_rows: list[DutyRow] = []
        self.fault: HelixError | None = None  # of the last look at the database
        self._look: asyncio.Task[str | None] | None = None
        self._looked_at = float("-inf")
        self._pending: dict[tuple[str, str], tuple[float, int]] = {}

    def _bell(self) -> Wakeups | None:
        direct = self.settings.listen_dsn
        if direct is None:
            return None if self.settings.pooled else Wakeups(self.served.connect)
        seconds = self.settings.connect_seconds
        return Wakeups(lambda: AsyncDatabase.connect(direct, timeout_seconds=seconds))

    async def close(self) -> None:
        """All of it, though one of them fails; the last one first."""
        async with AsyncExitStack() as parts:
            parts.push_async_callback(self.served.close)
            if self.bell is not None:
                parts.push_async_callback(self.bell.close)
            parts.push_async_callback(self.audits.close)
            parts.push_async_callback(self.duties.stop)

    async def why_not_ready(self) -> str | None:
        """None when it can serve. One look at a time, and one a second, however many ask.

        Anybody may ask without a token: a look for each would take connections from those with one.
        """
        is_old = time.monotonic() - self._looked_at >= READY_SECONDS
        if self._look is None or (self._look.done() and is_old):
            self._look = asyncio.create_task(self._find_out())
        return await asyncio.shield(self._look)

    async def _find_out(self) -> str | None:
        try:
            return await self._reason()
        finally:
            self._looked_at = time.monotonic()

    async def _reason(self) -> str | None:
        self.fault = None
        try:
            revision.demand(
                await self.served.run_without_tenant(service_calls.read_schema_revision())
            )
            fit = await self.served.run_without_tenant(service_calls.can_serve())
            self.duty_rows = await self.served.run_without_tenant(duties.list_duties())
        except SchemaMismatch:
            return MISFIT
        except NotPermitted:
            fit = False
        except HelixError as error:
            self.fault = error
            return AWAY
        return None if fit else f"the login must be bound by setting alone; {BIND_IT}"

    async def make_room(self, principal: Principal, queue: str, rows: int) -> None:
        """Turn submissions away while a queue is full; a soft bound, counted now and then."""
        bound = self.settings.max_pending
        place = (principal.tenant, queue)
        read_at, pending = self._pending.get(place, (float("-inf"), 0))
        age = time.monotonic() - read_at
        if age >= SHALLOW_SECONDS or (age >= DEEP_SECONDS and pending + rows >= bound // 2):
            page = await principal.ask(
                reads.queues(tenant=principal.tenant, queue=queue, bound=bound)
            )
            pending = sum(sight.ready.number + sight.waiting.number for sight in page.rows)
            if len(self._pending) >= COUNTED_MAX:
                self._pending.clear()
            read_at = time.monotonic()
        if pending + rows > bound:
            self._pending[place] = (read_at, pending)
            raise Problem(
                "queue-full",
                f"queue {queue} has {pending} batches pending, and takes {bound}",
                expected=f"at most {bound} pending",
                got=str(pending + rows),
                retry_after=DEEP_SECONDS,
                pending=pending,
                limit=bound,
            )
        self._pending[place] = (read_at, pending + rows)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def principal_of(request: Request) -> Principal:
    principal: Principal = request.scope[PRINCIPAL_KEY]
    return principal


def journal_of(request: Request) -> RequestLog:
    journal: RequestLog = request.scope[SCOPE_KEY]
    return journal
