"""The state of one running service: connections, principals, limits, metrics."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from helixqueue.engine import duties, reads, revision, service_calls
from helixqueue.engine.tokens import SERVICE_ROLES
from helixqueue.errors import HelixError, NotPermitted, SchemaMismatch
from helixqueue.fence.metrics import Counters
from helixqueue.fence.policy import Policy, Route
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.fairness import FairSemaphore
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.postgres.wakeups import Wakeups
from helixqueue.service.address import proxy_networks
from helixqueue.service.change_marks import ChangeMarks
from helixqueue.service.check_jobs import CheckJobs
from helixqueue.service.claim_hints import ClaimHints
from helixqueue.service.compute_threads import ComputeThreads
from helixqueue.service.costs import BodyMemory, LoopTime
from helixqueue.service.duties import Duties
from helixqueue.service.metrics import Metrics
from helixqueue.service.principal import Principal, Principals
from helixqueue.service.problems import Problem, no_such_queue
from helixqueue.service.publisher import OutputPublisher
from helixqueue.service.rate_limit import AnonymousRateLimit
from helixqueue.service.sealing import Sealing
from helixqueue.service.stream_watch import StreamWatch
from helixqueue.service.tenant_limits import TenantLimits

if TYPE_CHECKING:
    from helixqueue.records.duty import DutyRow
    from helixqueue.service.settings import ServiceSettings

READY_SECONDS: Final = 1.0
# Maximum age of a queue's pending count: deep queues are counted more often than shallow ones.
DEEP_SECONDS: Final = 1.0
SHALLOW_SECONDS: Final = 10.0
COUNTED_MAX: Final = 10_000
UNREACHABLE: Final = "the database is unreachable"
SCHEMA_MISMATCH: Final = "the database schema does not match this release; run helixq migrate"
BIND_HELP: Final = (
    "create a role for the service: create role helix_service login; "
    f"grant {', '.join(SERVICE_ROLES)} to helix_service; "
    "select helix.bind_v1('helix_service', '*', true)"
)


class Service:
    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.signer = settings.signer
        self.stopping = asyncio.Event()  # open streams end, so that the service can
        self.policy = settings.policy or Policy()  # create_app adds one route per operation
        self.policy_routes: dict[str, Route] = {}  # operations that accept a key, and their policy
        self.sessions = TenantSessions(
            settings.dsn,
            connections=settings.connections,
            connect_seconds=settings.connect_seconds,
            statement_seconds=settings.statement_seconds,
            wait_seconds=settings.wait_seconds,
            pooled=settings.pooled,
        )
        self.compute = ComputeThreads()
        self.loop_time = LoopTime()
        self.memory = BodyMemory(settings.memory, settings.wait_seconds)
        self.principals = Principals(self.sessions, settings, Counters(), self.compute)
        proxies = proxy_networks(settings.trusted_proxies)
        self.anonymous_limit = AnonymousRateLimit(
            settings.anonymous_per_second, settings.anonymous_burst, proxies
        )
        # Separate: behind a proxy all clients share an address, and a client that guesses tokens
        # must not block a user with a valid login link.
        self.login_limit = AnonymousRateLimit(
            settings.anonymous_per_second, settings.anonymous_burst, proxies
        )
        self.webhook_limit = AnonymousRateLimit(
            settings.anonymous_per_second, settings.anonymous_burst, proxies
        )
        self.change_marks = ChangeMarks(self.sessions)
        self.wakeups = self._wakeups()
        # A stream that is far behind reads for seconds, so half of the connections stay free.
        self.stream_reads = FairSemaphore(max(1, settings.connections // 2))
        self.requests = TenantLimits(
            settings.max_requests, "concurrent requests", kind="too-busy", retry_after=1
        )
        self.streams = TenantLimits(
            settings.max_streams, "streams", kind="too-many-streams", retry_after=10
        )
        self.waits = TenantLimits(
            settings.max_waits, "waiting worker requests", kind="too-many-streams", retry_after=10
        )
        self.metrics = Metrics(self.streams, self.waits)
        self.claim_hints = ClaimHints()
        self.duties = Duties(self.sessions)
        self.publisher = OutputPublisher(self.sessions)
        self.check_jobs = CheckJobs(settings)
        self.sealing = (
            None
            if settings.seal_to is None or self.signer is None
            else Sealing(self.check_jobs, settings.seal_to, settings.seal_seconds)
        )
        self.stream_watch = (
            None if settings.redis is None else StreamWatch(self.sessions, settings.redis)
        )
        self.duty_rows: list[DutyRow] = []
        self.fault: HelixError | None = None  # of the last readiness check
        self._readiness: asyncio.Task[str | None] | None = None
        self._checked_at = float("-inf")
        self._pending: dict[tuple[str, str], tuple[float, int]] = {}

    def _wakeups(self) -> Wakeups | None:
        listen_dsn = self.settings.listen_dsn
        if listen_dsn is None:
            return None if self.settings.pooled else Wakeups(self.sessions.connect)
        seconds = self.settings.connect_seconds
        return Wakeups(lambda: AsyncDatabase.connect(listen_dsn, timeout_seconds=seconds))

    async def close(self) -> None:
        """Close every part, in reverse order, even if one of them fails."""
        async with AsyncExitStack() as parts:
            parts.callback(self.compute.close)
            parts.push_async_callback(self.sessions.close)
            if self.wakeups is not None:
                parts.push_async_callback(self.wakeups.close)
            parts.push_async_callback(self.check_jobs.close)
            parts.push_async_callback(self.duties.stop)
            parts.push_async_callback(self.publisher.stop)
            if self.sealing is not None:
                parts.push_async_callback(self.sealing.stop)
            if self.stream_watch is not None:
                parts.push_async_callback(self.stream_watch.stop)

    async def check_ready(self) -> str | None:
        """The reason why the service is not ready, or None.

        Checks at most once per second, one check at a time: clients without a token may call this,
        and must not take connections from others.
        """
        is_old = time.monotonic() - self._checked_at >= READY_SECONDS
        if self._readiness is None or (self._readiness.done() and is_old):
            self._readiness = asyncio.create_task(self._check_database())
        return await asyncio.shield(self._readiness)

    async def _check_database(self) -> str | None:
        self.fault = None
        try:
            revision.demand(
                await self.sessions.run_without_tenant(service_calls.read_schema_revision())
            )
            is_fit = await self.sessions.run_without_tenant(service_calls.can_serve())
            self.duty_rows = await self.sessions.run_without_tenant(duties.list_duties())
        except SchemaMismatch:
            return SCHEMA_MISMATCH
        except NotPermitted:
            is_fit = False
        except HelixError as error:
            self.fault = error
            return UNREACHABLE
        finally:
            self._checked_at = time.monotonic()
        return None if is_fit else f"the login must be bound by setting only; {BIND_HELP}"

    async def check_queue_capacity(self, principal: Principal, queue: str, rows: int) -> None:
        """Reject submissions to an unknown or full queue; the limit is soft, counts may be old."""
        limit = self.settings.max_pending
        key = (principal.tenant, queue)
        read_at, pending = self._pending.get(key, (float("-inf"), 0))
        age = time.monotonic() - read_at
        if age >= SHALLOW_SECONDS or (age >= DEEP_SECONDS and pending + rows >= limit // 2):
            page = await principal.execute(
                reads.queues(tenant=principal.tenant, queue=queue, bound=limit)
            )
            if not page.rows:
                raise no_such_queue(queue)
            counts = [row.counts for row in page.rows]
            pending = sum(item.ready.number + item.waiting.number for item in counts)
            if len(self._pending) >= COUNTED_MAX:
                self._pending.clear()
            read_at = time.monotonic()
        if pending + rows > limit:
            self._pending[key] = (read_at, pending)
            raise Problem(
                "queue-full",
                f"queue {queue} has {pending} pending batches; its limit is {limit}",
                expected=f"at most {limit} pending",
                got=str(pending + rows),
                retry_after=DEEP_SECONDS,
                pending=pending,
                limit=limit,
            )
        self._pending[key] = (read_at, pending + rows)
