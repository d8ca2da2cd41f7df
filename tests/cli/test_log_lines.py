"""Logs of long-running commands: JSON lines with a level only, from the first line to the last."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess

import httpx

from helixqueue.cli.exits import Exit
from tests.support.cli import HELIXQ

LEVELS = {"info", "warning", "error"}


def parsed(text):
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["level"] for line in lines} <= LEVELS
    assert all("message" in line or "operation" in line for line in lines)
    assert all("at" in line for line in lines)
    return lines


def serve(*arguments, **environment):
    return subprocess.Popen(
        [HELIXQ, "serve", "--port", "0", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_service_logs_json_lines_from_start_to_stop(database):
    with serve("--dsn", database.dsn("service")) as process:
        first = process.stdout.readline()
        [started] = parsed(first)
        assert started["message"] == f"serving {started['url']}"
        assert httpx.get(f"{started['url']}/v1/queues").status_code == 401
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=60)
    lines = parsed(out + log)
    assert [line["status"] for line in lines if line.get("operation")] == [401]


def test_service_logs_an_unreachable_database_as_a_warning(tmp_path):
    with serve("--dsn", f"postgresql://x@/y?host={tmp_path}") as process:
        parsed(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    [warning] = [line for line in parsed(log) if "responding 503" in line.get("message", "")]
    assert warning["level"] == "warning"


def test_service_that_cannot_start_logs_the_error(database):
    with serve("--dsn", database.dsn("app_a")) as process:
        out, log = process.communicate(timeout=60)
    assert (process.returncode, out) == (Exit.REFUSED, "")
    *_, last = parsed(log)
    assert (last["level"], last["message"].startswith("helixq: ")) == ("error", True)


def test_worker_with_json_writes_json_lines_to_both_streams(helixq, lab):
    lab.queue(max_attempts=1)
    lab.submit("Sample-1")
    done = helixq.process("work", lab.q, "--exec", "true", "--until-idle", "--json")
    [summary] = parsed(done.out)
    assert (summary["completed"], summary["level"]) == (1, "info")
    parsed(done.err)


def on_a_terminal(*command, columns, **environment):
    """What a command prints to both streams, on a terminal of that width."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        command, env={**os.environ, **size, **environment}, stdout=follower, stderr=follower
    ) as process:
        os.close(follower)
        pieces = []
        while True:
            try:
                pieces.append(os.read(leader, 65536))
            except OSError:  # the other end is closed
                break
        os.close(leader)
    return b"".join(pieces).decode().replace("\r\n", "\n"), process.returncode


def test_messages_on_a_narrow_terminal_wrap_between_words(tmp_path):
    arguments = ("queue", "list", "--data", tmp_path / "none")
    shown, code = on_a_terminal(HELIXQ, *arguments, columns=60)
    assert code == Exit.USAGE
    assert {"database:", "embedded", "`helixq", "up`", "migrate`"} <= set(shown.split())
    assert all(len(line) <= 60 or str(tmp_path) in line for line in shown.splitlines())
    assert shown.splitlines()[-1] == "help: helixq queue list --help"


def test_log_mode_can_be_selected_on_a_terminal(database):
    words = ("work", "nowhere", "--exec", "true", "--dsn", database.dsn("pool"), "--tenant", "a")
    shown, code = on_a_terminal(HELIXQ, *words, columns=80, HELIX_LOG="json")
    assert code == Exit.REFUSED
    assert [line["level"] for line in parsed(shown)][-1] == "error"
    shown, _ = on_a_terminal(HELIXQ, *words, columns=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert not shown.startswith("{")
