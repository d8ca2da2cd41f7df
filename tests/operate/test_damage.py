"""Every kind of damage has a verdict: refused, found by `check`, against a seal, or explained.

Each case runs in a transaction of one database, which is rolled back: what the damage leaves is
checked inside it. docs/guarantees.md has the table; `HELIX_WRITE_DOCS=1` writes it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import psycopg
import pytest

from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.ledger.replay import ReplayResult, replay_within
from helixqueue.operate.check import check_within, invariants
from helixqueue.operate.check_seals import INVARIANTS, check_seals_within
from helixqueue.operate.seal import make_seal
from tests.support.damage_columns import UNSEEN
from tests.support.damage_leases import LEASES
from tests.support.damage_ledger import LEDGER, MISSED, SEAL
from tests.support.damage_outside import CATALOG, OUTSIDE
from tests.support.damage_records import FORGERIES, RECORDS
from tests.support.damage_reports import REPORTS
from tests.support.damage_schema import SCHEMA as OBJECTS
from tests.support.database import copy_of
from tests.support.ledger_damage import with_batch_ids

SCHEMA = OBJECTS | CATALOG
ROWS = LEDGER | FORGERIES | RECORDS | LEASES | REPORTS
DOCUMENT = Path(__file__).parents[2] / "docs" / "guarantees.md"
TABLES = re.compile(r"(?:update|into|delete from|truncate|alter table) helix\.(\w+)")
KEY = Ed25519Signer.from_private(b"k" * 32)


@pytest.fixture(scope="module")
def damaged(server, busy_template):
    """A database after real traffic, a superuser's connection to it, and a seal."""
    with copy_of(busy_template, server, "helix_damage") as database:
        with database.connect("operator") as connection:
            seal = make_seal(connection, KEY)
        with database.connect("helix_bootstrap") as connection:
            connection.execute("set timezone = 'UTC'")
            yield database, connection, seal


def do_without_triggers(connection, statements):
    tables = sorted(set(TABLES.findall(" ".join(statements))))
    for table in tables:
        connection.execute(f"alter table helix.{table} disable trigger all")
    for statement in statements:
        done = connection.execute(statement.encode())
        touched = [done.rowcount]  # of every command; -1 for one without rows
        while done.nextset():
            touched.append(done.rowcount)
        assert 0 not in touched, f"changed nothing: {statement}"
    for table in tables:
        for (name,) in connection.execute(
            "select tgname from pg_trigger where tgrelid = %s::regclass and not tgisinternal",
            (f"helix.{table}",),
        ).fetchall():
            connection.execute(f"alter table helix.{table} enable always trigger {name}")


def found(connection, seal):
    """The verdict of check, replay and the seal, inside the transaction."""
    connection.execute("set local session authorization helix_migrator")
    results = check_within(connection)
    assert [result for result in results if result.skipped] == []
    for result in results:
        assert len(result.witnesses) == min(result.count, 10)
    names = {result.name for result in results if result.count}
    if names:
        return names, 0, set()
    replayed = ReplayResult()
    replay_within(connection, replayed, None, 10)
    against = {
        result.name for result in check_seals_within(connection, [seal], [KEY]) if result.count
    }
    return names, replayed.violated, against


@pytest.mark.parametrize("what", ROWS)
def test_damage_to_rows_gets_its_verdict(damaged, what):
    database, connection, seal = damaged
    verdict, *statements = ROWS[what]
    statements = [with_batch_ids(database, statement) for statement in statements]
    sequences = "select last_value from helix.{}"
    before = {
        name: connection.execute(sequences.format(name)).fetchone()[0]
        for name in ("batch_id", "entry_id", "fence_number", "ledger_event_id")
    }
    with connection.transaction(force_rollback=True):
        do_without_triggers(connection, statements)
        names, replayed, against = found(connection, seal)
    for name, value in before.items():  # no transaction sets a sequence back
        connection.execute("select setval(%s, %s)", (f"helix.{name}", value))
    if verdict >= SEAL:
        assert (names, replayed, against) == (set(), 0, verdict - SEAL)
    elif verdict >= MISSED:
        assert (names, replayed, against) == (set(), 0, set())
    else:
        assert names == verdict


@pytest.mark.parametrize("what", SCHEMA)
def test_damage_to_the_schema_is_found_by_check(damaged, what):
    _, connection, _ = damaged
    name, statement = SCHEMA[what]
    with connection.transaction(force_rollback=True):
        connection.execute(statement.encode())
        connection.execute("set local session authorization helix_migrator")
        results = {result.name: result for result in check_within(connection, only={name})}
        assert results[name].count > 0
        assert results[name].witnesses


@pytest.mark.parametrize("what", OUTSIDE)
def test_damage_outside_of_the_schema_is_not_found(damaged, what):
    """Listed with the reason in docs/guarantees.md; one that is found belongs to SCHEMA."""
    _, connection, seal = damaged
    _, statement = OUTSIDE[what]
    with connection.transaction(force_rollback=True):
        connection.execute(statement.encode())
        assert found(connection, seal) == (set(), 0, set())


def test_undamaged_database_passes_everything(damaged):
    _, connection, seal = damaged
    with connection.transaction(force_rollback=True):
        assert found(connection, seal) == (set(), 0, set())


HAND_WRITTEN = {
    "a row was updated by hand": "update {} set {} = {}",
    "a row was deleted by hand": "delete from {}",
    "a table was emptied by hand": "truncate {} cascade",
    "a row was updated in replica mode": "set local session_replication_role = replica; "
    "update {} set {} = {}",
    "a row was deleted as the engine's role": "set local role helix_engine; delete from {}",
}


@pytest.mark.parametrize("what", HAND_WRITTEN)
def test_statement_by_hand_is_refused_on_every_table(damaged, what):
    _, connection, _ = damaged
    for table, column in tables_of(connection):
        statement = HAND_WRITTEN[what].replace("{}", f"helix.{table}", 1)
        with (
            pytest.raises(psycopg.Error) as refused,
            connection.transaction(force_rollback=True),
        ):
            connection.execute(statement.replace("{}", column).encode())
        assert refused.value.sqlstate in {"QH002", "QH003", "42501"}, (table, statement)


def tables_of(connection):
    return connection.execute(
        "select c.relname::text, (select a.attname::text from pg_attribute a "
        " where a.attrelid = c.oid and a.attnum > 0 and a.attidentity = '' limit 1) "
        "from pg_class c where c.relnamespace = 'helix'::regnamespace and c.relkind in ('r', 'p')"
    ).fetchall()


def test_every_table_has_a_case(damaged):
    """A new table without a case is not known to be seen by `check`."""
    _, connection, _ = damaged
    cased = set(TABLES.findall(" ".join(s for _, *texts in ROWS.values() for s in texts)))
    missing = {table for table, _ in tables_of(connection)} - cased
    assert not missing, (
        f"no damage case for {sorted(missing)}: add one to tests/support/damage_reports.py, and an "
        "invariant or helix.audit_table(...) if nothing finds it"
    )


def test_cases_cover_every_invariant():
    """A new invariant needs damage that it finds, or it is not known to work."""
    covered = {name for verdict, *_ in ROWS.values() for name in verdict}
    covered |= {name for name, _ in SCHEMA.values()}
    # `test_check` doubles a row, which takes dropping a primary key; `test_seal` forges a seal.
    assert set(invariants()) | set(INVARIANTS) <= covered | {"work_doubled", "seal_forged"}
    assert len(ROWS) + len(SCHEMA) + len(HAND_WRITTEN) >= 90


def test_documented_table_is_that_of_the_cases():
    text = DOCUMENT.read_text(encoding="utf-8")
    head, begin, rest = text.partition("<!-- damage -->\n")
    table, end, tail = rest.partition("<!-- /damage -->")
    if os.environ.get("HELIX_WRITE_DOCS"):
        DOCUMENT.write_text(head + begin + damage_table() + end + tail, encoding="utf-8")
    else:
        assert table == damage_table(), "run HELIX_WRITE_DOCS=1 pytest tests/operate/test_damage.py"


def damage_table():
    lines = ["| damage | verdict |", "|---|---|"]
    lines += [f"| {what} | refused, on every table |" for what in HAND_WRITTEN]
    for what, (verdict, *_) in ROWS.items():
        names = ", ".join(f"`{name}`" for name in sorted(verdict - SEAL))
        if verdict >= MISSED:
            [reason] = verdict - MISSED
            lines.append(f"| {what} | **not found**: {reason} |")
        elif verdict >= SEAL:
            lines.append(f"| {what} | against a seal: {names} |")
        else:
            lines.append(f"| {what} | `check`: {names} |")
    lines += [f"| {what} | `check`: `{name}` |" for what, (name, _) in SCHEMA.items()]
    lines += [f"| {what} | **not found**: {reason} |" for what, (reason, _) in OUTSIDE.items()]
    for reason, columns in UNSEEN.items():
        names = ", ".join(f"`{column}`" for column in columns.split())
        lines.append(f"| only the value of {names} was edited | **not found**: {reason} |")
    return "\n".join(lines) + "\n"
