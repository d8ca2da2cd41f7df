"""`helixq up`: from nothing to a service that works, and cleanly back."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from helixqueue.cli.exits import Exit
from helixqueue.cli.main import main
from helixqueue.client.embedded_setup import set_up
from helixqueue.embedded import Servers, binaries
from helixqueue.embedded.account import explain_os_error
from helixqueue.engine.migrate import migrate
from helixqueue.intake.settings import PASSWORD_VARIABLE
from helixqueue.service.address import address_of
from helixqueue.service.run import listener_on
from helixqueue.up.databases import grant_service
from helixqueue.up.directory_lock import LOCK, lock_directory, running_up
from helixqueue.up.processes import Processes, SupervisedProcess
from tests.support.cli import HELIXQ
from tests.support.lab import wait_until
from tests.support.service import TLS
from tests.support.streams import RedisServer
from tests.support.terminal import Terminal
from tests.support.up import Up, environment, messages_of, started, up

ROOT = Path(__file__).parents[2]
RESIDENT_MB = 150
# Servers from wheels, on two cores that the whole suite shares.
pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("up")]

APP = """
from helixqueue import Lease, Queue

double = Queue("double", lease=5)

@double.handler
def run(lease: Lease):
    return {"twice": 2 * lease.payload["n"]}
"""


def resident_mb(pid):
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def test_up_starts_from_nothing_and_a_restart_keeps_data(tmp_path):
    with up(tmp_path) as first:
        with first.client() as http:
            assert http.put("/v1/queues/q", json={"reason": "x"}).status_code == 200
            work = {"identity": "S-1", "payload": {"n": 1}}
            receipt = http.post("/v1/queues/q/batches", json=work).json()["receipt"]
            ready = http.get("/health/ready").json()
        assert {duty["duty"] for duty in ready["duties"]} >= {"reap", "promote", "retire"}
        assert resident_mb(first.facts["pid"]) < RESIDENT_MB
        with redis.Redis.from_url(first.facts["redis"]) as valkey:
            assert valkey.ping()
        assert "XADD batches" in first.facts["xadd"]
        with psycopg.connect(first.facts["dsn"]) as program:
            schema = program.execute("create table mine as select current_schema()", prepare=False)
            assert schema.rowcount == 1

        second = started(tmp_path, "--json")
        answer, output = second.communicate(timeout=60)
        assert second.returncode == Exit.RUNNING
        assert json.loads(answer)["error"]["url"] == first.url
        assert f"{first.url} (process {first.facts['pid']})" in output
        assert httpx.get(f"{first.url}/health/live", verify=TLS).status_code == 200

        another = subprocess.run(
            [HELIXQ, "token", "link", "--data", tmp_path / "data", "--json"],
            env=environment(tmp_path), capture_output=True, text=True, check=True,
        )  # fmt: skip
        code = json.loads(another.stdout)["login"].removeprefix(f"{first.url}/login?code=")
        answer = httpx.post(f"{first.url}/v1/login", json={"code": code}, verify=TLS)
        assert (answer.status_code, answer.json()["tenant"]) == (201, "default")

        ended, output = first.stopped()
        assert (ended, output.endswith("\nstopping; all data is kept\n")) == (Exit.OK, True)
    with up(tmp_path) as again:
        spent = httpx.post(f"{again.url}/v1/login", json={"code": first.code}, verify=TLS)
        assert spent.status_code == 404
        with again.client() as http:
            repeated = http.post("/v1/queues/q/batches", json=work)
            assert (repeated.json()["decision"], repeated.json()["receipt"]) == (
                "duplicate",
                receipt,
            )
        assert again.stopped(signal.SIGTERM)[0] == Exit.OK


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data directory with a migrated database; creating one takes longer than copying it."""
    directory = tmp_path_factory.mktemp("prepared") / "data"
    with Servers(directory).postgres.start() as postgres:
        set_up(postgres)
    return directory


def copy_data(prepared, tmp_path):
    subprocess.run(["cp", "--archive", prepared, tmp_path / "data"], check=True)


def test_up_reports_the_restart_of_a_killed_server(tmp_path, prepared):
    copy_data(prepared, tmp_path)
    with up(tmp_path) as running:
        with running.client() as http:
            for server in ("postgres", "valkey"):
                [pid_file] = (tmp_path / "data" / server / "data").glob("*.pid")
                first = int(pid_file.read_text().split()[0])
                os.kill(first, signal.SIGKILL)
                found = []
                while not found or not found[-1].endswith(" is running again\n"):
                    found.append(messages_of(running.process.stderr.readline()))
                title = {"postgres": "PostgreSQL", "valkey": "Valkey"}[server]
                expected = [f"{title} died; restarting it\n", f"{title} is running again\n"]
                assert found[-2:] == expected
                wait_until(lambda: http.get("/v1/queues").status_code == 200)
        ended, output = running.stopped()
        assert (ended, output) == (Exit.OK, "stopping; all data is kept\n")


def test_up_prints_its_link_first_and_opens_it_in_a_browser(tmp_path, prepared, monkeypatch):
    copy_data(prepared, tmp_path)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    process = started(tmp_path, "--port", "0", "--open")
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        link = lines[2].strip()
        assert lines[:2] == ["\n", "Open the dashboard, once and within 15 minutes:\n"]
        wait_until(opened.exists)
        assert opened.read_text().strip() == link
        page = httpx.get(link, verify=TLS)
        assert (page.status_code, "Open the dashboard" in page.text) == (200, True)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def catches_interrupts(pid):
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return bool(int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16) & 1 << (signal.SIGINT - 1))


def until_ours(pid):
    """Python catches Ctrl-C as soon as it can; from its hands it goes to ours."""
    wait_until(lambda: catches_interrupts(pid))
    maps = Path(f"/proc/{pid}/maps")
    wait_until(
        lambda: not catches_interrupts(pid) or "pydantic" in maps.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("seconds", [0.0, 0.4, 1.5])
def test_ctrl_c_during_start_prints_no_traceback(tmp_path, seconds):
    process = started(tmp_path)
    until_ours(process.pid)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode in {Exit.INTERRUPTED, -signal.SIGINT}
    assert "Traceback" not in output
    assert "Interrupt" not in output


def test_local_workers_run_handlers_and_end_with_up(tmp_path, prepared):
    copy_data(prepared, tmp_path)
    (tmp_path / "twice.py").write_text(APP, encoding="utf-8")
    with up(tmp_path, "--app", "twice", "--workers", "1") as running:
        with running.client() as http:
            wait_until(lambda: http.get("/v1/queues/double").status_code == 200, seconds=60)
            work = {"identity": "S-1", "payload": {"n": 21}}
            batch = http.post("/v1/queues/double/batches", json=work).json()["receipt"]["batch_id"]
            story = wait_until(
                lambda: done(http.get(f"/v1/batches/{batch}", params={"payload": True})), seconds=60
            )
        assert story["result"] == {"twice": 42}
        # What became of it is in the workers' log, by its id, and not on the screen.
        log = (Path(running.facts["data"]) / "up-1.log").read_text(encoding="utf-8").splitlines()
        operations = [json.loads(line)["operation"] for line in log if batch in line]
        # Between the two it may have been released and claimed again.
        assert (operations[0], operations[-1]) == ("claim", "settle")
        children = descendants(running.process.pid)
        assert len(children) >= 1
        # Killed without a chance to clean up, it leaves no worker and no server behind.
        running.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in children), seconds=60)


def test_counts_of_two_local_workers_are_one_line_that_adds_up(tmp_path, prepared):
    copy_data(prepared, tmp_path)
    (tmp_path / "twice.py").write_text(APP, encoding="utf-8")
    data = ("--data", str(tmp_path / "data"))
    arguments = ("up", *data, "--port", "0", "--app", "twice", "--workers", "2")
    with Terminal(HELIXQ, *arguments, environment=environment(tmp_path), cwd=tmp_path) as screen:
        screen.expect("Ctrl-C stops it")
        rows = "".join(f'{{"identity": "S-{n}", "payload": {{"n": {n}}}}}\n' for n in range(30))
        submitting = ["submit", "double", "--create", "--from", "-", "--format", "jsonl", *data]
        submitted = subprocess.run(
            [HELIXQ, *submitting], input=rows, text=True, env=environment(tmp_path), check=False
        )
        assert submitted.returncode == Exit.OK
        screen.expect("0 running, 30 completed, 0 failed, 0 lost, 0 released", seconds=60)
        screen.interrupt()
        assert screen.exit_code(seconds=60) == Exit.OK
    each = re.findall(r"up-[12]: (\d+) completed, 0 failed, 0 lost, 0 released", screen.text)
    assert len(each) == 2
    assert sum(map(int, each)) == 30
    assert "all workers: 30 completed, 0 failed, 0 lost, 0 released" in screen.text
    assert len(re.findall(r"completed +S-\d+  \d+.\d s", screen.text)) == 30
    assert '{"' not in screen.text


def done(response):
    story = response.json()
    return story if story["state"] == "COMPLETED" else None


def descendants(pid):
    found = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    ]
    return found + [deeper for child in found for deeper in descendants(child)]


def alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_message_of_a_plain_client_becomes_one_batch_after_up(tmp_path, prepared):
    """Also one that was sent before the worker declared its queue, and one of an earlier `up`."""
    copy_data(prepared, tmp_path)
    (tmp_path / "twice.py").write_text(APP, encoding="utf-8")
    message = {"sample_id": "S-1", "queue": "double", "payload": '{"n": 21}'}
    with up(tmp_path, "--app", "twice", "--workers", "1") as running:
        with redis.Redis.from_url(running.facts["redis"]) as valkey, running.client() as http:
            entries = [valkey.xadd("batches", message).decode() for _ in range(2)]
            found = wait_until(lambda: completed(http, "double"), seconds=60)
            assert [batch["identity"] for batch in found] == ["S-1"]
            group = wait_until(lambda: acknowledged(valkey), seconds=60)
            assert group["last-delivered-id"].decode() == entries[-1]
            shown = http.get(f"/v1/batches/{found[0]['batch_id']}").json()
            assert {source["id"] for source in shown["sources"]} == set(entries)
            [intake] = [
                pid for pid in descendants(running.process.pid) if "up.intake" in words_of(pid)
            ]
            os.kill(intake, signal.SIGKILL)  # it is restarted
            valkey.xadd("batches", message | {"sample_id": "S-2"})
            wait_until(lambda: len(completed(http, "double") or []) == 2, seconds=60)
        ended, errors = running.stopped()
        assert (ended, "dead letter" in errors) == (Exit.OK, False)
        log = (tmp_path / "data" / "intake.log").read_text(encoding="utf-8")
        assert "Traceback" not in log


def completed(http, queue):
    params = {"queue": queue, "state": "COMPLETED"}
    return http.get("/v1/batches", params=params).json()["rows"]


def acknowledged(valkey):
    [group] = valkey.xinfo_groups("batches")
    return group if group["pending"] == 0 and group["lag"] == 0 else None


def words_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_demo_completes_each_sample_once_beside_other_programs(tmp_path):
    """README's ten lines and the quickstart run while `make run` runs in the same directory."""
    with subprocess.Popen(
        ["env", "--default-signal=INT", HELIXQ, "up", "--demo", "--port", "0", "--json"],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        facts = json.loads(process.stdout.readline())
        assert facts["level"] == "info"
        assert (facts["data"], facts["tenant"]) == (str(tmp_path / "helix-demo"), "demo")
        reader = f"{sys.executable} -W error -m tests.support.doc_reader {ROOT}"
        readme = subprocess.Popen(
            ["sh", "-c", f"{reader}/README.md && {reader}/docs/quickstart.md"],
            cwd=tmp_path,
            env=environment(tmp_path) | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = ""
        for line in process.stderr:
            found = re.search(
                r"\((\d+) by XADD\), duplicates (\d+), invalid (\d+) .*completed (\d+), each once",
                line,
            )
            if found and all(int(number) > 0 for number in found.groups()):
                break
        assert "replay ok" in line
        _, readme_errors = readme.communicate(timeout=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (readme.returncode, readme_errors) == (0, "")
    assert process.returncode == Exit.OK, errors
    assert "Traceback" not in errors
    assert "NOT ONCE" not in errors
    assert messages_of(errors).endswith("replay ok\n")


REPORT = (
    r"\d\d:\d\d:\d\d  submitted (\d+) \(\d+ by XADD\), duplicates (\d+), invalid (\d+)\n"
    r" {10}completed (\d+), each once \| killed \d+, late writes (\d+) \| replay ok"
)


def test_demo_on_a_terminal_reports_in_two_lines_and_agrees_after_a_restart(tmp_path):
    path = f"{HELIXQ.parent}{os.pathsep}{os.environ['PATH']}"
    options = {"environment": environment(tmp_path, PATH=path), "cwd": tmp_path}
    for restarts in (False, True):
        with Terminal(HELIXQ, "up", "--demo", "--port", "0", **options) as screen:
            banner = screen.expect(
                r"Next, in another terminal:\n(helixq .*--watch 2 --data helix-demo)"
            )
            report = screen.expect(REPORT)
            submitted, duplicates, invalid, completed, late = map(int, report.groups())
            assert 0 < completed <= submitted - duplicates - invalid
            assert restarts is False or late <= 1, "refusals of the run before are counted"
            if restarts:
                watch = [HELIXQ, *banner[1].split()[1:]]
                with Terminal(*watch, **options) as other:
                    other.expect(r"demo-basecall +demo +open")
                    other.interrupt()
                link = subprocess.run(
                    [HELIXQ, "token", "link"], env=options["environment"], cwd=tmp_path,
                    capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert "tenant demo; valid once" in link.stderr
                url, _, code = link.stdout.strip().partition("/login?code=")
                assert httpx.post(f"{url}/v1/login", json={"code": code}).status_code == 201
            else:
                screen.expect("the late write of bo was refused", seconds=60)
            screen.interrupt()
            assert screen.exit_code(seconds=60) == Exit.OK
        for line in re.findall(r"^\d\d:.*(?:\n {10}.*)*", screen.text, re.MULTILINE):
            assert line.count("\n") <= 1, line


def test_make_run_starts_up_with_the_demo():
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "VENV=never-made", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    *before, last = done.stdout.splitlines()
    assert last.endswith("bin/helixq up --demo")
    # What only developers need takes longer to install than all the rest.
    assert [line for line in before if "pip install" in line and "'.[all]'" in line]
    assert not [line for line in before if "dev]" in line]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dsn", "postgresql://x@/y", "--demo"], "remove --dsn"),
        (["--dsn", "postgresql://x@/y", "--data", "d"], "got both"),
        (["--workers", "2"], "--app"),
        (["--dsn", "postgresql://x@/y", "--app", "m"], "--work-dsn"),
        (["--tenant", "No Such"], "tenant"),
        (["--app", "no.such"], "'no.such', which does not exist"),
        (["--redis", "nonsense"], "redis://host"),
        (["--redis", "redis://u:secret@h"], "HELIX_REDIS_PASSWORD"),
        (["--intake", "no-such.toml"], "no-such.toml"),
        (["--intake", "a.toml", "--no-intake"], "got both"),
        (["--dsn", "postgresql://x@/y", "--intake", "a.toml"], "--intake-dsn"),
    ],
)
def test_invalid_up_options_are_rejected_before_start(
    tmp_path, monkeypatch, capsys, arguments, words
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    assert ended.value.code in {Exit.USAGE, Exit.REFUSED}
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_up_rejects_a_port_in_use_before_starting_servers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        main(["up", "--port", str(taken.getsockname()[1])])
    assert ended.value.code == Exit.REFUSED
    assert "choose another with --port" in capsys.readouterr().err
    assert not (tmp_path / "helix-data" / "postgres").exists()


def ended_with(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    return ended.value.code, capsys.readouterr().err


def test_up_rejects_an_address_of_another_machine(tmp_path, capsys):
    """And no free port is looked for there, nor a word said of what would travel to it."""
    code, output = ended_with(capsys, "--host", "203.0.113.1", "--data", str(tmp_path / "data"))
    assert code == Exit.REFUSED
    assert output.count("\n") == 1
    assert "203.0.113.1:8080, which this machine does not have; choose one with --host" in output


def test_up_listens_on_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener_on("::1", 0, pytest.fail) as listener:
        assert re.fullmatch(r"http://\[::1\]:\d+", address_of(listener))


def test_unusable_data_directory_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "postgres").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "data", tmp_path / "spoilt"):
        code, output = ended_with(capsys, "--data", str(place))
        assert code == Exit.UNAVAILABLE
        assert "expected a directory that this user can" in output
        assert "Errno" not in output


def test_error_names_the_owner_of_the_directory(tmp_path):
    theirs = Path("/")
    if os.geteuid() == 0:
        theirs = tmp_path
        os.chown(theirs, 65_534, -1)
    denied = PermissionError(errno.EACCES, "Permission denied")
    owner = theirs.stat().st_uid
    explanation = (
        f"permission denied ({theirs} belongs to uid {owner}, and this is uid {os.geteuid()})"
    )
    assert (
        explain_os_error(theirs, denied) == explain_os_error(theirs / "none", denied) == explanation
    )
    assert (
        explain_os_error(theirs, OSError(errno.EROFS, "Read-only file system"))
        == "read-only file system"
    )


def test_url_of_a_killed_process_is_not_used(tmp_path):
    """Its port may be anybody's by now, and a link to it would hand over a code."""
    with lock_directory(tmp_path) as lock:
        lock.publish("http://127.0.0.1:8080")
        assert running_up(tmp_path).url == "http://127.0.0.1:8080"
        left = (tmp_path / LOCK).read_bytes()
    (tmp_path / LOCK).write_bytes(left)
    assert running_up(tmp_path).url is None


def test_process_that_cannot_start_is_retried(monkeypatch):
    """A machine without a process or a file to spare has one later; it is said meanwhile."""
    monkeypatch.setattr("helixqueue.up.processes.sys.executable", "/nowhere/python")
    output = asyncio.Queue()

    async def story():
        children = Processes([SupervisedProcess("up-1", "none")], output.put_nowait)
        children.start()
        found = [await asyncio.wait_for(output.get(), 10) for _ in range(2)]
        await children.stop()
        return found

    answer = asyncio.run(story())
    assert answer[0].startswith("up-1 did not start (no such file or directory); restarting")
    assert answer[1].startswith("up-1 did not start")


def test_url_of_does_not_block_a_start(tmp_path, monkeypatch):
    with (tmp_path / LOCK).open("w", encoding="utf-8") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(looker, fcntl.LOCK_UN))
        with lock_directory(tmp_path):
            assert running_up(tmp_path).url is None  # before the banner


def test_up_with_an_unreachable_database_exits_with_unavailable(capsys):
    code, errors = ended_with(capsys, "--dsn", "postgresql://x@127.0.0.1:1/y", "--port", "0")
    assert code == Exit.UNAVAILABLE
    assert "Connection refused" in errors
    assert "503" not in errors


@pytest.fixture
def protected_redis(tmp_path):
    """A Redis with a password."""
    valkey = RedisServer(binaries.valkey_programs() / "valkey-server", tmp_path)
    valkey.start()
    with valkey.client() as client:
        client.config_set("requirepass", "canary")
    yield valkey.url
    valkey.kill()


def test_up_migrates_an_external_server_and_hides_the_redis_password(
    server, tmp_path, protected_redis
):
    config = tmp_path / "intake.toml"
    config.write_text(f'stream = "in"\nqueues = ["q"]\nredis = "{protected_redis}"\n')
    with server_database(server, "up_given") as (owner, dsn), subprocess.Popen(
        [HELIXQ, "up", "--dsn", dsn, "--owner-dsn", owner, "--port", "0", "--json",
         "--intake", config, "--intake-dsn", dsn.replace("up_given@", "up_given_intake@")],
        env=environment(tmp_path, **{PASSWORD_VARIABLE: "canary"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        line = process.stdout.readline()
        assert line, process.stderr.read()
        running = Up(process, json.loads(line))
        assert (running.facts["data"], running.facts["stream"]) == (None, "in")
        with running.client() as http:
            assert http.get("/v1/queues").json() == {"rows": [], "next": None}
            assert http.put("/v1/queues/q", json={"reason": "x"}).status_code == 200
            with redis.Redis.from_url(protected_redis, password="canary") as valkey:  # noqa: S106
                valkey.xadd("in", {"sample_id": "S-1", "payload": "{}"})
            listed = {"queue": "q", "state": "PENDING"}
            wait_until(lambda: http.get("/v1/batches", params=listed).json()["rows"], seconds=60)
        words = "".join(words_of(pid) for pid in (process.pid, *descendants(process.pid)))
        assert "up.intake" in words
        ended, errors = running.stopped()
        assert ended == Exit.OK
        assert "canary" not in line + errors + words


def test_up_grants_a_role_that_a_newer_release_added(server):
    with server_database(server, "up_roles") as (owner, _):
        migrate(owner)
        grant_service(owner, "up_roles")
        with psycopg.connect(owner) as connection:
            connection.execute("revoke helix_webhook from up_roles")
        grant_service(owner, "up_roles")
        with psycopg.connect(owner) as connection:
            query = "select pg_has_role('up_roles', 'helix_webhook', 'member')"
            assert connection.execute(query).fetchone() == (True,)


@contextmanager
def server_database(server, name):
    with psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} owner helix_migrator")
        connection.execute(f"create role {name} login")
        connection.execute(f"create role {name}_intake login")
        try:
            yield (
                server.migrator_dsn.replace("/helix?", f"/{name}?"),
                server.dsn.replace("helix_local@", f"{name}@").replace("/helix?", f"/{name}?"),
            )
        finally:
            connection.execute(f"drop database {name} with (force)")
            connection.execute(f"drop role {name}, {name}_intake")
