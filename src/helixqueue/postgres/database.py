"""Runs calls on psycopg connections, sync and async; each call is one transaction."""

from __future__ import annotations

from select import POLLIN, poll
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from helixqueue.errors import NotInstalled, Refused

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
except ModuleNotFoundError:
    raise  # the package itself is missing
except ImportError as error:
    raise NotInstalled(
        "libpq", "binary", otherwise=", or install libpq (Debian: apt-get install libpq5)"
    ) from error

from helixqueue.identity.keys import check_name
from helixqueue.postgres.sqlstate import translate, unreached

if TYPE_CHECKING:
    from helixqueue.postgres.call import Call

T = TypeVar("T")
# Behind pgbouncer a prepared statement may reach a session that does not have it, so `pooled` turns
# preparing off. Otherwise psycopg prepares a statement at its third use.
_PREPARE_AFTER = 2


class ConnectOptions(TypedDict, total=False):
    """The arguments of `connect_options`."""

    pooled: bool
    timeout_seconds: float
    statement_seconds: float | None
    tenant: str | None


def connect_options(
    dsn: str,
    *,
    pooled: bool = False,
    timeout_seconds: float = 10,
    statement_seconds: float | None = None,
    tenant: str | None = None,
) -> dict[str, Any]:
    """Return the default options of a connection, with a time limit on each wait; the DSN wins."""
    named = parse_dsn(dsn)
    # libpq counts in whole seconds and reads 1 as 2.
    options: dict[str, Any] = {"connect_timeout": max(2, round(timeout_seconds))}
    options["application_name"] = "helixqueue"
    if "," in str(named.get("host", "")):
        # Of several hosts, connect to the primary, which changes with a failover.
        options["target_session_attrs"] = "read-write"
    session = []
    if statement_seconds is not None:
        # Limits the wait for TCP acknowledgements too, so a cut network ends a call in time.
        options["tcp_user_timeout"] = round(statement_seconds * 1000)
        session.append(f"-c statement_timeout={round(statement_seconds * 1000)}")
        # The server's side: it ends a session whose client reads nothing.
        session.append(f"-c tcp_user_timeout={round(statement_seconds * 1000)}")
    if tenant is not None:
        # Restricts a role of several tenants to one; a role bound by setting needs it.
        session.append(f"-c helix.tenant={check_name('tenant', tenant)}")
    if session and not pooled:
        # A pooler would apply the settings to other clients, or refuse them.
        options["options"] = " ".join(session)
    return {name: value for name, value in options.items() if name not in named}


def parse_dsn(dsn: str) -> dict[str, Any]:
    """Return the parts of a DSN. Errors do not quote it: it may contain a password.

    An unescaped @ or / ends a password early; its rest would be parsed as a host, port or database
    and shown as such, so such a DSN is refused.
    """
    try:
        parts = dict(conninfo_to_dict(dsn))
    except (psycopg.ProgrammingError, TypeError, AttributeError):
        raise Refused(
            "expected a DSN such as postgresql://user@host/database, got one that libpq cannot "
            "parse (not shown: it may contain a password); in a "
            "SQLAlchemy URL, remove the driver (+psycopg)"
        ) from None
    if not dsn.strip():
        raise Refused(
            "expected a DSN such as postgresql://user@host/database, got an empty one; to use "
            "PGHOST and the other variables of libpq, write postgresql://"
        )
    if "://" in dsn and _has_unescaped_password(parts):
        raise Refused(
            "expected a DSN such as postgresql://user:password@host:5432/database, got one whose "
            "host, port or database contains what looks like part of a password (not shown): "
            "escape @ as %40, / as %2F and % as %25 in the password"
        )
    return parts


def _has_unescaped_password(parts: dict[str, Any]) -> bool:
    # A host may be a directory or an abstract socket, which begins with @.
    hosts = [host for host in str(parts.get("host", "")).split(",") if host[:1] not in {"/", "@"}]
    ports = str(parts.get("port", "")).replace(",", "")
    return "@" in "".join([*hosts, str(parts.get("dbname", ""))]) or bool(ports.strip("0123456789"))


def is_idle(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether a connection is open and outside of a transaction."""
    return not connection.closed and (
        connection.pgconn.transaction_status == TransactionStatus.IDLE
    )


def is_usable(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether an idle connection can be used, without a round trip.

    A server sends an idle session nothing but its termination, so a readable socket means broken.
    """
    if not is_idle(connection):
        return False
    poller = poll()
    poller.register(connection.pgconn.socket, POLLIN)
    return not poller.poll(0)


class Database:
    """One connection that runs calls. Not safe for concurrent use by threads."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    @classmethod
    def connect(cls, dsn: str, **options: Unpack[ConnectOptions]) -> Self:
        """Open an autocommit connection: each call commits by itself."""
        arguments = connect_options(dsn, **options)
        try:
            connection = psycopg.connect(dsn, autocommit=True, **arguments)
        except psycopg.Error as error:
            raise unreached(error) from error
        connection.prepare_threshold = None if options.get("pooled") else _PREPARE_AFTER
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
    async def connect(cls, dsn: str, **options: Unpack[ConnectOptions]) -> Self:
        arguments = connect_options(dsn, **options)
        try:
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, **arguments)
        except psycopg.Error as error:
            raise unreached(error) from error
        connection.prepare_threshold = None if options.get("pooled") else _PREPARE_AFTER
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
