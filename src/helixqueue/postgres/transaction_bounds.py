"""Time limits of the transactions that the product keeps open between statements.

A process that is stopped inside a transaction keeps its row locks. The server ends a transaction
that is idle. It does not end one whose client reads no answer (except over TCP), nor, before
PostgreSQL 17, one in a pipeline without its end. So a product transaction also announces its limit,
and sessions of the same login end those past it: a session after a lock time-out, a consumer of a
feed that waits, a service and a worker at times (docs/decisions, 0058).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from helixqueue.errors import Retryable
from helixqueue.postgres.call import Call
from helixqueue.postgres.sqlstate import translate
from helixqueue.postgres.statements import sql_texts

if TYPE_CHECKING:
    from helixqueue.postgres.database import AsyncDatabase, Database

_SQL = sql_texts("helixqueue.postgres", "transaction_bounds.sql")
LOCK_SECONDS: Final = 2.0
LOCK_TIMEOUT: Final = "55P03"


@dataclass(frozen=True, slots=True)
class TransactionBound:
    """Limits in seconds; None keeps the setting of the session."""

    silent: float  # the server waits for the client; announced to other sessions of the login
    total: float | None = None  # PostgreSQL 17 and later
    lock: float | None = None  # for a row lock

    def call(self) -> Call[None]:
        """The first statement of the transaction."""
        silent = _milliseconds(self.silent)
        args = (silent, silent, _milliseconds(self.total), _milliseconds(self.lock), silent)
        return Call(_SQL["limit_transaction"], args, lambda _: None)


# Transactions in which only code of the product runs.
OWN: Final = TransactionBound(silent=10.0, total=60.0, lock=LOCK_SECONDS)
END_OVERDUE: Final[Call[list[int]]] = Call(
    _SQL["end_overdue"], (), lambda rows: [pid for (pid,) in rows]
)


@contextmanager
def limited_transaction(database: Database, bound: TransactionBound = OWN) -> Iterator[None]:
    """Run the block in a transaction with limits; after a lock time-out end overdue holders."""
    try:
        with database.connection.transaction():
            database.run(bound.call())
            yield
    except psycopg.Error as error:  # of BEGIN or COMMIT
        raise translate(error) from error
    except Retryable as error:
        if getattr(error.__cause__, "sqlstate", None) == LOCK_TIMEOUT:
            database.run(END_OVERDUE)
        raise


@asynccontextmanager
async def limited_transaction_async(
    database: AsyncDatabase, bound: TransactionBound = OWN
) -> AsyncIterator[None]:
    """`limited_transaction` for event loops."""
    try:
        async with database.connection.transaction():
            await database.run(bound.call())
            yield
    except psycopg.Error as error:
        raise translate(error) from error
    except Retryable as error:
        if getattr(error.__cause__, "sqlstate", None) == LOCK_TIMEOUT:
            await database.run(END_OVERDUE)
        raise


def _milliseconds(seconds: float | None) -> str | None:
    """At least 1: PostgreSQL takes 0 as no limit."""
    return None if seconds is None else str(max(1, round(seconds * 1000)))
