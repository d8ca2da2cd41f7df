"""Who asks: a good token, what it allows, and the calls it makes.

What a token allows never changes, so it is remembered for a second. Whether the token is good is
asked of the database in every transaction, together with the call (postgres/tenant_sessions.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.engine import reads, tokens
from helixqueue.engine.tokens import TOKEN
from helixqueue.fence.fence import AsyncFences
from helixqueue.operations.batches import Operations
from helixqueue.operations.steps import Execute, Step, Steps, run_steps_async
from helixqueue.service.problems import Problem, unauthenticated
from helixqueue.service.rate_limit import RateLimit
from helixqueue.service.submit_coalescer import BOOK, Single, SubmitCoalescer

if TYPE_CHECKING:
    from helixqueue.engine.tokens import Grant
    from helixqueue.fence.counters import Counters
    from helixqueue.postgres.call import Call
    from helixqueue.postgres.tenant_sessions import TenantSessions
    from helixqueue.service.settings import ServiceSettings

T = TypeVar("T")
REMEMBER_SECONDS: Final = 1.0
REMEMBERED_MAX: Final = 1_000


class Principal:
    """One token at work."""

    def __init__(
        self,
        served: TenantSessions,
        token_hash: bytes,
        grant: Grant,
        settings: ServiceSettings,
        counters: Counters,
    ) -> None:
        self.grant = grant
        self.tenant = grant.tenant
        self.read_at = time.monotonic()
        self._served = served
        self.token_hash = token_hash
        self._counters = counters
        self.desk = Operations(
            BOOK, tenant=grant.tenant, actor=grant.name, retry_seconds=settings.retry_seconds
        )
        self._gathering = SubmitCoalescer(self.run)
        self._allowance = RateLimit(settings.requests_per_second, settings.burst)

    async def run(self, call: Call[T], *more: Call[Any]) -> T:
        """Make a call for the token's tenant; `more` in the same transaction."""
        return await self._served.run(self.token_hash, call, *more, tenant=self.tenant)

    async def do(self, plan: Steps[T]) -> T:
        return await run_steps_async(plan, self._perform)

    async def ask(self, call: Call[T]) -> T:
        """Make a call that may be repeated while the database is away."""
        return await self.do(self.desk.ask(call))

    async def demand_good(self) -> None:
        """For what needs no database: it asks whether the token is good, as all else does."""
        await self.ask(reads.tenants())

    async def _perform(self, step: Step) -> Any:  # noqa: ANN401 - the answer of any call
        if isinstance(step, Execute):
            if isinstance(step.call, Single):
                return await self._gathering.submit(step.call)
            return await self.run(step.call)
        await asyncio.sleep(step.seconds)
        return None

    @cached_property
    def fences(self) -> AsyncFences:
        """Of the requests that come with an idempotency key."""
        return AsyncFences(self.run, self.tenant, self.grant.name, self._counters)

    def take(self) -> None:
        """One request of what the token is allowed."""
        wait = self._allowance.take()
        if wait:
            raise Problem(
                "too-many-requests",
                f"a token may ask {self._allowance}",
                expected=f"at most {self._allowance}",
                retry_after=wait,
            )

    def demand(self, scope: str) -> None:
        if scope not in self.grant.scopes:
            raise Problem(
                "forbidden",
                f"this needs the scope {scope}",
                expected=f"a token with the scope {scope}",
                got=f"one with {', '.join(sorted(self.grant.scopes))}",
            )

    def demand_queue(self, *queues: str) -> None:
        only = self.grant.queues
        outside = [queue for queue in queues if only is not None and queue not in only]
        if outside:
            raise Problem(
                "forbidden",
                f"this token is for other queues than {outside[0]}",
                expected=f"one of {', '.join(sorted(only or ()))[:300]}",
                got=outside[0],
            )

    @property
    def sees_payloads(self) -> bool:
        """Payloads, results, and what workers wrote about failures."""
        return "payloads" in self.grant.scopes


class Principals:
    """Those who asked lately."""

    def __init__(
        self, served: TenantSessions, settings: ServiceSettings, counters: Counters
    ) -> None:
        self._served = served
        self._settings = settings
        self._counters = counters  # of all fences, whoever asked
        self._known: OrderedDict[bytes, Principal] = OrderedDict()
        self._look: asyncio.Task[dict[bytes, Grant]] | None = None
        self._asked: set[bytes] | None = None  # by that look, while it has not begun

    async def of(self, authorization: list[bytes]) -> Principal:
        """Who sent this header; raises a problem for nobody we know."""
        if not authorization:
            raise unauthenticated("expected the header Authorization, got none", "none")
        word, _, token = authorization[0].decode("latin-1").partition(" ")
        if len(authorization) > 1 or word.lower() != "bearer" or not TOKEN.fullmatch(token.strip()):
            raise unauthenticated(
                "expected Authorization: Bearer hx_..., got something else", "something else"
            )
        token_hash = tokens.hash_token(token.strip())
        known = self._known.get(token_hash)
        if known is not None and time.monotonic() - known.read_at < REMEMBER_SECONDS:
            return known
        grant = await self._looked_up(token_hash)
        if grant is None:
            self._known.pop(token_hash, None)
            why = "one that is unknown, expired or revoked"
            raise unauthenticated(f"expected a token that is good now, got {why}", why)
        if known is not None and known.grant == grant:
            # The same with its desk, its allowance and its fences.
            known.read_at = time.monotonic()
        else:
            known = Principal(self._served, token_hash, grant, self._settings, self._counters)
        self._known[token_hash] = known
        self._known.move_to_end(token_hash)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return known

    async def _looked_up(self, token_hash: bytes) -> Grant | None:
        """Whoever comes while a look is under way is part of the next.

        So guesses cost the database one look at a time, however many there are, and a good token
        among them waits for two at most.
        """
        if self._look is None or self._asked is None:
            self._asked = set()
            self._look = asyncio.create_task(self._look_behind(self._look, self._asked))
            self._look.add_done_callback(_looked_at)
        self._asked.add(token_hash)
        return (await asyncio.shield(self._look)).get(token_hash)

    async def _look_behind(
        self, before: asyncio.Task[dict[bytes, Grant]] | None, asked: set[bytes]
    ) -> dict[bytes, Grant]:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._asked = None
        return await self._served.run_without_tenant(tokens.authenticate(asked))


def _looked_at(look: asyncio.Task[dict[bytes, Grant]]) -> None:
    if not look.cancelled():
        look.exception()  # in case nobody waits for it any more
