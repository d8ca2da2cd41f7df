"""Migrations: once, by one migrator, by a plain owner, on the servers they are made for."""

import threading
import time

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from helixqueue.engine import migrate as migration
from helixqueue.engine import revision
from helixqueue.engine.migrate import Migrated, migrate
from helixqueue.errors import (
    InProgress,
    NotPermitted,
    Refused,
    Retryable,
    SchemaMismatch,
    Unavailable,
)
from tests.support.pooler import Pooler
from tests.support.schema_dump import dump_schema

ROLES = (
    *("helix_owner", "helix_engine", "helix_reader"),
    *("helix_submit", "helix_work", "helix_read", "helix_payloads", "helix_operate", "helix_admin"),
    "helix_run",
    *("helix_intake", "helix_webhook", "helix_delegate", "helix_operator"),
)


def test_second_migration_changes_nothing(empty):
    dsn = empty.dsn("helix_migrator")
    outputs = []
    assert migrate(dsn) == Migrated(None, revision.head())
    before = dump_schema(empty)
    assert migrate(dsn, report=outputs.append) == Migrated(revision.head(), revision.head())
    assert outputs == [f"already at revision {revision.head()}"]
    assert dump_schema(empty) == before


def test_migration_reports_its_files(empty):
    outputs = []
    migrate(empty.dsn("helix_migrator"), report=outputs.append)
    assert outputs[0] == "  10_roles.sql"
    assert outputs[-1] == f"at revision {revision.head()}"


def test_two_migrators_at_once_take_turns_and_both_succeed(empty):
    """Both are seen to wait for a third that holds the lock; then one works, one finds it done."""
    dsn = empty.dsn("helix_migrator")
    outputs = [[], []]
    results = [None, None]

    def run(number):
        results[number] = migrate(dsn, report=outputs[number].append)

    with psycopg.connect(dsn, autocommit=True, application_name="holder") as holder:
        holder.execute("select pg_advisory_lock(%s)", (migration.LOCK,))
        threads = [threading.Thread(target=run, args=(n,)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        wait_until(lambda: outputs[0] and outputs[1])
        pid = holder.info.backend_pid
    for thread in threads:
        thread.join()
    for heard in outputs:
        assert heard[0].startswith(
            f"waiting for another migration: process {pid} of role helix_migrator (holder) since "
        )
    assert sorted(result.before or "" for result in results) == ["", revision.head()]


def test_wait_for_another_migrator_ends_and_names_it(empty):
    dsn = empty.dsn("helix_migrator")
    with psycopg.connect(dsn, autocommit=True, application_name="stuck") as holder:
        holder.execute("select pg_advisory_lock(%s)", (migration.LOCK,))
        with pytest.raises(InProgress, match=rf"process {holder.info.backend_pid} .*\(stuck\)"):
            migrate(dsn, wait_s=0.1)
    assert revision.current(dsn) is None


def test_failed_revision_leaves_nothing(empty, monkeypatch, tmp_path):
    """One transaction a revision: what its first file made goes when its second fails."""
    (tmp_path / "1_good.sql").write_text("create schema helix_leftover;", encoding="utf-8")
    (tmp_path / "2_bad.sql").write_text("select 1 / 0; -- 100% :wrong", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("helixqueue.engine.migrations.ddl.SQL", tmp_path)
        with pytest.raises(Exception, match="its revision is not recorded: division by zero"):
            migrate(empty.dsn("helix_migrator"))
    assert empty.value("select to_regnamespace('helix_leftover')::text") is None
    assert revision.current(empty.dsn("helix_migrator")) is None
    migrate(empty.dsn("helix_migrator"))


def test_lock_timeout_is_retryable(empty, monkeypatch, tmp_path):
    (tmp_path / "1_wait.sql").write_text(
        "set local lock_timeout = '50ms'; alter table public.busy add x int;", encoding="utf-8"
    )
    monkeypatch.setattr("helixqueue.engine.migrations.ddl.SQL", tmp_path)
    with empty.connect("helix_bootstrap") as holder:
        holder.execute("create table public.busy (); alter table busy owner to helix_migrator")
        with holder.transaction():
            holder.execute("lock table public.busy")
            with pytest.raises(Retryable, match="run `helixq migrate` again"):
                migrate(empty.dsn("helix_migrator"))


def test_hostile_search_path_changes_nothing(scratch):
    plain, odd = scratch.database(), scratch.database()
    scratch.admin(f"alter database {odd.name} set search_path = helix, public")
    # Less than the longest step takes, and enough for the questions before the first.
    scratch.admin(f"alter database {odd.name} set statement_timeout = '50ms'")
    migrate(plain.dsn("helix_migrator"))
    migrate(odd.dsn("helix_migrator"))
    scratch.admin(f"alter database {odd.name} reset all")  # pg_dump would feel it too
    assert dump_schema(odd) == dump_schema(plain)


def test_plain_owner_suffices(empty):
    [row] = empty.rows(
        "select rolsuper, rolcreaterole, rolbypassrls from pg_roles where rolname = %s",
        "helix_migrator",
    )
    assert row == (False, True, False)
    migrate(empty.dsn("helix_migrator"))
    owners = empty.rows(
        "select distinct relowner::regrole::text from pg_class "
        "where relnamespace in ('helix'::regnamespace, 'helix_migration'::regnamespace)"
    )
    assert owners == [("helix_owner",)]


def test_without_createrole_and_without_roles_the_remedy_is_named_and_works(bare):
    """The very words of the error, run by an administrator, make the migration possible."""
    bare.login("plain")
    database = bare.database(owner="plain")
    with pytest.raises(NotPermitted) as refused:
        migrate(database.dsn("plain"))
    assert "expected role plain to have CREATEROLE" in str(refused.value)
    assert "got: helix_owner does not exist" in str(refused.value)
    assert revision.current(database.dsn("plain")) is None

    remedy = str(refused.value).partition("runs once: ")[2]
    bare.admin(remedy)
    assert migrate(database.dsn("plain")).after == revision.head()
    bare.drop()


def test_without_createrole_and_ungranted_roles_the_grant_is_named(scratch, template):
    assert template  # the roles exist on this server
    scratch.login("unlucky")
    database = scratch.database(owner="unlucky")
    with pytest.raises(NotPermitted) as refused:
        migrate(database.dsn("unlucky"))
    assert f"grant {', '.join(ROLES)} to unlucky;" in str(refused.value)
    assert "create role" not in str(refused.value)


def test_second_createrole_owner_gets_the_missing_grants_named(scratch, template, server):
    """Since PostgreSQL 16 CREATEROLE rules only the roles it made; before, it rules them all."""
    assert template
    scratch.login("newcomer", "createrole")
    database = scratch.database(owner="newcomer")
    if server.version >= 16:
        with pytest.raises(NotPermitted, match="helix_owner is not granted to newcomer"):
            migrate(database.dsn("newcomer"))
    else:
        migrate(database.dsn("newcomer"))


def test_role_without_create_privilege_is_refused_with_the_remedy(scratch):
    scratch.login("guest", "createrole")
    database = scratch.database()
    with pytest.raises(NotPermitted, match="grant create on database"):
        migrate(database.dsn("guest"))


def test_next_revision_can_come_from_another_login(empty, scratch):
    migrate(empty.dsn("helix_migrator"))
    scratch.login("successor", "in role", ", ".join(ROLES))
    with empty.connect("successor") as connection:
        connection.execute("update helix_migration.revision set version_num = version_num")
        connection.execute("alter table helix.worker add column scratch integer")


def test_database_with_another_encoding_is_refused(scratch):
    database = scratch.database(options="encoding 'SQL_ASCII' locale 'C' template template0")
    with pytest.raises(SchemaMismatch, match="expected a database with encoding UTF8, got SQL_ASC"):
        migrate(database.dsn("helix_migrator"))


def test_older_server_is_refused(empty, monkeypatch):
    """No such server is here, so the bound is moved above this one."""
    raised = migration._prepare().replace("150000", "990000")
    monkeypatch.setattr(migration, "_prepare", lambda: raised)
    with pytest.raises(SchemaMismatch, match="expected PostgreSQL 15 or newer, got"):
        migrate(empty.dsn("helix_migrator"))


def test_pooler_is_refused(empty, server, tmp_path):
    with (
        Pooler(tmp_path, server) as pooler,
        pytest.raises(Refused, match="expected a direct connection"),
    ):
        migrate(f"host={pooler.socket_dir} dbname={empty.name} user=helix_migrator")


def test_server_that_is_away_is_unavailable():
    with pytest.raises(Unavailable, match="cannot reach the database"):
        migrate("host=/nowhere dbname=x")


def test_clients_demand_their_revision(empty):
    with empty.connect("helix_local") as client:
        with pytest.raises(SchemaMismatch, match=r"got a database without.*run `helixq migrate`"):
            revision.demand(revision.schema_of(client))
        migrate(empty.dsn("helix_migrator"))
        revision.demand(revision.schema_of(client))


def test_newer_database_asks_for_a_newer_package(empty):
    migrate(empty.dsn("helix_migrator"))
    with empty.connect("helix_migrator") as owner:
        owner.execute("update helix_migration.revision set version_num = '9999'")
        owner.execute("update helix_migration.reach set oldest = '9000'")
    with pytest.raises(
        SchemaMismatch, match=r"newer 9999, which works with 9000.*upgrade the pack"
    ):
        migrate(empty.dsn("helix_migrator"))


def test_newer_database_that_reaches_back_is_left_as_it_is(empty):
    """While a release is rolled out, old programs start on the new schema."""
    migrate(empty.dsn("helix_migrator"))
    with empty.connect("helix_migrator") as owner:
        owner.execute("update helix_migration.revision set version_num = '9999'")
        revision.demand(revision.schema_of(owner))
    outputs = []
    assert migrate(empty.dsn("helix_migrator"), report=outputs.append).after == "9999"
    assert outputs == ["at the newer revision 9999, which this release works with"]


def test_names_of_the_files_agree_with_alembic():
    config = Config()
    config.set_main_option("script_location", str(migration.MIGRATIONS))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    known = [entry.revision for entry in script.walk_revisions()]
    assert script.get_heads() == [revision.head()]
    assert sorted(known) == revision.revisions()


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
