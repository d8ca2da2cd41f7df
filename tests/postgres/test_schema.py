"""The generated files show the schema that the migrations create, whichever way they run."""

import json
import subprocess

import pytest

from helixqueue.engine.migrate import migrate, print_sql
from tests.support.schema_dump import COMMAND, DUMP, EXPECTED, dump_schema, expected_schema


def test_generated_files_match_the_migrated_schema(empty, server):
    if server.version != 18:
        pytest.skip("the files are generated from PostgreSQL 18")
    migrate(empty.dsn("helix_migrator"))
    dump = dump_schema(empty)
    assert dump == DUMP.read_text(encoding="utf-8"), (
        f"engine/sql changed and {DUMP.name} did not: run `{COMMAND}` and review its diff"
    )
    assert expected_schema(empty) == EXPECTED.read_text(encoding="utf-8"), (
        f"engine/sql changed and {EXPECTED.name} did not: run `{COMMAND}`"
    )


def test_expected_schema_lists_every_trigger_and_policy_of_the_dump():
    """An object that the query misses would escape `check`."""
    dump = DUMP.read_text(encoding="utf-8")
    kinds = [kind for kind, _, _ in json.loads(EXPECTED.read_text(encoding="utf-8"))]
    for kind in ("trigger", "policy"):
        assert kinds.count(kind) == dump.count(f"\nCREATE {kind.upper()} ") > 0


@pytest.mark.parametrize("role", ["helix_migrator", "helix_bootstrap"])
def test_printed_script_creates_the_same_schema_as_migrate(scratch, role):
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
    assert dump_schema(printed) == dump_schema(migrated)
    # The next `helixq migrate` recognises the revision.
    assert migrate(printed.dsn("helix_migrator")).before is not None
