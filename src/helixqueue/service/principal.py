"""Principals: a valid token, what it permits, and its calls to the database.

The permissions of a token never change, so they are cached for a second. Every transaction checks
in the database that the token is still valid, together with the call (postgres/tenant_sessions.py).
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from helixqueue.engine import reads, service_calls, tokens
from helixqueue.engine.tokens import TOKEN
from helixqueue.fence.fence_async import AsyncFences
from helixqueue.fence.http.request_key import Owners
from helixqueue.operations.batches import Operations
from helixqueue.operations.instructions import (
    Execute,
    Instruction,
    Instructions,
    run_instructions_async,
)
from helixqueue.service.compute_threads import is_large
from helixqueue.service.problems import Problem, unauthenticated
from helixqueue.service.rate_limit import RateLimit
from helixqueue.service.submit_coalescer import COALESCING_CALLS, SingleSubmit, SubmitCoalescer
from helixqueue.service.tenant_cipher import TenantCipher

if TYPE_CHECKING:
    from helixqueue.engine.tokens import Grant
    from helixqueue.fence.metrics import Counters
    from helixqueue.postgres.call import Call
    from helixqueue.postgres.tenant_sessions import TenantSessions, TenantTransaction
    from helixqueue.service.compute_threads import ComputeThreads
    from helixqueue.service.settings import ServiceSettings

T = TypeVar("T")
CACHE_SECONDS: Final = 1.0
CACHED_MAX: Final = 1_000


class Principal:
    def __init__(
        self,
        sessions: TenantSessions,
        token_hash: bytes,
        grant: Grant,
        settings: ServiceSettings,
        *,
        counters: Counters,
        compute: ComputeThreads,
    ) -> None:
        self.grant = grant
        self.tenant = grant.tenant
        self.token_name = f"{grant.name}.{grant.generation}"
        # Payloads, results and the failure details of workers.
        self.sees_payloads = "payloads" in grant.scopes
        self.read_at = time.monotonic()
        self._sessions = sessions
        self.token_hash = token_hash
        self._counters = counters
        self._compute = compute
        self.operations = Operations(
            COALESCING_CALLS,
            tenant=grant.tenant,
            actor=grant.name,
            retry_seconds=settings.retry_seconds,
            logs_identities=False,  # the request log has them
            only_queues=grant.queues,
            sees_payloads=self.sees_payloads,
            reads_batches="read" in grant.scopes,
            token_hash=token_hash,
            find_signer=lambda: settings.signer,
            keeps_json=True,
        )
        self._coalescer = SubmitCoalescer(self.run)
        self._transaction: TenantTransaction | None = None
        self._rate_limit = RateLimit(settings.requests_per_second, settings.burst)
        self._cipher: TenantCipher | None = None

    async def cipher(self) -> TenantCipher:
        """What hides numbers from this token; its key is read once."""
        if self._cipher is None:
            self._cipher = TenantCipher(await self.execute(service_calls.tenant_key(self.tenant)))
        return self._cipher

    async def seal_cursor(self, cursor: str | None) -> str | None:
        return None if cursor is None else (await self.cipher()).seal(cursor)

    async def open_cursor(self, text: str | None) -> str | None:
        return None if text is None else (await self.cipher()).open(text)

    async def run(self, call: Call[T], *more: Call[Any]) -> T:
        """Run a call once for the token's tenant; `more` calls in the same transaction."""
        if self._transaction is not None:
            reply = await self._transaction.run(call)
            for other in more:
                await self._transaction.run(other)
            return reply
        return await self._sessions.run(self.token_hash, call, *more, tenant=self.tenant)

    def transaction(self) -> TenantTransaction:
        return self._sessions.transaction(self.token_hash, self.tenant)

    def within(self, transaction: TenantTransaction) -> Principal:
        """The same principal, all of whose calls run in a transaction."""
        bound = copy.copy(self)
        bound._transaction = transaction  # noqa: SLF001 - of the same class
        return bound

    async def execute(self, call: Call[T]) -> T:
        """Run a call that may be repeated while the database is unreachable."""
        return await run_instructions_async(self.operations.ask(call), self._perform)

    async def run_instructions(
        self, instructions: Instructions[T], *, in_thread: bool = False
    ) -> T:
        """Run an operation; `in_thread` if its computations would hold the event loop."""
        if in_thread:
            return await self._compute.run_instructions(self.tenant, instructions, self._perform)
        return await run_instructions_async(instructions, self._perform)

    async def needs_thread(self, queue: str, body: bytes) -> bool:
        """Whether the submissions in a body would hold the event loop."""
        if is_large(body):
            return True
        known = await self.run_instructions(self.operations.known(queue))
        if not known.is_compiled:
            await self._compute.run(self.tenant, getattr, known, "schema")
        return known.schema is not None and not known.schema.is_inline(len(body))

    async def _perform(self, instruction: Instruction) -> Any:  # noqa: ANN401 - the result of any call
        if isinstance(instruction, Execute):
            if isinstance(instruction.call, SingleSubmit):
                if self._transaction is not None:
                    return await self.run(instruction.call.alone())
                return await self._coalescer.submit(instruction.call)
            return await self.run(instruction.call)
        await asyncio.sleep(instruction.seconds)
        return None

    async def require_valid_token(self) -> None:
        """Check the token, for operations that make no other call."""
        await self.execute(reads.tenants())

    @cached_property
    def fences(self) -> AsyncFences:
        """The fences of requests with an idempotency key."""
        return AsyncFences(self.run, self.tenant, self.grant.name, self._counters)

    @cached_property
    def owners(self) -> Owners:
        """The owner of a keyed request: this token."""
        return Owners(self.grant.name, self.tenant, principal=lambda _: self.grant.name)

    def count_request(self) -> None:
        """Count a request against the token's rate limit."""
        wait = self._rate_limit.take()
        if wait:
            raise Problem(
                "too-many-requests",
                f"the token is limited to {self._rate_limit}",
                expected=f"at most {self._rate_limit}",
                retry_after=wait,
            )

    def require_scope(self, scope: str) -> None:
        if scope not in self.grant.scopes:
            raise Problem(
                "forbidden",
                f"the operation requires the scope {scope}",
                expected=f"a token with the scope {scope}",
                got=f"a token with {', '.join(sorted(self.grant.scopes))}",
            )

    def require_queue(self, *queues: str) -> None:
        allowed = self.grant.queues
        if allowed is None:
            return
        for queue in queues:
            if queue not in allowed:
                raise Problem(
                    "forbidden",
                    f"the token does not permit queue {queue}",
                    expected=f"one of {', '.join(sorted(allowed))[:300]}",
                    got=queue,
                )


class Principals:
    """A cache of the principals of recent requests."""

    def __init__(
        self,
        sessions: TenantSessions,
        settings: ServiceSettings,
        counters: Counters,
        compute: ComputeThreads,
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._counters = counters  # shared by the fences of all principals
        self._compute = compute
        self._cache: OrderedDict[bytes, Principal] = OrderedDict()
        self._lookup: asyncio.Task[dict[bytes, Grant]] | None = None
        self._next_hashes: set[bytes] | None = None  # of `_lookup`, until it starts

    async def get(self, authorization: list[bytes]) -> Principal:
        """The principal of these Authorization headers; raises `unauthenticated`."""
        if not authorization:
            raise unauthenticated("expected the header Authorization, got none", "none")
        scheme, _, token = authorization[0].decode("latin-1").partition(" ")
        token = token.strip()
        if len(authorization) > 1 or scheme.lower() != "bearer" or not TOKEN.fullmatch(token):
            raise unauthenticated(
                "expected Authorization: Bearer hx_..., got another value", "another value"
            )
        return await self.find(tokens.hash_token(token))

    async def find(self, token_hash: bytes) -> Principal:
        """The principal of a token or a session; raises `unauthenticated`."""
        principal = self._cache.get(token_hash)
        if principal is not None and time.monotonic() - principal.read_at < CACHE_SECONDS:
            return principal
        grant = await self._look_up(token_hash)
        if grant is None:
            self._cache.pop(token_hash, None)
            got = "an unknown, expired or revoked token"
            raise unauthenticated(f"expected a valid token, got {got}", got)
        if principal is not None and principal.grant == grant:
            # Keeps its cached queues, its rate limit and its fences.
            principal.read_at = time.monotonic()
        else:
            principal = Principal(
                self._sessions,
                token_hash,
                grant,
                self._settings,
                counters=self._counters,
                compute=self._compute,
            )
        self._cache[token_hash] = principal
        self._cache.move_to_end(token_hash)
        while len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        return principal

    async def _look_up(self, token_hash: bytes) -> Grant | None:
        """Look several tokens up together: those that arrive during a query go into the next one.

        So guessed tokens cost one query at a time, however many there are, and a valid token among
        them waits for at most two queries.
        """
        if self._lookup is None or self._next_hashes is None:
            self._next_hashes = set()
            self._lookup = asyncio.create_task(self._query(self._lookup, self._next_hashes))
            self._lookup.add_done_callback(_retrieve_exception)
        self._next_hashes.add(token_hash)
        return (await asyncio.shield(self._lookup)).get(token_hash)

    async def _query(
        self, previous: asyncio.Task[dict[bytes, Grant]] | None, hashes: set[bytes]
    ) -> dict[bytes, Grant]:
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        self._next_hashes = None
        return await self._sessions.run_without_tenant(tokens.authenticate(hashes))


def _retrieve_exception(lookup: asyncio.Task[dict[bytes, Grant]]) -> None:
    """Asyncio logs an exception that nothing retrieves; every waiter may be gone."""
    if not lookup.cancelled():
        lookup.exception()
