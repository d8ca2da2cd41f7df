"""An edit of any column of any table is refused, found, or listed with the reason."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.ledger.replay import ReplayResult, replay_within
from helixqueue.operate.check import check_within, invariants
from helixqueue.operate.check_seals import check_seals_within
from helixqueue.operate.seal import make_seal
from tests.support.damage_columns import COLUMNS, UNSEEN, Column
from tests.support.database import copy_of

KEY = Ed25519Signer.from_private(b"k" * 32)
# The traffic leaves no rows in them; `test_damage` has cases of each.
EMPTY = {
    "allocation",
    "api_token",
    "check_run",
    "fence_batch",
    "finding",
    "host",
    "login",
    "seal",
    "run",
    "run_change",
    "run_count",
    "waiter",
    "worker",
} | {*("webhook_mark", "webhook_secret", "webhook_source")}
OF_ROWS = {name for name, i in invariants().items() if i.in_set or "helix.secret" in i.query}


@pytest.fixture
def edited(server, busy_template):
    """A superuser's connection to a database after real traffic, and a seal of it."""
    with copy_of(busy_template, server, "helix_edited") as database:
        with database.connect("operator") as connection:
            seal = make_seal(connection, KEY)
        with database.connect("helix_bootstrap") as connection:
            connection.execute("set timezone = 'UTC'")
            yield connection, seal


def is_seen(connection, seal, column, statement):
    """Whether the server refuses the edit, or check, replay or the seal find it; None: no row."""
    triggers = connection.execute(
        "select tgname from pg_trigger where tgrelid = %s::regclass and not tgisinternal",
        (f"helix.{column.table}",),
    ).fetchall()
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"alter table helix.{column.table} disable trigger all")
            if connection.execute(statement.encode()).rowcount == 0:
                return None
            for (name,) in triggers:
                connection.execute(f"alter table helix.{column.table} enable always trigger {name}")
            connection.execute("set local session authorization helix_migrator")
            if any(result.count for result in check_within(connection, only=OF_ROWS)):
                return True
            replayed = ReplayResult()
            replay_within(connection, replayed, None, 10)
            against = check_seals_within(connection, [seal], [KEY])
            return bool(replayed.violated) or any(result.count for result in against)
    except psycopg.IntegrityError:
        return True


def test_edit_of_every_column_is_found_or_explained(edited):
    connection, seal = edited
    columns = [Column(*row) for row in connection.execute(COLUMNS)]
    full = {
        table
        for table in {column.table for column in columns}
        if connection.execute(f"select 1 from helix.{table} limit 1").fetchone()
    }
    unseen = {
        str(column)
        for column in columns
        if column.table in full
        for statement in column.edits()
        if is_seen(connection, seal, column, statement) is False
    }
    assert {column.table for column in columns} - full <= EMPTY
    listed = set(" ".join(UNSEEN.values()).split())
    assert unseen - listed == set(), (
        "nothing finds an edit of these columns: add an invariant or helix.audit_table(...), or "
        "the reason to tests/support/damage_columns.py"
    )
    assert listed - unseen == set(), "these are found, or no longer there"
