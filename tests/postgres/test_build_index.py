"""A later revision can build an index beside running work, and recovers from a failed build."""

import shutil
import subprocess

import psycopg
import pytest

from helixqueue.engine import migrate as migration
from helixqueue.engine import revision
from helixqueue.engine.migrate import migrate, print_sql
from helixqueue.engine.migrations import ddl
from helixqueue.errors import HelixError

LATER = """
from helixqueue.engine.migrations import ddl

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    ddl.build_index("create unique index concurrently sample_once on public.sample (name)")
"""


@pytest.fixture
def later(tmp_path, monkeypatch):
    """A release with one revision more."""
    copy = tmp_path / "migrations"
    shutil.copytree(migration.MIGRATIONS, copy)
    (copy / "versions" / "r0002_sample.py").write_text(LATER, encoding="utf-8")

    def release():
        monkeypatch.setattr(migration, "MIGRATIONS", copy)
        monkeypatch.setattr(revision, "VERSIONS", copy / "versions")

    return release


@pytest.fixture
def samples(empty, later):
    """A database one revision behind, whose rows forbid the unique index."""
    migrate(empty.dsn("helix_migrator"))
    with empty.connect("helix_migrator") as owner:
        owner.execute("create table public.sample (name text)")
        owner.execute("insert into public.sample values ('S1'), ('S1')")
    later()
    return empty


def test_failed_build_is_dropped_and_built_again(samples):
    dsn = samples.dsn("helix_migrator")
    with pytest.raises(HelixError, match="could not create unique index"):
        migrate(dsn)
    assert validity(samples) is False
    assert revision.current(dsn) == "0001"

    remove_the_repeat(samples)
    outputs = []
    assert migrate(dsn, report=outputs.append).after == "0002"
    assert "  index sample_once is left over from a build that failed; dropping it" in outputs
    assert validity(samples) is True


def test_build_that_ended_before_its_record_is_kept(samples):
    remove_the_repeat(samples)
    with samples.connect("helix_migrator") as owner:
        owner.execute("create unique index sample_once on public.sample (name)")
    before = samples.value("select 'public.sample_once'::regclass::oid")
    migrate(samples.dsn("helix_migrator"))
    assert samples.value("select 'public.sample_once'::regclass::oid") == before


def test_writers_continue_during_an_index_build(samples):
    """An older writer holds up the build for as long as it likes, beyond lock_timeout even."""
    remove_the_repeat(samples)
    with psycopg.connect(samples.dsn("helix_migrator")) as writer:
        writer.execute("insert into public.sample values ('S2')")
        process = migration_process(samples)
        wait_for_a_lock(samples)
        with samples.connect("helix_migrator") as other:
            other.execute("insert into public.sample values ('S3')")
        writer.commit()
    assert process.wait(30) == 0
    assert validity(samples) is True


def test_printed_script_recovers_as_well(samples):
    dsn = samples.dsn("helix_migrator")
    script = print_sql(since="0001")
    assert psql(samples, script).returncode != 0
    assert validity(samples) is False
    remove_the_repeat(samples)
    done = psql(samples, script)
    assert done.returncode == 0, done.stderr
    assert validity(samples) is True
    assert revision.current(dsn) == "0002"


@pytest.mark.parametrize("wrong", ["create index x on a.b (c)", "create index concurrently x on b"])
def test_other_statements_are_refused(wrong):

    with pytest.raises(ValueError, match="expected `create"):
        ddl.build_index(wrong)


def validity(database):
    rows = database.rows(
        "select indisvalid from pg_index where indexrelid = to_regclass('public.sample_once')"
    )
    return rows[0][0] if rows else None


def remove_the_repeat(database):
    with database.connect("helix_migrator") as owner:
        owner.execute(
            "delete from public.sample where ctid = (select min(ctid) from public.sample)"
        )


def psql(database, script):
    return subprocess.run(
        [database.server.program("psql"), "-X", "-q", "-f", "-", database.dsn("helix_migrator")],
        input=script,
        capture_output=True,
        text=True,
        check=False,
    )


def migration_process(database):
    """The printed script in a process of its own."""
    process = subprocess.Popen(
        [database.server.program("psql"), "-X", "-q", "-f", "-", database.dsn("helix_migrator")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(print_sql(since="0001"))
    process.stdin.close()
    return process


def wait_for_a_lock(database):
    """Until the build is seen to wait."""
    with database.connect("helix_bootstrap") as connection:
        for _ in range(2000):
            row = connection.execute(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                "and datname = %s and query ilike 'create unique index concurrently%%'",
                (database.name,),
            ).fetchone()
            if row == (1,):
                return
            connection.execute("select pg_sleep(0.01)")
    raise AssertionError("the build never waited")
