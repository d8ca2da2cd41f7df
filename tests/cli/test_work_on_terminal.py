"""What `helixq work` prints on a terminal of 80 columns."""

from __future__ import annotations

import re

from helixqueue.cli.exits import Exit
from tests.support.lab import wait_until
from tests.support.terminal import helixq_on_terminal

MODULE = """
from helixqueue import HelixQueue, Queue
import os, psycopg

queue = Queue({name!r}, max_attempts=2, backoff=0)

@queue.handler
def run(lease):
    with psycopg.connect(os.environ["HELIX_DSN"]) as connection:
        tx = lease.within(connection)
        tx.complete({{}})
        if lease.identity.startswith("rolled-back") and lease.attempt == 1:
            raise ValueError("the effect was refused")
"""


def footers(terminal):
    """The counts below the lines, each time they were drawn."""
    found = re.findall(
        r"(\d+) running, (\d+) completed, (\d+) failed, (\d+) lost, (\d+) released",
        terminal.output.decode(),
    )
    return [tuple(map(int, counts)) for counts in found]


def sleeper(directory):
    """A program that reports its start, before which Ctrl-C may reach it, and then sleeps."""
    script = directory / "sleep.sh"
    script.write_text(f"#!/bin/sh\n> {directory}/$HELIX_BATCH\nexec sleep 60\n")
    script.chmod(0o700)
    return script


def test_first_interrupt_says_what_it_waits_for_and_the_second_returns_the_batches(
    helixq, lab, tmp_path
):
    lab.submit("Sämple-1", "Sämple-2")
    arguments = ("work", lab.q, "--exec", sleeper(tmp_path), "--slots", "2")
    with helixq_on_terminal(helixq, *arguments) as terminal:
        terminal.expect("2 running")
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
        terminal.interrupt()
        terminal.expect(r"a second\s+Ctrl-C\s+or\s+SIGTERM\s+returns\s+them")
        assert "waits up to 30 s for 2 running batches" in " ".join(terminal.text.split())
        terminal.interrupt()
        terminal.expect("stops now and returns 2 running batches to their queue")
        assert terminal.exit_code() == Exit.OK
    assert footers(terminal)[-1] == (0, 0, 0, 0, 2)
    assert terminal.text.count("released  ") == 2
    rows = helixq("batch", "list", "--queue", lab.q, "--json").json["rows"]
    assert [(row["state"], row["attempt"]) for row in rows] == [("PENDING", 0)] * 2


def test_interrupt_of_an_idle_worker_ends_it_at_once(helixq, lab):
    with helixq_on_terminal(helixq, "work", lab.q, "--exec", "true") as terminal:
        terminal.expect("tenant|database")
        lab.submit("x")
        terminal.expect("0 running, 1 completed")
        terminal.interrupt()
        assert terminal.exit_code() == Exit.OK
    assert "waits" not in terminal.text


def test_failed_attempt_shows_exit_status_and_last_line_of_standard_error(helixq, lab):
    lab.queue(max_attempts=1)
    lab.submit("Sämple-1")
    script = "sh -c 'echo loading; echo reading >&2; echo no such flow cell >&2; exit 3'"
    arguments = ("work", lab.q, "--exec", script, "--until-idle")
    with helixq_on_terminal(helixq, *arguments) as terminal:
        assert terminal.exit_code() == Exit.OK
    line = r"failed +Sämple-1  \d.\d s\n +the program ended with exit code 3: no such flow cell"
    assert re.search(line, terminal.text), terminal.text
    shown = " ".join(helixq("batch", "list", "--queue", lab.q).out.split())
    assert "exit code 3: no such flow cell" in shown


def test_logs_of_an_attempt_are_in_a_directory_with_the_name_of_the_sample(helixq, lab, tmp_path):
    rows = lab.submit("Sämple 1/..", "x" * 200, "../../etc")
    done = helixq.process(
        "work", lab.q, "--exec", "echo hello", "--until-idle", "--logs", tmp_path / "logs"
    )
    assert done.code == Exit.OK
    names = ["Sämple_1", "x" * 100, "etc"]
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        f"{name}-{str(row.receipt.batch_id)[:8]}.1" for name, row in zip(names, rows, strict=True)
    }
    assert list(tmp_path.iterdir()) == [tmp_path / "logs"]


def test_settlement_in_a_transaction_of_the_handler_is_shown_once(helixq, lab, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE.format(name=lab.q), encoding="utf-8")
    lab.queue(max_attempts=2, backoff_seconds=0)
    lab.submit("Sämple-1", "rolled-back-1")
    arguments = ("work", "--app", "mine", "--until-idle", "--slots", "1")
    with helixq_on_terminal(helixq, *arguments, cwd=tmp_path) as terminal:
        assert terminal.exit_code() == Exit.OK
    assert "settled" not in terminal.text
    assert "-0.0" not in terminal.text
    assert len(re.findall(r"completed +Sämple-1 ", terminal.text)) == 1
    outcomes = re.findall(r"(completed|failed, retries) +rolled-back-1 ", terminal.text)
    assert outcomes == ["failed, retries", "completed"]
    assert "ValueError: the effect was refused" in terminal.text
    assert footers(terminal)[-1] == (0, 2, 1, 0, 0)
    assert "2 completed, 1 failed, 0 lost, 0 released" in terminal.text


def test_counts_of_a_worker_that_loses_a_batch_add_up(helixq, lab, tmp_path):
    lab.queue(lease_seconds=5)
    [row] = lab.submit("Sämple-1")
    arguments = ("work", lab.q, "--exec", sleeper(tmp_path))
    with helixq_on_terminal(helixq, *arguments) as terminal:
        terminal.expect("1 running")
        lab.decide("cancel", row.receipt.batch_id)
        terminal.expect(r"lost +Sämple-1 ")
        terminal.expect("0 running, 0 completed, 0 failed, 1 lost")
        lab.submit("Sämple-2")
        terminal.expect("1 running, 0 completed, 0 failed, 1 lost")
        wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
        terminal.interrupt()
        terminal.expect("waits up to")
        terminal.interrupt()
        assert terminal.exit_code() == Exit.OK
    assert "0 completed, 0 failed, 1 lost, 1 released" in terminal.text
