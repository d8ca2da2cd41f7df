"""A request whose effects are all in one session of the application: `effect: session`.

Fence, effect and seal are one transaction. What is not sealed is rolled back, so the next request
with the key runs again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from helixqueue.fence.http.asgi import Header, header_text, respond
from helixqueue.fence.http.database_execution import LocalExecution
from helixqueue.fence.http.effect import SCOPE_KEY, wrong_effect
from helixqueue.fence.http.problem import problem_of
from helixqueue.fence.http.recorder import EFFECT_HEADER, Recorder
from helixqueue.postgres.tenant_sessions import TransactionLost

if TYPE_CHECKING:
    from helixqueue.engine.fences import FenceLease
    from helixqueue.errors import HelixError
    from helixqueue.fence.http.asgi import Receive, Scope, Send
    from helixqueue.fence.http.execute import FencedApp
    from helixqueue.fence.http.session_transaction import SessionTransaction
    from helixqueue.fence.policy import Route


class SessionExecution(LocalExecution):
    """Hands the session of its transaction to the endpoint."""

    _transaction: SessionTransaction
    _until_end = True  # the endpoint may read from its session until then

    def __init__(self, *args: Any, transaction: SessionTransaction) -> None:  # noqa: ANN401
        super().__init__(*args, transaction=transaction)
        # With the marker: should the endpoint commit on the connection itself and die, then the
        # fence is in doubt, and nothing runs twice.
        self._spec = replace(self._spec, start=True, alone=False)

    def session(self) -> Any:  # noqa: ANN401 - the application's class
        return self._transaction.session

    async def _release(self, lease: FenceLease, detail: str) -> None:  # noqa: ARG002
        await self._transaction.rollback()


class UnfencedSession:
    """A request without a key, where the route does not require one: a transaction alone."""

    def __init__(self, fenced: FencedApp, route: Route, transaction: SessionTransaction) -> None:
        self._fenced = fenced
        self._route = route
        self._transaction = transaction

    def session(self) -> Any:  # noqa: ANN401 - the application's class
        return self._transaction.session

    async def start_effect(self) -> str:
        raise wrong_effect(self._route.path, "marked", self._route.effect)

    async def perform(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._transaction.open()
        except TransactionLost as lost:
            await respond(send, *self._problem(lost.error, scope))
            return
        recorder = Recorder(send, self._decide, self._route.max_answer_bytes, until_end=True)
        try:
            await self._fenced.app({**scope, SCOPE_KEY: self}, receive, recorder)
        finally:
            recorder.close()
            await self._transaction.rollback()
        if recorder.failure is not None:  # which the application may have swallowed
            raise recorder.failure

    def _problem(self, error: HelixError, scope: Scope) -> tuple[int, list[Header], bytes]:
        return problem_of(error, self._fenced.policy, scope.get("root_path", "")).response()

    async def _decide(
        self, status: int, headers: list[Header], _body: bytes | None
    ) -> list[Header]:
        refused = header_text(headers, EFFECT_HEADER) == "none"
        if refused or status >= 500 or status in self._route.before_the_effect:
            await self._transaction.rollback()
        else:
            await self._transaction.commit()
        return []
