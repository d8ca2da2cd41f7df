"""The doctor finds each illness it knows, and none in a healthy database."""

import os
import time
from pathlib import Path

import psycopg
import pytest
from redis import Redis

from helixqueue.embedded import Postgres, Valkey
from helixqueue.errors import Unavailable
from helixqueue.operate.doctor import EXAMINATIONS, examine
from tests.support.duties import run_all_duties
from tests.support.lab import wait_until
from tests.support.pooler import Pooler
from tests.support.standby import Standby


def verdicts(dsn):
    return {finding.name: finding for finding in examine(dsn)}


@pytest.mark.usefixtures("durable")
def test_bound_role_in_a_migrated_database_has_no_fault(database):
    run_all_duties(database)
    found = verdicts(database.dsn("app_a", direct=True))
    assert len(found) == len(EXAMINATIONS)
    assert {f.name for f in found.values() if f.verdict != "ok"} <= {"snapshots"}
    assert all(not f.remedy for f in found.values() if f.verdict == "ok")
    assert found["tenants"].found == "a"
    assert found["pooler"].found == "direct connection"
    # Without pg_read_all_stats the doctor does not say "none" about what it cannot see.
    assert "hidden" in found["snapshots"].found


def test_role_for_many_tenants_sees_its_bindings(database):
    assert verdicts(database.dsn("service"))["tenants"].found == "* (named per transaction)"
    assert verdicts(database.dsn("operator"))["tenants"].found == "all, as operator"


def test_powerful_roles_are_bad(database):
    superuser = verdicts(database.dsn("helix_bootstrap"))["role"]
    assert (superuser.verdict, "superuser" in superuser.found) == ("bad", True)
    owner = verdicts(database.dsn("helix_migrator"))["role"]
    assert owner.verdict == "bad"
    assert "member of helix_owner, owner of the database" in owner.found


def test_unbound_role_and_one_without_grants_are_bad(database):
    assert verdicts(database.dsn("stranger"))["tenants"].verdict == "bad"
    found = verdicts(database.dsn("helix_local"))
    assert found["grants"].remedy == (
        'grant helix_submit, helix_read to "helix_local"; (the scopes that it needs)'
    )


def test_database_without_the_schema_is_examined(empty):
    found = verdicts(empty.dsn("helix_local"))
    assert found["schema"].remedy == "run `helixq migrate`"
    assert found["tenants"].verdict == "warn"
    assert found["encoding"].verdict == "ok"


def test_pooler_is_reported(database, server, tmp_path):
    with Pooler(tmp_path, server) as pooler:
        dsn = f"host={pooler.socket_dir} dbname={database.name} user=app_a"
        assert "pgbouncer" in verdicts(dsn)["pooler"].found


def test_held_snapshot_is_reported_to_permitted_roles(database, monkeypatch):
    monkeypatch.setattr("helixqueue.operate.doctor.SNAPSHOT_S", -1)
    with psycopg.connect(database.dsn("helix_bootstrap")) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 1 from helix.batch")
        pid = holder.info.backend_pid
        found = verdicts(database.dsn("helix_bootstrap"))["snapshots"]
    assert found.verdict == "warn"
    assert f"process {pid} of role helix_bootstrap" in found.found


def test_unlogged_and_unvacuumed_tables_are_bad(database):
    with database.connect("helix_migrator") as owner:
        owner.execute("alter table helix.worker set unlogged")
        owner.execute("alter table helix.work set (autovacuum_enabled = false)")
    found = verdicts(database.dsn("app_a"))
    assert (found["unlogged tables"].verdict, found["unlogged tables"].found) == ("bad", "worker")
    assert found["autovacuum"].verdict == "bad"
    assert "work" in found["autovacuum"].found


def test_login_that_may_read_tables_is_bad(database):
    """As a member of the reader it needs no function, and EXPLAIN shows it the rows of others."""
    with database.connect("helix_bootstrap") as superuser:
        superuser.execute("grant helix_reader to stranger")
        try:
            role = verdicts(database.dsn("stranger"))["role"]
        finally:
            superuser.execute("revoke helix_reader from stranger")
    assert (role.verdict, "member of helix_reader" in role.found) == ("bad", True)


@pytest.fixture(scope="module")
def careless(tmp_path_factory):
    """A server with every setting wrong, and a standby that nobody waits for."""
    bin_dir = os.environ.get("HELIX_TEST_POSTGRES")
    wrong = {
        "synchronous_commit": "off",
        "autovacuum": "off",
        "max_prepared_transactions": "5",
        "archive_mode": "on",
        "archive_command": "false",
    }
    postgres = Postgres(
        tmp_path_factory.mktemp("careless") / "postgres",
        bin_dir=Path(bin_dir) if bin_dir else None,
        settings=wrong,
    )
    with postgres:
        directory = tmp_path_factory.mktemp("standby") / "postgres"
        with Standby(postgres, directory, settings=wrong) as standby:
            yield postgres, standby


def test_wrong_settings_are_named(careless):
    postgres, standby = careless
    found = verdicts(postgres.dsn)
    assert (found["durability"].verdict, found["autovacuum"].verdict) == ("bad", "bad")
    assert "synchronous_commit" in found["durability"].remedy
    assert found["standbys"].verdict == "warn"
    assert "may lose commits" in found["standbys"].remedy
    assert verdicts(standby.dsn)["primary"].verdict == "bad"


def test_prepared_transactions_are_noticed(careless):
    postgres, _ = careless
    with psycopg.connect(postgres.bootstrap_dsn, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("create table forgotten ()")
        connection.execute("prepare transaction 'forgotten'")
    try:
        assert verdicts(postgres.dsn)["prepared transactions"].verdict == "warn"
    finally:
        with psycopg.connect(postgres.bootstrap_dsn, autocommit=True) as connection:
            connection.execute("rollback prepared 'forgotten'")


def test_database_that_is_away_is_unavailable():
    with pytest.raises(Unavailable, match="cannot reach"):
        examine("host=/nowhere dbname=x")


def test_trust_over_tcp_and_failing_archive_are_named(careless):
    postgres, _ = careless
    with psycopg.connect(postgres.bootstrap_dsn, autocommit=True) as connection:
        connection.execute("create table written ()")
        connection.execute("select pg_switch_wal()")
    rules = postgres.data / "pg_hba.conf"
    kept = rules.read_text()
    rules.write_text(f"{kept}\nhost all all 10.0.0.0/8 trust\n")
    try:
        found = verdicts(postgres.bootstrap_dsn)["trust authentication"]
        assert found.verdict == "warn"  # bad if the server listened on a network
        assert "10.0.0.0" in found.found
    finally:
        rules.write_text(kept)
    wait_until(lambda: verdicts(postgres.bootstrap_dsn)["archiving"].verdict == "warn")
    assert "archive_command" in verdicts(postgres.bootstrap_dsn)["archiving"].remedy


def test_skewed_clock_is_noticed(database, monkeypatch):
    real = time.time
    monkeypatch.setattr("helixqueue.operate.doctor_server.time.time", lambda: real() + 60)
    assert verdicts(database.dsn("app_a"))["clock"].verdict == "warn"


def test_long_transaction_is_reported_to_permitted_roles(database, monkeypatch):
    monkeypatch.setattr("helixqueue.operate.doctor_server.TRANSACTION_S", -1)
    with psycopg.connect(database.dsn("helix_bootstrap")) as holder:
        holder.execute("select 1")
        found = verdicts(database.dsn("helix_bootstrap"))["long transactions"]
    assert (found.verdict, "process" in found.found) == ("warn", True)


def test_redis_that_evicts_is_bad(database, tmp_path):
    dsn = database.dsn("app_a")
    with Valkey(tmp_path / "valkey") as valkey:
        found = {finding.name: finding for finding in examine(dsn, valkey.url)}
        assert (found["redis eviction"].verdict, found["redis persistence"].verdict) == ("ok", "ok")
        with Redis.from_url(valkey.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        found = {finding.name: finding for finding in examine(dsn, valkey.url)}
        assert found["redis eviction"].verdict == "bad"
    with pytest.raises(Unavailable, match="Redis"):
        examine(dsn, valkey.url)
