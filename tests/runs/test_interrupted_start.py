"""A start that is killed at any point, and the same command again: one run, every datum once.

HELIX_PROOF=1 does so with a million inputs, and prints seconds and memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from helixqueue import HelixQueue
from helixqueue.failpoints import RUN_POINTS
from tests.support.cli import HELIXQ
from tests.support.lab import new_database
from tests.support.runs import allow

PAGES = 2  # of 2,000 datums
PROOF = bool(os.environ.get("HELIX_PROOF"))
# Exit status and peak memory of a command. A small process starts it, because a new process
# inherits the peak of the one that started it.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:], stdout=sys.stderr).returncode
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


class Start:
    """`helixq run start` over the files of a directory, in a process of its own."""

    def __init__(self, database, directory, count):
        self.database, self.directory = database, directory
        for number in range(count):
            folder = directory / "in" / f"{number // 1000:04}"
            if number % 1000 == 0:
                folder.mkdir(parents=True)
            (folder / f"{number:07}").touch()
        allow(database, f"file://{directory}")
        spec = {
            "pipeline": {"name": "many"}, "transform": {"cmd": ["true"]}, "pfs": False,
            "input": {"atom": {"URI": f"file://{directory}/in", "repo": "in", "glob": "/**"}},
            "egress": {"URI": f"file://{directory}/out"},
        }  # fmt: skip
        (directory / "many.json").write_text(json.dumps(spec))

    def __call__(self, key, failpoints=""):
        """Exit status, output, seconds and MiB."""
        command = [HELIXQ, "run", "start", self.directory / "many.json", "--key", key,
                   "--spool", self.directory / f"{key}.spool"]  # fmt: skip
        environment = os.environ | {
            "HELIX_DSN": self.database.dsn("pool"), "HELIX_TENANT": "a",
            "HELIX_FAILPOINTS": failpoints, "HELIX_FAILPOINT_FILE": str(self.directory / "point"),
        }  # fmt: skip
        began = time.monotonic()
        with (self.directory / "out.txt").open("w") as out:
            measured = subprocess.run(
                [sys.executable, "-c", MEASURE, *command],
                env=environment, stdout=subprocess.PIPE, stderr=out, text=True, check=True,
            )  # fmt: skip
        text = (self.directory / "out.txt").read_text()
        status, used = map(int, measured.stdout.split())
        return status, text, time.monotonic() - began, used // 1024


@pytest.mark.parametrize("point", RUN_POINTS)
def test_start_that_is_killed_continues_with_every_datum_once(database, tmp_path, point):
    count = PAGES * 2_000 - 7
    start = Start(database, tmp_path, count)
    status, text, _, _ = start(point, f"{point}=kill")
    assert status == -signal.SIGKILL, text
    assert (tmp_path / "point.fired").exists()
    status, text, _, _ = start(point)
    assert status == 0, text
    demand_every_datum(database, point, count)


def demand_every_datum(database, key, count):
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        [run] = [row for row in helix.runs() if row.key == key]
    assert (run.state, run.datums, run.appended, run.pending) == ("running", count, count, count)
    [(batches, names)] = database.rows(
        "select count(*), count(distinct identity) from helix.batch where run = %s", run.run
    )
    assert (batches, names) == (count, count)


@pytest.mark.timeout(3_600)
def test_long_start_that_is_killed_half_way_keeps_to_its_memory(database, tmp_path, capsys):
    count = 1_000_000 if PROOF else 8_000
    start = Start(database, tmp_path, count)
    status, text, *killed = start("long", f"run.appended=kill@{count // 4_000}")
    assert status == -signal.SIGKILL, text
    status, text, *resumed = start("long")
    assert status == 0, text
    status, text, *whole = start("whole")
    assert status == 0, text
    if PROOF:
        with capsys.disabled():
            sys.stdout.write(f"\nkilled {killed}, resumed {resumed}, whole {whole}: s, MiB\n")
    demand_every_datum(database, "long", count)
    assert whole[1] <= 500
