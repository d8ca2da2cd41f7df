"""Runs calls for a token's tenant, on connections that serve many tenants by turns.

A connection of the service sees no row by itself. Each transaction begins with `assume`, which
looks the token up and names its tenant until the transaction ends, so the database decides for
whom, request by request, through a pooler too. It costs no round trip: the statements go out
together, and PostgreSQL makes one transaction of what comes before the end of a pipeline.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg
from psycopg.pq import ExecStatus

from helixqueue.engine.arrays import numbers
from helixqueue.engine.revision import SchemaRevision
from helixqueue.engine.statements import statements
from helixqueue.errors import HelixError, NotPermitted, Refused, Unavailable
from helixqueue.identity import stored_public_id
from helixqueue.postgres.call import Call, Row
from helixqueue.postgres.database import AsyncDatabase
from helixqueue.postgres.pool import AsyncPool
from helixqueue.postgres.sqlstate import translate
from helixqueue.records.read_rows import WorkerPage, WorkerRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Sequence
    from datetime import datetime
    from uuid import UUID

    from helixqueue.records.rows import LeaseRef, Settlement

T = TypeVar("T")
_SQL = {
    name: one.sql for name, one in statements("helixqueue.engine", "tenant_session.sql").items()
}
# Past its own time limit a statement is given up from this side: the server may be frozen.
GRACE_SECONDS = 1.0
CHANGES_MAX = 1_000
SPAN_MAX = 2**40  # transactions: all there will be
WORKERS_LOOK = 2_000  # how many of them a page looks at for those that were there since a time


class InvalidToken(NotPermitted):
    """The token is unknown, expired or revoked at this moment."""


class TenantSessions:
    """The service's connections: few, shared, each anybody's for one transaction."""

    def __init__(
        self,
        dsn: str,
        *,
        connections: int,
        connect_seconds: float,
        statement_seconds: float,
        wait_seconds: float,
        pooled: bool,
    ) -> None:
        async def connect() -> AsyncDatabase:
            return await AsyncDatabase.connect(
                dsn,
                pooled=pooled,
                timeout_seconds=connect_seconds,
                statement_seconds=statement_seconds,
            )

        self.connect = connect
        self._pool = AsyncPool(connect, size=connections, wait_seconds=wait_seconds)
        self._seconds = statement_seconds
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(
        self, token_hash: bytes, call: Call[T], *more: Call[Any], tenant: str | None = None
    ) -> T:
        """Run `call`, and `more` in the same transaction, for the tenant of the token.

        `tenant` names it to the other ones that want a connection, and for nothing else.
        """
        args = (token_hash, _milliseconds(self._seconds))
        assume: Call[Any] = Call(_SQL["assume"], args, list)

        async def work() -> T:
            async with self._pool.database(tenant) as database:
                rows = await self._bounded(database, _piped(database, [assume, call, *more]))
            return call.read(rows[0])

        return await self._to_its_end(work())

    async def ask(self, call: Call[T]) -> T:
        """Run a call that is about no tenant."""

        async def work() -> T:
            async with self._pool.database() as database:
                return await self._bounded(database, database.run(call))

        return await self._to_its_end(work())

    async def is_pooled(self) -> bool:
        """Whether a pooler stands before the server, whoever was told of it."""
        backend = Call(_SQL["backend"], (), lambda rows: rows[0][0])

        async def work() -> bool:
            async with self._pool.database() as database:
                process = await self._bounded(database, database.run(backend))
                return bool(process != database.connection.info.backend_pid)

        return await self._to_its_end(work())

    async def close(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._pool.close()

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Whoever asked may leave in the middle; a transaction that was sent is seen to its end."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, in case nobody waits for it any more

    async def _bounded(self, database: AsyncDatabase, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds + GRACE_SECONDS):
                return await work
        except TimeoutError:
            database.connection.pgconn.finish()
            raise Unavailable(
                f"the database did not answer in {self._seconds:g} s; repeat the call",
                outcome_unknown=True,
            ) from None


async def _piped(database: AsyncDatabase, calls: Sequence[Call[Any]]) -> list[list[Row]]:
    """The rows of each statement but the first; one transaction, one round trip."""
    connection = database.connection
    cursors = [connection.cursor(binary=True) for _ in calls]
    failure: HelixError | None = None
    try:
        async with connection.pipeline():
            for cursor, call in zip(cursors, calls, strict=True):
                await cursor.execute(call.sql, call.args)
    except psycopg.Error as error:
        failure = translate(error)
    # Without a tenant nothing was seen or done, whatever the statements behind it say.
    answer = cursors[0].pgresult
    if answer is not None and answer.status == ExecStatus.TUPLES_OK:
        [(entered, _)] = await cursors[0].fetchall()
        if not entered:
            raise InvalidToken("the token is unknown, expired or revoked")
    if failure is not None:
        raise failure
    return [await cursor.fetchall() for cursor in cursors[1:]]


def assume(connection: psycopg.Connection[Any], token_hash: bytes, seconds: float) -> None:
    """The first statement of a transaction in a thread of its own: names the token's tenant."""
    args = (token_hash, _milliseconds(seconds))
    row = connection.execute(_SQL["assume"].encode(), args).fetchone()
    if row is None or not row[0]:
        raise InvalidToken("the token is unknown, expired or revoked")


def bound(connection: psycopg.Connection[Any], seconds: float) -> None:
    """From here on, a statement of this transaction may take so long."""
    connection.execute(_SQL["bound"].encode(), (_milliseconds(seconds),))


def _milliseconds(seconds: float) -> str:
    """0 would be no bound at all."""
    return str(max(1, round(seconds * 1000)))


def worker_name(tenant: str, worker: str) -> str:
    """A worker as `hello` says it over a login that serves many tenants."""
    return f"{tenant}/{worker}"


def workers(
    *, tenant: str, since: datetime | None = None, after: str | None = None, limit: int = 50
) -> Call[WorkerPage]:
    """A page of a tenant's workers, by name; `since` takes those that said hello since then."""
    args = {
        "tenant": tenant,
        "since": since or "-infinity",
        "after": after or "",
        "limit": limit + 1,  # one more tells whether there is another page
        "look": max(WORKERS_LOOK, limit + 1),
    }

    def read(rows: list[Row]) -> WorkerPage:
        found = [
            WorkerRow(name, role, json.loads(free), *rest)
            for _, name, role, free, *rest in rows
            if name is not None
        ]
        onward = found[limit - 1].name if len(found) > limit else rows[0][0]
        return WorkerPage(tuple(found[:limit]), onward)

    return Call(_SQL["workers"], args, read)


class Name(NamedTuple):
    """What people call a lease."""

    batch_id: UUID
    queue: str
    run: int | None
    attempt: int | None  # none: nobody ever held it by that token


def names(held: Sequence[LeaseRef | Settlement]) -> Call[dict[int, Name]]:
    """By the internal numbers of batches, those of the tenant."""
    return Call(
        _SQL["names"],
        (
            numbers([one.batch for one in held]),
            numbers([one.token.epoch for one in held]),
            numbers([one.token.number for one in held]),
        ),
        lambda rows: {
            batch: Name(stored_public_id(key), queue, run, attempt)
            for batch, key, queue, run, attempt in rows
        },
    )


class Cursor(NamedTuple):
    """Where a reader of changes stands: behind one event.

    No event behind it is older than `since`; what the reader knows of that moves with it.
    """

    xid: int
    batch: int
    version: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """One event, as a stream tells it."""

    xid: int
    batch: int
    version: int
    batch_id: UUID
    queue: str
    at: datetime
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    attempt: int
    detail: str | None
    late: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes behind a cursor.

    Every transaction below `reached` ended; this look was at those below `edge`.
    """

    rows: tuple[Change, ...]
    reached: int
    edge: int
    now: datetime


def changes(
    cursor: Cursor, *, queue: str | None = None, limit: int = 500, span: int = SPAN_MAX
) -> Call[Changes]:
    """At most `limit` changes, of the next `span` transactions: no others are looked at."""
    if not 1 <= limit <= CHANGES_MAX:
        raise Refused(f"expected 1 to {CHANGES_MAX} changes, got {limit}")
    args = {
        "xid": cursor.xid,
        "batch": cursor.batch,
        "version": cursor.version,
        "queue": queue,
        "limit": limit,
        "span": span,
    }

    def read(rows: list[Row]) -> Changes:
        found = tuple(Change(*row[3:]) for row in rows if row[3] is not None)
        return Changes(found, *rows[0][:3])

    return Call(_SQL["changes"], args, read)


def gone(cursor: Cursor) -> Call[bool]:
    """Whether retention took away what stood behind a cursor."""
    return Call(_SQL["gone"], cursor._asdict(), lambda rows: bool(rows[0][0]))


class Mark(NamedTuple):
    """Every transaction behind `xid` began to write after `at`."""

    xid: int
    at: datetime


def mark() -> Call[Mark]:
    return Call(_SQL["mark"], (), lambda rows: Mark(*rows[0]))


def fit_to_serve() -> Call[bool]:
    """Whether this login is bound by setting alone, so that row-level security holds."""
    return Call(_SQL["ready"], (), lambda rows: bool(rows[0][0]))


def schema() -> Call[SchemaRevision | None]:
    """Of the database; revision.py judges it."""
    return Call(_SQL["revision"], (), lambda rows: SchemaRevision(*rows[0]) if rows else None)
