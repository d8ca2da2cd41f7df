"""The schema revision of a database, and the one this release needs.

Separate from `migrate` because every client checks it and only a migration needs Alembic.
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
    """Return all revisions of this release, oldest first, from the names of their files."""
    return sorted(path.name[1:5] for path in VERSIONS.glob("r[0-9]*.py"))


def head() -> str:
    """Return the revision this release needs."""
    return revisions()[-1]


class SchemaRevision(NamedTuple):
    """The revision of a database and its compatibility."""

    revision: str
    oldest: str  # the oldest revision whose clients still work with it


def current(dsn: str) -> str | None:
    """Return the revision of the database; None if HelixQueue is not installed there."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return revision_of(connection)
    except psycopg.OperationalError as error:
        raise Unavailable(f"cannot reach the database: {str(error).strip()}") from error


def schema_of(connection: Connection[Any]) -> SchemaRevision | None:
    """Read the revision over a connection; every role may read it."""
    # The caller's connection may have another row factory.
    with connection.cursor(row_factory=tuple_row) as cursor:
        # Checked by name first: a missing table would abort the caller's transaction.
        exists = cursor.execute("select to_regclass('helix_migration.reach')::oid").fetchone()
        if exists is None or exists[0] is None:
            return None
        row = cursor.execute(
            "select r.version_num, o.oldest "
            "from helix_migration.revision r, helix_migration.reach o"
        ).fetchone()
        return None if row is None else SchemaRevision(*map(str, row))


def revision_of(connection: Connection[Any]) -> str | None:
    schema = schema_of(connection)
    return None if schema is None else schema.revision


def fits(schema: SchemaRevision | None) -> bool:
    """Return whether this release works with the schema: its own or a newer compatible one."""
    return schema is not None and (
        schema.revision == head() or schema.oldest <= head() < schema.revision
    )


def demand(schema: SchemaRevision | None) -> None:
    """Raise SchemaMismatch unless this release works with the schema."""
    if fits(schema):
        return
    expected = head()
    if schema is not None and schema.revision > expected:
        raise SchemaMismatch(
            f"expected schema revision {expected}, got the newer {schema.revision}, which works "
            f"with {schema.oldest} and later: upgrade the package helixqueue on this machine"
        )
    raise SchemaMismatch(
        f"expected schema revision {expected}, "
        f"got {schema.revision if schema else 'a database without HelixQueue'}: "
        "run `helixq migrate`"
    )
