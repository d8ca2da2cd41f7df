"""Which revision of the schema a database has, and which one this release needs.

Apart from `migrate` because every client asks this and only a migration needs Alembic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from helixqueue.errors import SchemaMismatch, Unavailable

if TYPE_CHECKING:
    from psycopg import Connection

VERSIONS = Path(__file__).parent / "migrations" / "versions"


def revisions() -> list[str]:
    """All revisions this release knows, oldest first, from the names of their files."""
    return sorted(path.name[1:5] for path in VERSIONS.glob("r[0-9]*.py"))


def head() -> str:
    """The revision this release needs."""
    return revisions()[-1]


def current(dsn: str) -> str | None:
    """The revision of the database; None when HelixQueue was never installed there."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return revision_of(connection)
    except psycopg.OperationalError as error:
        raise Unavailable(f"cannot ask the database: {str(error).strip()}") from error


def revision_of(connection: Connection[Any]) -> str | None:
    """The same over a connection; any role may ask."""
    # The caller's connection may make rows of any kind.
    with connection.cursor(row_factory=tuple_row) as cursor:
        # Asked for by name first: a missing table would spoil the caller's transaction.
        there = cursor.execute("select to_regclass('helix_migration.revision')::oid").fetchone()
        if there is None or there[0] is None:
            return None
        row = cursor.execute("select version_num from helix_migration.revision").fetchone()
        return None if row is None else str(row[0])


def demand_current(connection: Connection[Any]) -> None:
    """Raise SchemaMismatch unless the database has the schema this release was written for."""
    demand(revision_of(connection))


def demand(got: str | None) -> None:
    """The judgement alone, for callers that read the revision in their own way."""
    expected = head()
    if got == expected:
        return
    if got is not None and got > expected:
        raise SchemaMismatch(
            f"expected schema revision {expected}, got the newer {got}: "
            "upgrade the package helixqueue on this machine"
        )
    raise SchemaMismatch(
        f"expected schema revision {expected}, got {got or 'a database without HelixQueue'}: "
        "run `helixq migrate`"
    )
