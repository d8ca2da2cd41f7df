"""`helixq demo`: the promise in one command, with nothing prepared."""

from __future__ import annotations

import os
import subprocess

import pytest

from helixqueue.cli.exits import Exit
from tests.cli.conftest import HELIXQ, Done


@pytest.mark.timeout(240)
def test_each_sample_takes_effect_once_though_workers_are_killed_and_frozen(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    done = subprocess.run(
        [HELIXQ, "demo", "--json"],
        env=kept | {"TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    told = Done(done.returncode, done.stdout, done.stderr).json
    assert (told["rows"], told["batches"], told["effects"]) == (14, 12, 12)
    assert (told["duplicates"], told["refused_identities"]) == (1, 1)
    assert ("bo", True) in {
        (one["worker"], one["owner"] not in {"", "bo"}) for one in told["late_writes_refused"]
    }
    assert told["proven"] is True
    assert "killed worker ada" in done.stderr
    assert "froze worker bo" in done.stderr
    assert list(tmp_path.iterdir()) == []
