"""The middleware: a keyed request takes effect once, and every repeat gets the same answer.

```python
helix = AsyncHelixQueue(dsn, tenant="shop")
app = IdempotencyMiddleware(app, helix=helix, policy="idempotency.yml")
```

Put it behind authentication, so that who may not ask is turned away before any answer is repeated.
It is pure ASGI: two commits a keyed request, nothing for others.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from helixqueue.errors import NotInstalled
from helixqueue.fence.http.asgi import App, Disconnected, Receive, Scope, Send, respond
from helixqueue.fence.http.execute import KeyedExecution, Probe, Redact
from helixqueue.fence.http.header import values
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.request_key import OfScope, Owners, read
from helixqueue.fence.http.status import asked_for, tell_state
from helixqueue.fence.policy import Policy
from helixqueue.fence.runner import to_its_end

if TYPE_CHECKING:
    from pathlib import Path

    from helixqueue.fence.fence import AsyncFences
    from helixqueue.fence.hint import SealedCache
    from helixqueue.fence.policy import Route

log = logging.getLogger("helixqueue.fence.http")


class IdempotencyMiddleware:
    """Wraps any ASGI application.

    `tenant` and `principal` are functions of the scope (sync or async) that name whose request it
    is, as authentication verified it; without `tenant`, all are the client's one tenant. `redact`
    changes what is kept of a body. `probe` is given scope and body of a request that is in doubt
    and says `Applied(Stored.of(...))`, `NOT_APPLIED` or `UNKNOWN`. `hint` repeats sealed answers
    from Redis or Valkey.
    """

    def __init__(
        self,
        app: App,
        helix: Any,  # noqa: ANN401 - an AsyncHelixQueue, which stands above us
        policy: Policy | str | Path | None = None,
        *,
        tenant: OfScope | None = None,
        principal: OfScope | None = None,
        redact: Redact | None = None,
        probe: Probe | None = None,
        hint: SealedCache | None = None,
    ) -> None:
        self.app = app
        self.policy = policy if isinstance(policy, Policy) else _read(policy)
        fences: AsyncFences = helix.fences
        self.fences = fences
        self.redact = redact
        self.probe = probe
        self.hint = hint
        if hint is not None and hint.counters is None:
            hint.counters = fences.counters
        self._owners = Owners(fences.actor, fences.tenant, tenant, principal)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None
        if scope["type"] == "http":
            if (fence := asked_for(self.policy, scope)) is not None:
                await tell_state(self, self._owners, fence, scope, send)
                return
            route = self.policy.route(scope["method"], scope["path"])
        if route is None or not (route.required or values(scope["headers"], self.policy.header)):
            await self.app(scope, receive, send)
            return
        journal = RequestJournal(self, route)
        try:
            keyed = await read(self.policy, route, self._owners, scope, receive)
        except Disconnected:
            return
        if isinstance(keyed, FenceProblem):
            status, headers, body = keyed.response()
            journal.decided(keyed.kind, status=status)
            await respond(send, status, headers, body)
            return
        # From here on neither a client that goes away nor a server that cancels stops us.
        await to_its_end(KeyedExecution(self, keyed, journal, scope, send).perform())


def _read(policy: str | Path | None) -> Policy:
    if policy is None:
        return Policy()
    try:
        from helixqueue.fence.policy_file import read_policy  # noqa: PLC0415 - it brings PyYAML
    except ImportError as error:
        raise NotInstalled(error.name, "http") from error
    return read_policy(policy)


class RequestJournal:
    """What is counted and logged of one request: never more than the policy names."""

    def __init__(self, ours: IdempotencyMiddleware, route: Route) -> None:
        self._counters = ours.fences.counters
        self._fields = ours.policy.log_fields
        self._began = time.monotonic()
        self._route = route
        self._facts: dict[str, object] = {"route": route.name, "source_type": route.kind}

    def know(self, **facts: object) -> None:
        self._facts |= facts

    def decided(self, decision: str, **facts: object) -> None:
        seconds = time.monotonic() - self._began
        self._counters.decided("http", self._route.name, decision)
        if decision == "executed":
            self._counters.took("http", self._route.name, "sealed", seconds)
        self._facts |= {"decision": decision, "seconds": round(seconds, 6), **facts}
        if log.isEnabledFor(logging.INFO):
            shown = {name: self._facts.get(name) for name in self._fields}
            log.info("idempotency %s", decision, extra={"idempotency": shown})
