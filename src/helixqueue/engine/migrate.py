"""Migrates a database to the schema of this release.

One migrator runs at a time. Each revision is one transaction with its entry in
`helix_migration.revision`, so a failure leaves the database at the revision before. It needs a
direct connection (session locks do not work behind a pooler in transaction mode) and the database's
owner, not a superuser. Clients that only check whether the schema fits use `revision`.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import errors as pg
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from helixqueue.engine.revision import demand, head, revision_of, revisions, schema_of
from helixqueue.errors import (
    HelixError,
    InProgress,
    NotPermitted,
    Refused,
    Retryable,
    SchemaMismatch,
    Unavailable,
)
from helixqueue.postgres.database import connect_options
from helixqueue.postgres.sqlstate import unreached

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationInfo
    from psycopg import Connection

Report = Callable[[str], None]

MIGRATIONS = Path(__file__).parent / "migrations"

# One number for all databases, because PostgreSQL keeps advisory locks per database: "helixmig".
LOCK = int.from_bytes(b"helixmig", "big")
# How long a second migrator waits for the first, which may take long on a large database.
WAIT_S = 120.0
POLL_S = 0.25
# Alembic keeps its state in module variables, so threads must not run it concurrently.
_alembic_lock = threading.Lock()

HOLDER = """\
select a.pid, a.usename, a.application_name, a.backend_start
from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
  and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
  and l.classid::bigint << 32 | l.objid::bigint = %s"""

PSQL_HEADER = """\
-- HelixQueue: the schema from revision {since} to {head}, for
--   psql -X -f this-file "dbname=... user=the-owner"
-- It does what `helixq migrate` does; run it over a direct connection, as the database's owner.
\\set ON_ERROR_STOP on

do $$
begin
  if not pg_try_advisory_lock({lock}) then
    raise exception using errcode = 'lock_not_available',
      message = 'another migration of this database is running',
      hint = 'Wait until it has ended and run this again.';
  end if;
end
$$;
"""


@dataclass(frozen=True)
class Migrated:
    """The revisions before and after; equal if the database was up to date."""

    before: str | None
    after: str


def migrate(dsn: str, *, report: Report | None = None, wait_s: float = WAIT_S) -> Migrated:
    """Run the missing revisions, if any; `report` is called with each step."""
    report = report or _silent
    try:
        with _connect(dsn) as connection:
            _demand_direct(connection)
            with _migration_lock(connection, report, wait_s):
                return _upgrade(connection, report)
    except psycopg.Error as error:
        raise _explain(error) from error
    except DBAPIError as wrapped:
        raise _explain(wrapped.orig) from wrapped


def print_sql(since: str | None = None) -> str:
    """Return the psql script that migrates a database from revision `since`; needs no database."""
    if since is not None and since not in revisions():
        raise Refused(f"expected one of the revisions {', '.join(revisions())}, got {since!r}")
    output = io.StringIO()
    output.write(PSQL_HEADER.format(since=since or "none", head=head(), lock=LOCK) + "\n")
    output.write(_prepare() + "\n")
    _alembic({"dialect_name": "postgresql"}, since=since, output=output)
    return output.getvalue()


def _upgrade(connection: Connection[Any], report: Report) -> Migrated:
    schema = schema_of(connection)
    before = None if schema is None else schema.revision
    if before == head():
        report(f"already at revision {before}")
        return Migrated(before, before)
    if before is not None and before not in revisions():
        demand(schema)
        report(f"at the newer revision {before}, which this release works with")
        return Migrated(before, before)
    connection.execute(_prepare().encode())
    _run_revisions(connection, report)
    after = revision_of(connection)
    if after != head():
        raise SchemaMismatch(f"expected revision {head()} after the migration, got {after}")
    return Migrated(before, after)


def _run_revisions(connection: Connection[Any], report: Report) -> None:
    # Alembic controls the transactions from here on.
    connection.autocommit = False
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: connection,
        poolclass=StaticPool,
        use_native_hstore=False,
    )
    try:
        with engine.connect() as bound:
            _alembic({"connection": bound, "on_version_apply": _announcer(report)}, report=report)
    finally:
        if not connection.closed:
            connection.rollback()
            connection.autocommit = True


def _alembic(
    options: dict[str, Any],
    *,
    since: str | None = None,
    report: Report | None = None,
    output: io.StringIO | None = None,
) -> None:
    """Upgrade to the newest revision; with `output` only write the script."""
    attributes = {"options": options, "report": report or _silent}
    config = Config(output_buffer=output, attributes=attributes)
    # The configuration parser interprets percent signs.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with _alembic_lock:
        command.upgrade(config, f"{since}:head" if since else "head", sql=output is not None)


def _announcer(report: Report) -> Callable[..., None]:
    def announce(*, step: MigrationInfo, **_: object) -> None:
        report(f"at revision {step.up_revision_id}")

    return announce


def _prepare() -> str:
    return (MIGRATIONS / "prepare.sql").read_text(encoding="utf-8")


def _connect(dsn: str) -> Connection[Any]:
    try:
        return psycopg.connect(
            dsn, autocommit=True, **connect_options(dsn) | {"application_name": "helixq migrate"}
        )
    except psycopg.Error as error:
        raise unreached(error) from error


def _demand_direct(connection: Connection[Any]) -> None:
    """A pooler issues its own cancellation keys, so the process ids differ."""
    row = connection.execute("select pg_backend_pid()").fetchone()
    if row != (connection.info.backend_pid,):
        raise Refused(
            "expected a direct connection, got one through a pooler such as pgbouncer: "
            "migrate with the DSN of the PostgreSQL server itself"
        )


@contextmanager
def _migration_lock(connection: Connection[Any], report: Report, wait_s: float) -> Iterator[None]:
    """Hold the migration lock of this session; polls instead of waiting inside the server.

    A blocked `pg_advisory_lock` would hold a snapshot for as long as it waits, and CREATE INDEX
    CONCURRENTLY of the migrator that it waits for waits for all older snapshots: a deadlock.
    """
    deadline = time.monotonic() + wait_s
    reported = False
    while connection.execute("select pg_try_advisory_lock(%s)", (LOCK,)).fetchone() != (True,):
        if time.monotonic() > deadline:
            raise InProgress(
                f"another migration is still running after {wait_s:.0f} s, {_holder(connection)}: "
                "wait for it, or end it with pg_terminate_backend",
                retry_after=wait_s,
            )
        if not reported:
            report(f"waiting for another migration: {_holder(connection)}")
            reported = True
        time.sleep(POLL_S)
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(%s)", (LOCK,))


def _holder(connection: Connection[Any]) -> str:
    row = connection.execute(HOLDER, (LOCK,)).fetchone()
    if row is None:
        return "which has just ended"
    pid, role, name, since = row
    # Another role's start is hidden from roles without pg_read_all_stats.
    return f"process {pid} of role {role} ({name or 'no name'})" + (
        f" since {since}" if since else ""
    )


def _explain(error: BaseException | None) -> HelixError:
    """Return the HelixQueue error with the remedy; the cause stays attached."""
    message = str(error).strip()
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        message = "; ".join(filter(None, (error.diag.message_primary, error.diag.message_hint)))
    match error:
        case pg.FeatureNotSupported():
            explained: HelixError = SchemaMismatch(message)
        case pg.InsufficientPrivilege():
            explained = NotPermitted(message)
        case pg.LockNotAvailable():
            explained = Retryable(
                f"a table stayed locked for more than 5 s ({message}): nothing was changed, "
                "run `helixq migrate` again when the database is less busy"
            )
        case pg.DeadlockDetected() | pg.SerializationFailure():
            explained = Retryable(f"{message}: nothing was changed, run `helixq migrate` again")
        case psycopg.OperationalError():
            explained = Unavailable(f"the connection failed while migrating: {message}")
        case _:
            explained = HelixError(f"the migration failed, its revision is not recorded: {message}")
    return explained


def _silent(_: str) -> None:
    pass
