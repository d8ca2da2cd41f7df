"""The middleware: a keyed request takes effect once, and every repeat gets the same response.

```python
helix = AsyncHelixQueue(dsn, tenant="shop")
app = IdempotencyMiddleware(app, helix=helix, policy="idempotency.yml")
```

Put it behind authentication, so that every repeat is authorised as well. It is pure ASGI: a keyed
request costs two commits, every other request nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helixqueue.errors import NotInstalled
from helixqueue.fence.decision_log import DecisionLog
from helixqueue.fence.http.application import (
    EndpointNames,
    demand_matches,
    innermost,
    path_seen,
)
from helixqueue.fence.http.asgi import (
    App,
    Disconnected,
    Receive,
    Scope,
    Send,
    header_values,
    respond,
)
from helixqueue.fence.http.database_execution import LocalExecution, LocalTransaction
from helixqueue.fence.http.effect import SCOPE_KEY
from helixqueue.fence.http.execute import FencedApp, KeyedExecution, Probe, Redact
from helixqueue.fence.http.problem import FenceProblem
from helixqueue.fence.http.request_key import OfScope, Owners, read_request
from helixqueue.fence.http.session_execution import SessionExecution, UnfencedSession
from helixqueue.fence.http.session_transaction import Sessions, SessionSource, SessionTransaction
from helixqueue.fence.http.status import requested_fence, send_state
from helixqueue.fence.policy import UNLISTED, Policy
from helixqueue.fence.shield import shielded
from helixqueue.log.lines import event

if TYPE_CHECKING:
    from helixqueue.fence.fence_async import AsyncFences
    from helixqueue.fence.hint import SealedCache
    from helixqueue.fence.metrics import Counters
    from helixqueue.fence.policy import Route

log = logging.getLogger("helixqueue.fence.http")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # no effect to repeat


class IdempotencyMiddleware:
    """Wraps any ASGI application.

    `tenant` and `principal` are functions of the scope (sync or async) that return the verified
    owner of the request; without `tenant`, every request belongs to the client's tenant. `redact`
    changes the body that is kept. `probe` gets scope and body of a request in doubt and returns
    `Applied(StoredResponse.of(...))`, `NOT_APPLIED` or `UNKNOWN`. `hint` repeats sealed answers
    from Redis or Valkey. `sessions` opens the sessions of routes with `effect: session`: a
    sessionmaker or async_sessionmaker of SQLAlchemy, or a function that returns a connection of
    psycopg.
    """

    def __init__(
        self,
        app: App,
        helix: Any,  # noqa: ANN401 - an AsyncHelixQueue, of a layer above this one
        policy: Policy | str | Path | None = None,
        *,
        tenant: OfScope | None = None,
        principal: OfScope | None = None,
        redact: Redact | None = None,
        probe: Probe | None = None,
        hint: SealedCache | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        policy = policy if isinstance(policy, Policy) else _read_policy(policy)
        self.policy = policy
        demand_matches(policy, app, has_sessions=sessions is not None)
        self._names = EndpointNames(app)
        # FastAPI(root_path=...) removes this prefix by itself, after this middleware.
        self._root: str = getattr(innermost(app), "root_path", "")
        fences: AsyncFences = helix.fences
        if hint is not None and hint.counters is None:
            hint.counters = fences.counters
        self.fenced = FencedApp(
            app,
            fences,
            policy,
            Owners(fences.actor, fences.tenant, tenant, principal),
            redact,
            probe,
            hint,
            None if sessions is None else SessionSource(sessions),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fenced, policy = self.fenced, self.policy
        if scope["type"] != "http":
            await fenced.app(scope, receive, send)
            return
        if self._root:
            scope = {**scope, "root_path": self._root}
        if (fence := requested_fence(policy, scope)) is not None:
            await send_state(fenced, fence, scope, send)
            return
        path = path_seen(scope)
        route = policy.route(scope["method"], path)
        has_key = bool(header_values(scope["headers"], policy.header))
        if route is None and has_key and scope["method"] not in _SAFE_METHODS:
            if not await is_refused_unlisted(policy, fenced.fences.counters, scope, send):
                await self._unfenced(None, scope, receive, send)
        elif route is None or not (has_key or route.required):
            await self._unfenced(route, scope, receive, send)
        else:
            transaction = self._transaction() if route.effect == "session" else None
            series = self._names.of(route, path)
            await execute_once(
                fenced, route, scope, receive, send, transaction=transaction, series=series
            )

    def _transaction(self) -> SessionTransaction:
        assert self.fenced.sessions is not None  # noqa: S101 - checked at the start
        return SessionTransaction(self.fenced.sessions, self.policy.ttl.transaction_seconds)

    async def _unfenced(
        self, route: Route | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if route is not None and route.effect == "session":
            session = UnfencedSession(self.fenced, route, self._transaction())
            await session.perform(scope, receive, send)
        else:
            await self.fenced.app({**scope, SCOPE_KEY: None}, receive, send)


async def is_refused_unlisted(policy: Policy, counters: Counters, scope: Scope, send: Send) -> bool:
    """Count and log a request whose client relies on a key that protects nothing here.

    Responds, and returns True, unless the policy lets such requests pass.
    """
    refused = policy.unlisted == "refuse"
    decision = "key-not-accepted" if refused else "unlisted"
    counters.count_decision("http", UNLISTED, decision)
    event(
        log, logging.WARNING, "fence", fence=UNLISTED, decision=decision, method=scope["method"],
        path=path_seen(scope),
    )  # fmt: skip
    if refused:
        detail = "this operation is not fenced, so the key would not prevent a second effect"
        await respond(send, *FenceProblem(decision, detail).response())
    return refused


async def execute_once(
    fenced: FencedApp,
    route: Route,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    transaction: LocalTransaction | None = None,
    series: str | None = None,
) -> None:
    """Respond to a keyed request: execute it, or repeat its response.

    `transaction` is for an application whose effects are all in this database: the transaction of
    one request, which the application uses for every call. `series` is the name in metrics, in
    place of that of the fence.
    """
    policy = fenced.policy
    counters, fields = fenced.fences.counters, policy.log_fields
    decisions = DecisionLog(counters, log, "http", route.name, fields, series=series)
    decisions.add(source_type=route.kind)
    try:
        request = await read_request(policy, route, fenced.owners, scope, receive)
    except Disconnected:
        return
    if isinstance(request, FenceProblem):
        status, headers, body = request.response()
        decisions.record(request.kind, status=status)
        await respond(send, status, headers, body)
        return
    # From here on neither a disconnect nor a cancellation stops the request.
    parts = (fenced, request, decisions, scope, send)
    if transaction is None:
        await shielded(KeyedExecution(*parts).perform())
    elif isinstance(transaction, SessionTransaction):
        await shielded(SessionExecution(*parts, transaction=transaction).perform())
    else:
        await shielded(LocalExecution(*parts, transaction=transaction).perform())


def _read_policy(policy: str | Path | None) -> Policy:
    if policy is None:
        return Policy()
    try:
        from helixqueue.fence.policy_file import read_policy  # noqa: PLC0415 - needs PyYAML
    except ImportError as error:
        raise NotInstalled(error.name, "http") from error
    return read_policy(policy)
