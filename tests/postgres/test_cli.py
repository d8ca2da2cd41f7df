"""`helixq` as a script sees it: standard output, standard error, exit code."""

import contextlib
import json
import os
import subprocess
import sys
from importlib import import_module

import pytest
import typer
from typer.main import get_command

from helixqueue import errors
from helixqueue.cli.exits import Exit, exit_for
from helixqueue.cli.main import VERBS
from helixqueue.engine import migrate as migration
from helixqueue.engine import revision
from tests.support.cli import HELIXQ, run_in_process
from tests.support.duties import run_all_duties


def helixq(*arguments, cwd=".", **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    with contextlib.chdir(cwd):
        return run_in_process(arguments, kept | environment)


def test_help_loads_no_verb():
    program = "import sys; from helixqueue.cli.main import build; build(''); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"psycopg", "alembic", "sqlalchemy", "rich"} & set(done.stdout.split())


@pytest.mark.parametrize("verb", VERBS)
def test_command_table_matches_the_command_help(verb):
    module, summary = VERBS[verb]
    app = typer.Typer()
    app.callback()(lambda: None)
    import_module(module).register(app)
    [command] = [found for name, found in get_command(app).commands.items() if name == verb]
    assert command.help.partition("\n")[0] == summary


def test_version():
    assert helixq("--version").out.startswith("helixq ")


def test_wrong_verb_is_a_usage_error():
    done = helixq("migrat")
    assert done.code == Exit.USAGE
    assert "migrat" in done.err


def test_second_migrate_changes_nothing(empty):
    dsn = empty.dsn("helix_migrator")
    first = helixq("migrate", "--dsn", dsn, "--json")
    assert first.code == Exit.OK, first.err
    assert json.loads(first.out) == {"before": None, "after": revision.head(), "changed": True}
    assert "10_roles.sql" in first.err

    again = helixq("migrate", HELIX_DSN=dsn)
    assert again.out == f"revision {revision.head()} (before: {revision.head()})\n"
    assert f"dbname={empty.name} user=helix_migrator" in again.err


def test_two_processes_migrate_at_once(empty):
    command = [HELIXQ, "migrate", "--json", "--dsn", empty.dsn("helix_migrator")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    changed = [json.loads(process.communicate(timeout=60)[0])["changed"] for process in both]
    assert sorted(changed) == [False, True]


def test_print_sql_needs_no_database(tmp_path):
    done = helixq("migrate", "--print-sql", cwd=tmp_path)
    assert (done.code, done.err) == (Exit.OK, "")
    assert done.out == migration.print_sql()
    assert list(tmp_path.iterdir()) == []

    result = helixq("migrate", "--print-sql", "--json", "--since", revision.head())
    assert "create table helix.batch" not in json.loads(result.out)["sql"]


def test_unknown_revision_is_refused():
    done = helixq("migrate", "--print-sql", "--since", "7777")
    assert done.code == Exit.REFUSED
    assert "got '7777'" in done.err


def test_error_is_one_message_with_an_exit_code(empty):
    done = helixq("migrate", "--dsn", "host=/nowhere dbname=x", "--json")
    assert done.code == Exit.UNAVAILABLE
    assert json.loads(done.out)["error"]["kind"] == "Unavailable"
    assert "Traceback" not in done.err
    assert "helixq: cannot reach the database" in done.err

    done = helixq("migrate", "--dsn", empty.dsn("helix_local"))
    assert done.code == Exit.REFUSED
    assert "grant create on database" in done.err


def test_passwords_are_not_shown(empty):
    done = helixq("doctor", "--dsn", f"{empty.dsn('helix_local')}&password=geheim")
    assert "geheim" not in done.out + done.err


def test_dsn_that_makes_no_sense_is_a_usage_error():
    assert helixq("doctor", "--dsn", "postgres//oops=").code == Exit.USAGE


def test_read_only_command_creates_nothing(tmp_path):
    done = helixq("doctor", cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert "no database" in done.err
    assert list(tmp_path.iterdir()) == []
    both = helixq("doctor", "--dsn", "dbname=x", "--data", tmp_path)
    assert both.code == Exit.USAGE


def test_embedded_servers_are_started_for_the_command(tmp_path):
    made = helixq("migrate", "--data", tmp_path / "lab", HELIX_DSN="host=/nowhere")
    assert made.code == Exit.OK, made.err
    assert f"database: embedded, in {tmp_path / 'lab'}" in made.err
    result = helixq("doctor", "--json", HELIX_DATA=str(tmp_path / "lab"))
    assert result.code in {Exit.OK, Exit.NO}, result.err
    findings = {finding["name"]: finding for finding in json.loads(result.out)["findings"]}
    assert findings["schema"]["found"] == revision.head()
    assert findings["durability"]["verdict"] == "ok"


@pytest.mark.usefixtures("durable")
def test_doctor_reports_faults_by_exit_code(database):
    run_all_duties(database)
    well = helixq("doctor", "--dsn", database.dsn("app_a"))
    assert well.code == Exit.OK, well.out
    lines = [line.split("\t") for line in well.out.splitlines()]
    assert {len(line) for line in lines} == {5}
    ill = helixq("doctor", "--json", "--dsn", database.dsn("helix_bootstrap"))
    assert ill.code == Exit.NO
    assert json.loads(ill.out)["ok"] is False


def test_errors_have_their_own_numbers():
    assert exit_for(errors.NotPermitted("")) == Exit.REFUSED
    assert exit_for(errors.SchemaMismatch("")) == Exit.SCHEMA
    assert exit_for(errors.Retryable("")) == Exit.BUSY
    assert exit_for(errors.HelixError("")) == Exit.FAILED


def test_bug_does_not_exit_like_a_negative_answer():
    program = "import helixqueue.cli.main as m\nm.build = lambda _: 1 / 0\nm.main(['migrate'])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.BUG
    assert "ZeroDivisionError" in done.stderr
