"""`helixq demo`: the promise in one command, with nothing prepared."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from helixqueue.cli.exits import Exit
from tests.support.cli import HELIXQ, CommandResult


def environment(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    return kept | {"TMPDIR": str(tmp_path)}


def test_ctrl_c_ends_the_demo_silently_and_removes_its_files(tmp_path):
    with subprocess.Popen(
        # A suite in a shell's background has Ctrl-C switched off, and children inherit that.
        ["env", "--default-signal=INT", HELIXQ, "demo"],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        output = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "starting a PostgreSQL" in output
    assert (process.returncode, rest) == (Exit.INTERRUPTED, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(240)
def test_each_demo_sample_takes_effect_once_although_workers_die(tmp_path):
    done = subprocess.run(
        [HELIXQ, "demo", "--json"],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    output = CommandResult(done.returncode, done.stdout, done.stderr).json
    assert (output["rows"], output["batches"], output["effects"]) == (14, 12, 12)
    assert (output["duplicates"], output["refused_identities"]) == (1, 1)
    assert ("bo", True) in {
        (item["worker"], item["owner"] not in {"", "bo"}) for item in output["late_writes_refused"]
    }
    assert output["proven"] is True
    assert "killed worker ada" in done.stderr
    assert "froze worker bo" in done.stderr
    assert list(tmp_path.iterdir()) == []
