"""Runs calls on psycopg, sync and async; one call is one transaction, or part of the caller's."""

from __future__ import annotations

from select import POLLIN, poll
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from helixqueue.errors import Refused
from helixqueue.identity.keys import check_name
from helixqueue.postgres.sqlstate import translate, unreached

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call

T = TypeVar("T")
# Through pgbouncer a prepared statement may meet a session that never saw it: `pooled` turns
# preparing off. Otherwise psycopg prepares what it sees for the third time.
_PREPARE_AFTER = 2


def connect_options(
    dsn: str,
    *,
    pooled: bool = False,
    timeout_seconds: float = 10,
    statement_seconds: float | None = None,
    tenant: str | None = None,
) -> dict[str, Any]:
    """What every connection of ours has unless the DSN says otherwise: a bound on each wait."""
    named = parsed(dsn)
    # libpq counts in whole seconds and reads 1 as 2.
    options: dict[str, Any] = {"connect_timeout": max(2, round(timeout_seconds))}
    options["application_name"] = "helixqueue"
    if "," in str(named.get("host", "")):
        # Of several servers, the one that takes writes: after a failover another than before.
        options["target_session_attrs"] = "read-write"
    session = []
    if statement_seconds is not None:
        # Bytes that nobody acknowledges: a cut cable ends a call as surely as a slow server.
        options["tcp_user_timeout"] = round(statement_seconds * 1000)
        session.append(f"-c statement_timeout={round(statement_seconds * 1000)}")
    if tenant is not None:
        # Narrows a role that may act for several, and is what a role bound by setting needs.
        session.append(f"-c helix.tenant={check_name('tenant', tenant)}")
    if session and not pooled:
        # A pooler hands the settings of one session to another, or refuses them.
        options["options"] = " ".join(session)
    return {name: value for name, value in options.items() if name not in named}


def parsed(dsn: str) -> dict[str, Any]:
    """The parts of a DSN; the error repeats nothing of it, for there may be a password inside.

    A password with a bare @ or / in it ends early, and its rest would be taken for a host, a port
    or a database, and shown as such.
    """
    try:
        parts = dict(conninfo_to_dict(dsn))
    except (psycopg.ProgrammingError, TypeError, AttributeError):
        raise Refused(
            "expected a DSN such as postgresql://user@host/database, got one that libpq cannot "
            "read (not shown: it may hold a password; SQLAlchemy's postgresql+driver:// is not one)"
        ) from None
    if not dsn.strip():
        raise Refused(
            "expected a DSN such as postgresql://user@host/database, got an empty one; to go by "
            "PGHOST and the other variables of libpq, write postgresql://"
        )
    if "://" in dsn and _password_spilt(parts):
        raise Refused(
            "expected a DSN such as postgresql://user:password@host:5432/database, got one whose "
            "host, port or database holds what looks like the rest of a password (not shown): "
            "write @ as %40, / as %2F and % as %25 in the password"
        )
    return parts


def _password_spilt(parts: dict[str, Any]) -> bool:
    # A host may be a directory or an abstract socket, which begins with @.
    hosts = [host for host in str(parts.get("host", "")).split(",") if host[:1] not in {"/", "@"}]
    ports = str(parts.get("port", "")).replace(",", "")
    return "@" in "".join([*hosts, str(parts.get("dbname", ""))]) or bool(ports.strip("0123456789"))


def is_fit(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection that rests in a pool can be used; asks nobody.

    A server has nothing to say to an idle session but that it ends, so readable means broken.
    """
    if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
        return False
    poller = poll()
    poller.register(connection.pgconn.socket, POLLIN)
    return not poller.poll(0)


class Database:
    """One connection that runs calls. Not for two threads at a time."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @classmethod
    def connect(
        cls,
        dsn: str,
        *,
        pooled: bool = False,
        timeout_seconds: float = 10,
        statement_seconds: float | None = None,
        tenant: str | None = None,
    ) -> Self:
        """An autocommit connection: each call commits by itself."""
        options = connect_options(
            dsn,
            pooled=pooled,
            timeout_seconds=timeout_seconds,
            statement_seconds=statement_seconds,
            tenant=tenant,
        )
        try:
            connection = psycopg.connect(dsn, autocommit=True, **options)
        except psycopg.Error as error:
            raise unreached(error) from error
        connection.prepare_threshold = None if pooled else _PREPARE_AFTER
        return cls(connection)

    def run(self, call: Call[T]) -> T:
        try:
            rows = self.connection.execute(call.sql, call.args, binary=True).fetchall()
        except psycopg.Error as error:
            raise translate(error) from error
        return call.read(rows)

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncDatabase:
    """The same on an async connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        pooled: bool = False,
        timeout_seconds: float = 10,
        statement_seconds: float | None = None,
        tenant: str | None = None,
    ) -> Self:
        options = connect_options(
            dsn,
            pooled=pooled,
            timeout_seconds=timeout_seconds,
            statement_seconds=statement_seconds,
            tenant=tenant,
        )
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, **options)
        except psycopg.Error as error:
            raise unreached(error) from error
        connection.prepare_threshold = None if pooled else _PREPARE_AFTER
        return cls(connection)

    async def run(self, call: Call[T]) -> T:
        try:
            cursor = await self.connection.execute(call.sql, call.args, binary=True)
            rows = await cursor.fetchall()
        except psycopg.Error as error:
            raise translate(error) from error
        return call.read(rows)

    async def close(self) -> None:
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
