"""One snapshot of the database, for readers that compare tables with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from helixqueue.postgres.sqlstate import translate

if TYPE_CHECKING:
    from psycopg import Connection


@contextmanager
def snapshot(
    connection: Connection[Any], enter: Callable[[Connection[Any]], None] | None = None
) -> Iterator[None]:
    """Run the block in a REPEATABLE READ READ ONLY transaction: all statements see one snapshot.

    `enter` runs the first statement, which sets the tenant on connections that serve many. The
    connection must be idle: inside a transaction it would use an older snapshot.
    """
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise ValueError("snapshot: expected an idle connection, got one inside a transaction")
    previous = connection.isolation_level, connection.read_only
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    try:
        with connection.transaction():
            if enter is not None:
                enter(connection)
            # These readers run for long. The server ends their query when the client is gone.
            connection.execute("set local client_connection_check_interval = '1s'")
            # Their output may wait for a reader. They hold no row, but an old snapshot.
            connection.execute("set local idle_in_transaction_session_timeout = '1h'")
            yield
    except psycopg.Error as error:
        # Nothing was written, so the outcome is known.
        raise translate(error, sent=False) from error
    finally:
        if not connection.closed:
            connection.isolation_level, connection.read_only = previous
