"""Which revision of the schema a database has, and which one this release needs.

Apart from `migrate` because every client asks this and only a migration needs Alembic.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class SchemaRevision(NamedTuple):
    """What a database says of itself."""

    revision: str
    oldest: str  # the oldest revision whose programs still work with it


def current(dsn: str) -> str | None:
    """The revision of the database; None when HelixQueue was never installed there."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return revision_of(connection)
    except psycopg.OperationalError as error:
        raise Unavailable(f"cannot ask the database: {str(error).strip()}") from error


def schema_of(connection: Connection[Any]) -> SchemaRevision | None:
    """The same over a connection, with its reach; any role may ask."""
    # The caller's connection may make rows of any kind.
    with connection.cursor(row_factory=tuple_row) as cursor:
        # Asked for by name first: a missing table would spoil the caller's transaction.
        there = cursor.execute("select to_regclass('helix_migration.reach')::oid").fetchone()
        if there is None or there[0] is None:
            return None
        row = cursor.execute(
            "select r.version_num, o.oldest "
            "from helix_migration.revision r, helix_migration.reach o"
        ).fetchone()
        return None if row is None else SchemaRevision(*map(str, row))


def revision_of(connection: Connection[Any]) -> str | None:
    found = schema_of(connection)
    return None if found is None else found.revision


def fits(got: SchemaRevision | None) -> bool:
    """Whether this release works with it: its own, or a newer one that still reaches back to it."""
    return got is not None and (got.revision == head() or got.oldest <= head() < got.revision)


def demand(got: SchemaRevision | None) -> None:
    """Raise SchemaMismatch unless this release works with it."""
    if fits(got):
        return
    expected = head()
    if got is not None and got.revision > expected:
        raise SchemaMismatch(
            f"expected schema revision {expected}, got the newer {got.revision}, which works with "
            f"{got.oldest} and later: upgrade the package helixqueue on this machine"
        )
    raise SchemaMismatch(
        f"expected schema revision {expected}, "
        f"got {got.revision if got else 'a database without HelixQueue'}: run `helixq migrate`"
    )
