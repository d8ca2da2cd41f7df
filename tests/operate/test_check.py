"""`check` is silent about real traffic; `test_damage` shows what it finds."""

from __future__ import annotations

import time

import psycopg
import pytest

from helixqueue.errors import SchemaMismatch
from helixqueue.operate.check import check, invariants
from tests.support.damage_ledger import OTHERS_QUEUE
from tests.support.ledger_damage import damage, with_batch_ids
from tests.support.ledger_traffic import sql_client

PROMISES = {f"G{number}" for number in range(1, 12)}


def broken(database):
    """The invariants that do not hold, by name."""
    with database.connect("helix_migrator") as connection:
        results = check(connection)
    assert [result.skipped for result in results if result.skipped] == []
    return {result.name: result for result in results if not result.holds}


def test_check_finds_nothing_in_real_traffic(busy):
    assert broken(busy) == {}


def test_check_finds_a_doubled_row_of_work(busy):
    """Only without its primary key can a row be doubled."""
    with busy.connect("helix_bootstrap") as connection:
        connection.execute("alter table helix.work drop constraint work_pkey")
    damage(
        busy,
        with_batch_ids(
            busy, "insert into helix.work select * from helix.work where batch = {PENDING}"
        ),
    )
    assert set(broken(busy)) == {"work_doubled", "unique_missing", "schema_differs"}


@pytest.mark.parametrize("name", list(invariants()))
def test_every_invariant_has_meaning_and_action(name):
    notes = invariants()[name].notes
    assert set(notes) == {"promise", "means", "action"}
    assert notes["promise"] in PROMISES
    assert notes["means"].endswith(".")
    assert notes["action"].endswith(".")


OF_SECRETS = {
    "payload_edited", "limit_key_edited", "fingerprint_without_secret", "fence_request_edited"
}  # fmt: skip


@pytest.mark.parametrize("role", ["operator", "pool", "app_a"])
def test_only_the_owner_can_check_fingerprints(busy, role):
    with busy.connect(role) as connection:
        results = check(connection)
    skipped = {result.name: result.skipped for result in results if result.skipped is not None}
    assert set(skipped) == OF_SECRETS
    assert all(f"role {role}: permission denied" in reason for reason in skipped.values())
    assert all(result.holds for result in results if result.name not in skipped)


TENANTS_DAMAGE = {
    "its row": (
        {"row_not_last_step"},
        f"update helix.work set actor = 'eve' where queue = {OTHERS_QUEUE}",
    ),
    "its entry": (
        {"hash_broken"},
        f"""update helix.entry set position = 1
            where part = 1 and reason = 'submitted' and queue[1] = {OTHERS_QUEUE}""",
    ),
    "its result": (
        {"result_missing"},
        f"delete from helix.result where queue = {OTHERS_QUEUE}",
    ),
}


@pytest.mark.parametrize("what", TENANTS_DAMAGE)
def test_tenant_finds_damage_of_its_own_rows_and_of_no_other(busy, what):
    names, statement = TENANTS_DAMAGE[what]
    damage(busy, statement)
    found = {}
    for role in ("app_a", "app_b"):
        with busy.connect(role) as connection:
            found[role] = {result.name: result for result in check(connection) if result.count}
    assert found["app_a"] == {}
    assert set(found["app_b"]) == names
    # Numbers of entries count the calls of all tenants.
    assert not any("entry" in witness for r in found["app_b"].values() for witness in r.witnesses)


def test_check_takes_time_in_proportion_to_the_ledger(database):
    """The first edition had an invariant that was quadratic; statistics are from an empty table."""

    def seconds(role="helix_migrator"):
        began = time.monotonic()
        with database.connect(role) as connection:
            assert all(result.holds for result in check(connection))
        return time.monotonic() - began

    with sql_client(database) as a:
        a.queue()
        for n in range(20):
            a.submit(*(f"s{n}-{m}" for m in range(500)))
            a.complete(a.claim(500))
    # Nested loops over 10,000 batches would compare 100 million pairs for each invariant.
    assert seconds() < 10


def test_progress_names_each_invariant(busy):
    found = []
    with busy.connect("operator") as connection:
        check(connection, progress=found.append)
    assert found == list(invariants())


def test_database_without_the_schema_says_migrate(server):
    with (
        psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        check(connection)
