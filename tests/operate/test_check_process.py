"""`helixq check` as a process: `--watch` until Ctrl-C, and what a killed command leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from helixqueue.cli.exits import Exit
from tests.support.cli import HELIXQ
from tests.support.lab import wait_until
from tests.support.ledger_damage import damage, with_batch_ids

RUNNING = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and usename = 'helix_migrator' and state = 'active'"
)


def start(database, *arguments, **options):
    return subprocess.Popen(
        [HELIXQ, "check", "--dsn", database.dsn("helix_migrator", direct=True), *arguments],
        env=os.environ | {"HELIX_TENANT": ""},
        **options,
    )


def test_watch_reports_damage_when_it_appears_and_ends_with_ctrl_c(busy, tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"

    def reports():
        complete, _, _ = out.read_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in complete.splitlines()]

    with out.open("w") as stdout, err.open("w") as stderr:
        process = start(busy, "--watch", "1", "--json", stdout=stdout, stderr=stderr)
    with process:
        try:
            wait_until(lambda: len(reports()) == 1)
            assert reports()[0]["ok"]
            edit = "update helix.work set actor = 'eve' where batch = {COMPLETED}"
            damage(busy, with_batch_ids(busy, edit))
            wait_until(lambda: len(reports()) == 2)
            # Another row of the same invariant is a change, too.
            damage(busy, with_batch_ids(busy, edit.replace("COMPLETED", "FAILED")))
            wait_until(lambda: len(reports()) == 3)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == Exit.INTERRUPTED
        finally:
            process.kill()
    broken = [
        {result["name"]: result["count"] for result in report["results"] if result["count"]}
        for report in reports()
    ]
    assert broken == [{}, {"row_not_last_step": 1}, {"row_not_last_step": 2}]
    assert "Traceback" not in err.read_text()
    assert busy.value(RUNNING) == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_check_leaves_no_query_behind(busy, how):
    """The server notices the closed connection while a query runs."""
    with busy.connect("helix_bootstrap") as blocker:
        blocker.execute("begin; lock table helix.refusal in access exclusive mode")
        process = start(busy, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: busy.value(RUNNING) == 1)
        process.send_signal(how)
        process.wait()
        begin = time.monotonic()
        wait_until(lambda: busy.value(RUNNING) == 0)
        assert time.monotonic() - begin < 10
        blocker.execute("rollback")
