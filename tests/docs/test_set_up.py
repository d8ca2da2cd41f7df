"""docs/deploy/README.md: from an empty server to a worker that has only a token."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from helixqueue.embedded import Postgres
from tests.support.cli import HELIXQ

GUIDE = Path(__file__).parents[2] / "docs" / "deploy" / "README.md"
LOGINS = {"OWNER": "lab_owner", "PROGRAM": "lab_app", "OPERATOR": "lab_keeper"}


@pytest.fixture
def empty(tmp_path):
    """A separate server: the logins of the guide exist in all databases of a server."""
    postgres = Postgres(tmp_path / "postgres")
    postgres.start()
    yield postgres
    postgres.stop()


def dsn(server, role, name="lab"):
    return f"postgresql://{role}@/{name}?host={quote(str(server.socket_dir), safe='')}"


def run(command, text=None, **environment):
    done = subprocess.run(
        command, input=text, env=os.environ | environment,
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def serve(server):
    command = [HELIXQ, "serve", "--port", "0", "--json", "--dsn", dsn(server, "helix_service")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as service:
        try:
            yield json.loads(service.stdout.readline())["url"]
        finally:
            service.terminate()


def test_guide_leads_to_a_service_and_a_worker_with_only_a_token(empty):
    psql = [empty.program("psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname"]
    admins = iter([dsn(empty, "helix_bootstrap", "postgres"), dsn(empty, "lab_owner")])
    environment = {f"{name}_DSN": dsn(empty, role) for name, role in LOGINS.items()}
    environment["PATH"] = f"{HELIXQ.parent}:{os.environ['PATH']}"
    guide = GUIDE.read_text(encoding="utf-8")
    for kind, block in re.findall(r"```(sql|sh)\n(.*?)```", guide, re.DOTALL):
        if kind == "sql":
            run([*psql, next(admins)], block)
        else:
            output = run(["/bin/sh", "-e"], block, **environment)
    token = output.split()[-1]
    run([HELIXQ, "submit", "basecall", "s-1", "{}", "--tenant", "lab",
         "--dsn", dsn(empty, "lab_app")])  # fmt: skip
    with serve(empty) as url:
        work = [HELIXQ, "work", "basecall", "--exec", "true", "--until-idle", "--json"]
        assert json.loads(run(work, HELIX_URL=url, HELIX_TOKEN=token))["completed"] == 1
