"""`AsyncHelixQueue`: the client for event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from helixqueue.client.async_client import AsyncClient
from helixqueue.client.database_source import EmbeddedSource
from helixqueue.client.postgres_backend_async import AsyncPostgresBackend
from helixqueue.records.ledger import GapRule, LedgerDeclaration

if TYPE_CHECKING:
    from helixqueue.client.settings import ClientSettings
    from helixqueue.fence import AsyncFence, AsyncFences, FenceOptions
    from helixqueue.ledger.feed_async import AsyncFeed
    from helixqueue.ledger.user_ledger_async import AsyncLedger
    from helixqueue.records.machine import Machine
    from helixqueue.webhook.asgi import WebhookApp
    from helixqueue.webhook.receiver_async import AsyncWebhooks
    from helixqueue.webhook.receiver_async import Effect as WebhookEffect
    from helixqueue.webhook.source import WebhookSource


class AsyncHelixQueue(AsyncClient[object]):
    """A client of one database and one tenant; tasks share it, and event loops take turns.

    ```python
    async with AsyncHelixQueue("postgresql://app@db/lab", tenant="lab") as helix:
        await helix.submit(basecall, identity="sample-1", payload=Basecall(pod5="a.pod5"))
    ```
    """

    def __init__(
        self, dsn: str | EmbeddedSource, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> None:
        backend = AsyncPostgresBackend(dsn, tenant, settings)
        super().__init__(backend)
        self._postgres = backend
        self._source = backend.source

    @classmethod
    def embedded(
        cls, directory: str | Path, tenant: str = "default", **settings: Unpack[ClientSettings]
    ) -> Self:
        """Return a client of PostgreSQL in `directory`, created or started at first use."""
        return cls(EmbeddedSource(directory), tenant, **settings)

    @property
    def dsn(self) -> str:
        """The DSN of this database, for your own connections; starts embedded servers if needed.

        The login of an embedded database has a schema for your tables, first on its search path.
        """
        return self._source.open()

    def fence(self, name: str, key: object, **options: Unpack[FenceOptions]) -> AsyncFence:
        """Run an effect once: a decorator and a context manager.

        `key` names the effect by business fields, or is a function of the arguments that returns
        them. See docs/guides/fences.md.
        """
        return self.fences.fence(name, key, **options)

    async def ledger(
        self,
        name: str,
        machine: Machine | None = None,
        *,
        strict: bool = True,
        gaps: GapRule | None = None,
        bind_payload: bool = False,
        ignore: Iterable[str] = (),
        hint: str | None = None,
    ) -> AsyncLedger:
        """Declare a ledger, and return it; without a machine, return the stored ledger.

        machine: kinds of events and the arrows between them.
        strict: refuse events that violate the machine or are older than the last one; otherwise
            they are written with the rules that they violate.
        gaps: what becomes of an event whose seq does not follow the last one: refuse, warn (written
            with the rule `gap`) or allow. By default refuse if strict, else warn.
        bind_payload: the payload is part of an event's identity.
        ignore: JSON Pointers of payload fields that do not count when events are compared.
        hint: URL of a Redis or Valkey that may skip events older than a stored one.
        See docs/guides/ledgers.md.
        """
        from helixqueue.ledger.user_ledger_async import AsyncLedger  # noqa: PLC0415 - loaded when used

        if machine is None:
            ledger = await AsyncLedger.find(self._do, self._operations, name)
        else:
            declared = LedgerDeclaration(name, machine, strict, bind_payload, tuple(ignore), gaps)
            ledger = await AsyncLedger.declare(self._do, self._operations, declared)
        if hint is not None:
            from helixqueue.ledger.seq_hint_async import AsyncSeqHint  # noqa: PLC0415 - needs redis

            ledger.use_hint(AsyncSeqHint(self._postgres.hint_key(name), hint))
        return ledger

    async def feed(
        self,
        name: str,
        *,
        ledger: str | None = None,
        queue: str | None = None,
        start: str = "beginning",
    ) -> AsyncFeed:
        """Declare a feed over a ledger, or over the batches of a queue (`*`: all); return it.

        Without a source, return the feed of this name. A new feed starts at the `beginning`, or
        `now`.
        """
        from helixqueue.ledger.feed_async import AsyncFeed  # noqa: PLC0415 - loaded when used

        feed = AsyncFeed(self._do, self._operations, name, self._postgres.pool.database)
        await feed.declare(ledger=ledger, queue=queue, start=start)
        return feed

    @cached_property
    def fences(self) -> AsyncFences:
        """Create the fences of this client, and count for metrics."""
        from helixqueue.fence import AsyncFences  # noqa: PLC0415 - loaded when used

        return AsyncFences(self._backend.run, self._operations.tenant, self._operations.actor)

    @cached_property
    def webhooks(self) -> AsyncWebhooks:
        """Receive deliveries of webhooks; the login needs `helix_webhook`."""
        from helixqueue.webhook.receiver_async import AsyncWebhooks  # noqa: PLC0415 - loaded when used

        return AsyncWebhooks(self._do, self._operations, self._postgres.pool.database)

    def webhook(self, source: str, *types: str) -> Callable[[WebhookEffect], WebhookEffect]:
        """Run a function for events of a source, in one transaction with their dedupe row.

        See docs/guides/webhooks.md.
        """
        return self.webhooks.on(source, *types)

    def webhook_app(self) -> WebhookApp:
        """Return the ASGI application that receives `POST /{source}` for these functions."""
        from helixqueue.webhook.asgi import WebhookApp  # noqa: PLC0415 - loaded when used

        return WebhookApp(self.webhooks)

    async def apply_webhook(self, source: WebhookSource) -> str:
        """Create or replace a source of webhooks: created, changed or unchanged."""
        from helixqueue.webhook.operations import apply_source  # noqa: PLC0415 - loaded when used

        definition = source.model_dump(mode="json", exclude_defaults=True)
        apply = apply_source(self._operations, source.name, definition=definition)
        return (await self._do(apply)).answer
