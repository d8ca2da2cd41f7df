"""The schema that migrations make is the one written down, whichever way it was made."""

import subprocess

import pytest

from helixqueue.engine.migrate import migrate, print_sql
from tests.support.schema_dump import COMMAND, FILE, dumped


def test_schema_sql_shows_what_migrations_make(empty, server):
    if server.version != 18:
        pytest.skip("schema.sql is PostgreSQL 18's dump")
    migrate(empty.dsn("helix_migrator"))
    assert dumped(empty) == FILE.read_text(encoding="utf-8"), (
        f"engine/sql has changed and schema.sql has not: run `{COMMAND}` and review its diff"
    )


@pytest.mark.parametrize("role", ["helix_migrator", "helix_bootstrap"])
def test_the_printed_script_makes_the_same_schema(scratch, role):
    """Run by the owner, or by an administrator who is superuser."""
    migrated, printed = scratch.database(), scratch.database()
    migrate(migrated.dsn("helix_migrator"))
    done = subprocess.run(
        [printed.server.program("psql"), "-X", "-q", "-f", "-", printed.dsn(role)],
        input=print_sql(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert dumped(printed) == dumped(migrated)
    # And the next `helixq migrate` knows where it stands.
    assert migrate(printed.dsn("helix_migrator")).before is not None
