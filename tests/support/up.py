"""`helixq up` as a process: embedded servers in a directory of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.cli import HELIXQ
from tests.support.service import TLS

ROOT = Path(__file__).parents[2]


def environment(tmp_path, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    return kept | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), **more}


def started(tmp_path, *arguments, **options):
    return subprocess.Popen(
        # A suite in a shell's background has Ctrl-C switched off, and children inherit that.
        ["env", "--default-signal=INT", HELIXQ, "up", "--data", tmp_path / "data", *arguments],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def messages_of(log):
    """The messages of a log; with `--json` every line is JSON and has a level."""
    lines = [json.loads(line) for line in log.splitlines()]
    assert {line["level"] for line in lines} <= {"info", "warning", "error"}
    return "".join(f"{line['message']}\n" for line in lines if "message" in line)


class Up:
    def __init__(self, process, facts):
        self.process = process
        self.facts = facts
        self.url = facts["url"]
        self.code = facts["login"].partition("code=")[2]

    def token(self):
        response = httpx.post(f"{self.url}/v1/login", json={"code": self.code}, verify=TLS)
        assert response.status_code == 201
        return response.json()["token"]

    def client(self):
        headers = {"Authorization": f"Bearer {self.token()}"}
        return httpx.Client(base_url=self.url, headers=headers, verify=TLS, timeout=30)

    def stopped(self, how=signal.SIGINT):
        self.process.send_signal(how)
        out, log = self.process.communicate(timeout=60)
        output = messages_of(out + log)
        assert "Traceback" not in output
        return self.process.returncode, output


@contextmanager
def up(tmp_path, *arguments):
    process = started(tmp_path, "--port", "0", "--json", *arguments)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Up(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
