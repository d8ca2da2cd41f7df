# Generated from postgres_backend_async.py by `make twins`: change that file.
"""The backend of clients that connect to PostgreSQL."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from helixqueue.client.postgres_connections import PostgresConnections
from helixqueue.operations.instructions import Instruction, Sleep, run_instructions
from helixqueue.postgres.caller_transaction import run_within
from helixqueue.postgres.database import Database
from helixqueue.postgres.pool import Pool
from helixqueue.postgres.transaction_bounds import limited_transaction

if TYPE_CHECKING:
    from helixqueue.client.database_source import EmbeddedSource
    from helixqueue.client.settings import ClientSettings
    from helixqueue.postgres.call import Call
    from helixqueue.queues import Queue

T = TypeVar("T")


class PostgresBackend(PostgresConnections):
    """A connection pool that threads share."""

    def __init__(self, dsn: str | EmbeddedSource, tenant: str, settings: ClientSettings) -> None:
        super().__init__(dsn, tenant, settings)
        self.pool = Pool(
            self._connect,
            size=self._resolved.connections,
            wait_seconds=self._resolved.wait_seconds,
        )

    def _connect(self) -> Database:
        # Embedded servers may take seconds to start; other threads go on meanwhile.
        dsn = self.source.open()
        return Database.connect(dsn, **self._connection)

    def open(self) -> None:
        self.source.open()

    def close(self) -> None:
        self._close_hints()
        self.pool.close()
        self.source.close()

    def disconnect(self) -> None:
        self.pool.close()

    def run(self, call: Call[T]) -> T:
        with self.pool.database() as database:
            return database.run(call)

    def perform(self, instruction: Instruction) -> Any:
        if isinstance(instruction, Sleep):
            time.sleep(instruction.seconds)
            return None
        if instruction.within is not None:
            return run_within(instruction.within, instruction.call)
        with self.pool.database() as database:
            if instruction.call.is_chunk:
                with limited_transaction(database):
                    return database.run(instruction.call)
            return database.run(instruction.call)

    def declare(self, queue: Queue[Any, Any] | str) -> None:
        run_instructions(self.operations.known(queue), self.perform)
