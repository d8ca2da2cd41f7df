"""What the backends of clients on PostgreSQL have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helixqueue.client.database_source import DatabaseSource, EmbeddedSource, ServerSource
from helixqueue.client.settings import ResolvedSettings
from helixqueue.engine.call_set import POSTGRES_CALLS
from helixqueue.errors import Refused
from helixqueue.operations.batches import Operations
from helixqueue.postgres.database import Database

if TYPE_CHECKING:
    from helixqueue.client.asynchronous import AsyncHelixQueue
    from helixqueue.client.settings import ClientSettings
    from helixqueue.client.sync import HelixQueue
    from helixqueue.ledger.hint_key import HintKeys
    from helixqueue.transport.protocol import Transport
    from helixqueue.worker.options import WorkerOptions

# Connections of a worker besides its claim calls: presence, schemas, releases.
MORE_CONNECTIONS = 2


class PostgresConnections:
    """Where the database is, and what its clients share whether they use threads or tasks."""

    def __init__(self, dsn: str | EmbeddedSource, tenant: str, settings: ClientSettings) -> None:
        self._origin, self._settings = (dsn, tenant), settings
        self._resolved = ResolvedSettings.of(settings)
        self.source: DatabaseSource = dsn if isinstance(dsn, EmbeddedSource) else ServerSource(dsn)
        self.operations = Operations(
            POSTGRES_CALLS,
            tenant=tenant,
            actor=self._resolved.actor,
            retry_seconds=self._resolved.retry_seconds,
        )
        self._connection = self._resolved.connection(tenant)
        self._hint_keys: list[HintKeys] = []  # each has a connection

    def transport(self, options: WorkerOptions) -> Transport:
        from helixqueue.transport.direct import PostgresTransport  # noqa: PLC0415 - loaded when used

        tenant = None if options.all_tenants else self.operations.tenant
        return PostgresTransport(
            self.source.open(),
            worker=options.worker,
            connections=options.concurrent_calls + MORE_CONNECTIONS,
            handlers=options.slots,
            options=self._resolved.connection(tenant),
            tenant=tenant,
        )

    def connect(self) -> Database:
        """Open a connection of the caller's own."""
        return Database.connect(self.source.open(), **self._connection)

    def hint_key(self, ledger: str) -> HintKeys:
        """Return what a cache of a ledger's seqs needs of this database."""
        if self._resolved.pooled:
            raise Refused(
                "hint: expected a direct connection, got pooled=True: behind a pooler a client "
                "cannot tell that its database was restored"
            )
        from helixqueue.ledger.hint_key import HintKeys  # noqa: PLC0415 - needs redis

        key = HintKeys(self.connect, self.operations.tenant, ledger)
        self._hint_keys.append(key)
        return key

    def _close_hints(self) -> None:
        for key in self._hint_keys:
            key.close()

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "direct",
            "origin": [self.source.open(), self.operations.tenant],
            "settings": self._settings,
        }

    def sync_client(self) -> HelixQueue:
        from helixqueue.client.sync import HelixQueue  # noqa: PLC0415 - loaded when used

        return HelixQueue(*self._origin, **self._settings)

    def async_client(self) -> AsyncHelixQueue:
        from helixqueue.client.asynchronous import AsyncHelixQueue  # noqa: PLC0415 - loaded when used

        return AsyncHelixQueue(*self._origin, **self._settings)
