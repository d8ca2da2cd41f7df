"""Effects of webhooks in Python: one transaction with the dedupe row and the order mark.

```python
@helix.webhook("stripe", "invoice.paid")
async def paid(event: WebhookEvent, tx: psycopg.AsyncConnection) -> None:
    await tx.execute("update invoices set paid = true where id = %s", [event.payload["id"]])
```

An exception rolls the effect back and answers 500, so that the provider sends the event again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from helixqueue.engine import fences, webhooks
from helixqueue.engine.fences import FenceLease, Times
from helixqueue.errors import Refused, WebhookFailed
from helixqueue.failpoints import failpoint
from helixqueue.identity import is_name
from helixqueue.postgres.transaction_bounds import TransactionBound, limited_transaction_async
from helixqueue.records.lease import Token
from helixqueue.webhook.event import letter_body
from helixqueue.webhook.operations import (
    Received,
    actor_of,
    authenticate,
    stored_delivery,
    submit_event,
)
from helixqueue.webhook.source import EVERY, WebhookMapping

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import psycopg

    from helixqueue.fence.http.asgi import Header
    from helixqueue.operations.batches import Operations
    from helixqueue.postgres.database import AsyncDatabase
    from helixqueue.records.webhook import DeliveryAnswer, StoredDelivery
    from helixqueue.webhook.event import WebhookEvent

# The server ends the transaction of an effect that is silent for longer; providers wait for 3 to
# 30 seconds.
EFFECT_SECONDS: Final = 10.0
_LIMITS: Final = TransactionBound(silent=EFFECT_SECONDS)
Effect = Callable[["WebhookEvent", "psycopg.AsyncConnection[Any]"], Awaitable[str | None]]


class AsyncWebhooks:
    """The effects of one application, and what receives deliveries for them."""

    def __init__(
        self,
        do: Callable[[Any], Awaitable[Any]],
        operations: Operations,
        connection: Callable[[], AbstractAsyncContextManager[AsyncDatabase]],
    ) -> None:
        self._do, self._operations, self._connection = do, operations, connection
        self._effects: dict[tuple[str, str], Effect] = {}

    def on(self, source: str, *types: str) -> Callable[[Effect], Effect]:
        """Register an effect for the types of a source; `*` stands for every other type.

        The effect may return the id that it has in your tables.
        """
        if not types:
            raise Refused(f"webhook {source}: expected event types or '*', got none")

        def register(effect: Effect) -> Effect:
            for kind in types:
                if self._effects.setdefault((source, kind), effect) is not effect:
                    raise Refused(f"webhook {source}: expected one effect of {kind}, got a second")
            return effect

        return register

    async def receive(
        self, source: str, headers: list[Header], body: bytes
    ) -> tuple[Received, DeliveryAnswer | None]:
        """Process one delivery; no answer for a challenge, and for an event without a mapping."""
        received = await self.authenticate(source, headers, body)
        return received, await self.process(received)

    async def authenticate(self, source: str, headers: list[Header], body: bytes) -> Received:
        find = webhooks.find_secrets(tenant=self._operations.tenant, name=source)
        stored = await self._do(self._operations.ask(find)) if is_name(source) else None
        return authenticate(stored, headers, body)

    async def process(self, received: Received) -> DeliveryAnswer | None:
        source, event = received.source.name, received.event
        if event is None:
            return None
        effect = self._effects.get((source, event.type)) or self._effects.get((source, EVERY))
        if effect is not None:
            return await self._execute(effect, received, event)
        if received.mapping is None:
            return None
        answer: DeliveryAnswer = await self._do(submit_event(self._operations, received))
        return answer

    async def _execute(
        self, effect: Effect, received: Received, event: WebhookEvent
    ) -> DeliveryAnswer:
        source, mapping = received.source, received.mapping or WebhookMapping(events=(event.type,))
        tenant = self._operations.tenant
        letter = letter_body(mapping, event, None, None)
        delivery = stored_delivery(tenant, source, event, received.mapping, letter)
        if received.poison is not None:
            reason, detail = received.poison.reason, received.poison.detail
            bury = webhooks.submit_delivery(
                delivery, None, actor=actor_of(source), reason=reason, detail=detail
            )
            answer: DeliveryAnswer = await self._do(self._operations.ask(bury, repeatable=False))
            return answer
        return await self._execute_once(effect, event, delivery, actor_of(source))

    async def _execute_once(
        self, effect: Effect, event: WebhookEvent, delivery: StoredDelivery, actor: str
    ) -> DeliveryAnswer:
        failure: Exception | None = None
        failed = WebhookFailed(f"the effect of {event.source} {event.type} failed")
        async with self._connection() as database, limited_transaction_async(database, _LIMITS):
            answer = await database.run(webhooks.begin_delivery(delivery, actor=actor))
            if answer.decision == "granted":
                try:
                    async with database.connection.transaction():
                        name = await effect(event, database.connection)
                        ended = webhooks.end_delivery(delivery, answer, actor=actor, effect=name)
                        answer = await database.run(ended)
                except Exception as error:
                    if database.connection.closed:
                        raise failed from error
                    failure = error
                    await database.run(_release(delivery, answer, actor, error))
        failpoint("webhook.committed")
        if failure is not None:
            raise failed from failure
        return answer


def _release(
    delivery: StoredDelivery, granted: DeliveryAnswer, actor: str, error: Exception
) -> Any:  # noqa: ANN401 - a call
    """Free the event for the next delivery; the fence keeps when it was first seen."""
    assert granted.key is not None  # noqa: S101 - of every granted delivery
    assert granted.epoch is not None  # noqa: S101
    assert granted.number is not None  # noqa: S101
    lease = FenceLease(granted.key, Token(granted.epoch, delivery.nonce, granted.number))
    return fences.release(lease, Times(), actor=actor, detail=type(error).__name__)
