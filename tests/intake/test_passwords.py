"""The password of Redis comes from the environment or a file, and is shown nowhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from helixqueue.cli.main import main
from helixqueue.embedded import binaries
from helixqueue.engine import letters
from helixqueue.errors import Refused, Unavailable
from helixqueue.intake.settings import PASSWORD_VARIABLE, IntakeSettings
from helixqueue.producer import Producer
from tests.support.cli import run_in_process
from tests.support.lab import wait_until
from tests.support.streams import RedisServer, StreamLab, intake_process

pytestmark = pytest.mark.module_database
SECRET = "canary-4711"  # noqa: S105 - of a server that lives for one test
# What docs/guides/streams.md grants to the user of an intake.
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "streams.md"
INTAKE_COMMANDS = (
    "+xreadgroup +xautoclaim +xclaim +xpending +xack "
    "+xrange +xlen +xinfo +xgroup +xtrim +time +eval"
)


@pytest.fixture
def protected(database, tmp_path):
    """A stream on a Valkey with a password for the default user and an ACL user `lab`."""
    server = RedisServer(binaries.valkey_programs() / "valkey-server", tmp_path)
    server.start()
    stream = StreamLab(database, server.url)
    admin = stream.redis
    keys = f"~{stream.stream}"
    admin.execute_command(
        "ACL", "SETUSER", "lab", "on", f">{SECRET}", keys, *INTAKE_COMMANDS.split()
    )
    admin.execute_command("CONFIG", "SET", "requirepass", SECRET)
    admin.execute_command("AUTH", SECRET)
    yield stream
    stream.close()
    server.kill()


@pytest.fixture
def by_environment(monkeypatch):
    monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)


@pytest.mark.usefixtures("by_environment")
def test_password_of_the_environment_serves_intake_and_producer(protected):
    with Producer(protected.url, protected.stream) as producer:
        producer.send("s1", {})
    protected.drain()
    assert protected.batches == 1


def test_acl_user_with_a_password_file_needs_few_commands(protected, tmp_path):
    protected.add("s1", "s2")
    assert INTAKE_COMMANDS in GUIDE.read_text(encoding="utf-8")
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n", encoding="utf-8")
    named = {"redis_username": "lab", "redis_password_file": str(file)}
    intake = protected.drain(**named, trim=True)
    assert (protected.batches, intake.counters.acknowledged) == (2, 2)
    intake._stream.trim()
    assert protected.redis.xlen(protected.stream) == 0
    assert intake.counters.redis_failures == 0


@pytest.mark.parametrize("named", [{}, {"redis_username": "lab"}], ids=["requirepass", "acl"])
def test_refused_password_is_reported_without_being_shown(protected, monkeypatch, caplog, named):
    wrong = f"{SECRET}-wrong"
    monkeypatch.setenv(PASSWORD_VARIABLE, wrong)
    caplog.set_level(logging.DEBUG, "helixqueue")
    protected.add("s1")
    with protected.running(**named) as intake:
        wait_until(lambda: "refused the user name or the password" in (intake.problem or ""))
        rows = wait_until(
            lambda: [
                row
                for row in protected.lab.run(letters.intakes(tenant="a"))
                if row.stream == protected.stream and row.problem
            ]
        )
        monkeypatch.setenv(PASSWORD_VARIABLE, SECRET)
    assert SECRET not in caplog.text
    assert SECRET not in repr(rows) + repr(intake.settings) + str(intake.problem)
    assert protected.batches == 0
    monkeypatch.setenv(PASSWORD_VARIABLE, wrong)
    with (
        Producer(protected.url, protected.stream) as producer,
        pytest.raises(Unavailable) as failed,
    ):
        producer.send("s2", {})
    assert SECRET not in str(failed.value)


@pytest.mark.usefixtures("by_environment")
def test_password_is_in_no_argument_output_or_status(protected, tmp_path):
    protected.add("s1")
    process = intake_process(protected, tmp_path)
    wait_until(lambda: protected.batches == 1)
    wait_until(protected.is_drained)
    assert SECRET.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    login = {"HELIX_DSN": protected.database.dsn("pool")}
    status = run_in_process(["intake", "status", "--json"], login)
    assert status.json["rows"]
    process.terminate()
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert SECRET not in out + errors + status.out + status.err


@pytest.mark.parametrize(
    "url",
    [f"redis://u:{SECRET}@h", f"unix:///run/x.sock?password={SECRET}", f"rediss://:{SECRET}@h"],
)
def test_password_in_a_url_is_refused_and_not_repeated(tmp_path, capsys, url):
    named = {"stream": "s", "tenant": "a", "queues": ("q",)}
    with pytest.raises(Refused, match=PASSWORD_VARIABLE) as refused:
        IntakeSettings(redis=url, **named)
    config = tmp_path / "intake.toml"
    config.write_text(f'stream="s"\ntenant="a"\nqueues=["q"]\nredis="{url}"\n', encoding="utf-8")
    for arguments in (["--redis", url, "--stream", "s"], ["--config", str(config)]):
        with pytest.raises(SystemExit) as ended:
            main(["intake", "run", *arguments])
        assert ended.value.code != 0
    printed = capsys.readouterr()
    assert PASSWORD_VARIABLE in printed.err
    assert SECRET not in printed.err + printed.out + str(refused.value)
