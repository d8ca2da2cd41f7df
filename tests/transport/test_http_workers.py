"""Whole workers that have a token and nothing else: commands, programs, processes, long work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helixqueue import HelixClient, Queue, State
from helixqueue.cli.exits import Exit
from helixqueue.client.backend import backend_of
from tests.support.lab import wait_until

ROOT = Path(__file__).parents[2]
LAB = """
import os, sys, time
from helixqueue import Queue

queue = Queue({queue!r}, lease={lease}, run_in={run_in!r})

@queue.handler
def run(lease):
    time.sleep(lease.payload.get("seconds", 0))
    drivers = [name for name in ("psycopg", "helixqueue.postgres.database") if name in sys.modules]
    return {{"n": lease.payload["n"], "attempt": lease.attempt, "drivers": drivers}}
"""


@pytest.fixture
def helix(site):
    with HelixClient(site.url, token=site.token()) as client:
        yield client


@pytest.fixture
def helixq(site, tmp_path):
    """`helixq work ...` in a directory of its own, with a token for work alone."""
    running = []

    def start(queue, *words, scopes=("work",)):
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "src"),
            "HELIX_TOKEN": site.token(*scopes, queues=[queue]),
        }
        main = "from helixqueue.cli.main import main; main()"
        command = [sys.executable, "-W", "error", "-c", main]
        running.append(
            subprocess.Popen(
                [*command, "work", queue, "--url", site.url, "--json", *words],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return running[-1]

    yield start
    for item in running:
        if item.poll() is None:
            item.kill()
        item.communicate()


def ended(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary.pop("level"), summary.pop("at") is not None) == ("info", True)
    assert summary.pop("message").startswith(f"{summary['completed']} completed")
    return summary


def declare(helix, tmp_path, name, *, lease=30, run_in="thread"):
    (tmp_path / "lab.py").write_text(LAB.format(queue=name, lease=lease, run_in=run_in))
    backend_of(helix).declare(Queue(name, lease=lease))


@pytest.mark.parametrize("run_in", ["thread", "process"])
def test_command_works_one_queue_with_a_token_for_that_queue(helix, helixq, lab, tmp_path, run_in):
    declare(helix, tmp_path, lab.q, run_in=run_in)
    rows = [{"identity": f"s{n}", "payload": {"n": n}} for n in range(5)]
    answers = helix.submit_many(lab.q, rows)
    done = ended(helixq(lab.q, "--app", "lab", "--until-idle"))
    assert done == {"completed": 5, "failed": 0, "lost": 0, "released": 0}
    results = [helix.result(answer.receipt) for answer in answers]
    assert results == [{"n": n, "attempt": 1, "drivers": []} for n in range(5)]


def test_command_logs_one_line_per_batch_and_none_per_request(helix, helixq, lab):
    receipt = helix.submit(lab.q, identity="s", payload={"n": 1}).receipt
    process = helixq(lab.q, "--exec", "true", "--until-idle", "--name", "gpu-7")
    _, output = process.communicate(timeout=60)
    logged = [json.loads(line) for line in output.splitlines()]
    lines = [line for line in logged if "operation" in line]
    assert [(line["operation"], line["decision"]) for line in lines] == [
        ("claim", "ok"), ("settle", "ok"),
    ]  # fmt: skip
    assert {line["batch"] for line in lines} == {str(receipt.batch_id)}
    assert all("gpu-7" in line["worker"] for line in lines)
    assert "HTTP Request" not in output


def test_program_in_any_language_processes_batches(helix, helixq, lab):
    receipt = helix.submit(lab.q, identity="s", payload={"n": 1}).receipt
    done = ended(helixq(lab.q, "--exec", "sh -c 'cp $HELIX_PAYLOAD $HELIX_RESULT'", "--until-idle"))
    assert done["completed"] == 1
    assert helix.result(receipt) == {"n": 1}


def test_long_work_is_renewed_and_released_by_a_stop(helix, helixq, lab, tmp_path):
    declare(helix, tmp_path, lab.q, lease=2)
    receipt = helix.submit(lab.q, identity="s", payload={"n": 1, "seconds": 60}).receipt
    worker = helixq(lab.q, "--app", "lab", "--grace", "0")
    wait_until(lambda: helix.state(receipt) is State.RUNNING, seconds=60)
    begun = time.monotonic()
    leased = (
        "select w.deadline, w.number from helix.work w join helix.queue q on q.id = w.queue "
        "where q.name = %s and w.state in ('ASSIGNED', 'RUNNING')"
    )
    held = lab.rows(leased, lab.q)
    while time.monotonic() - begun < 4:
        [(deadline, number)] = lab.rows(leased, lab.q)
        assert number == held[0][1]
        time.sleep(0.2)
    assert deadline > held[0][0]
    worker.send_signal(signal.SIGTERM)
    assert ended(worker)["released"] == 1
    assert helix.state(receipt) is State.PENDING


def test_cancelled_batch_ends_the_attempt_of_its_worker(helix, helixq, lab, tmp_path):
    declare(helix, tmp_path, lab.q, lease=2, run_in="process")
    receipt = helix.submit(lab.q, identity="s", payload={"n": 1, "seconds": 60}).receipt
    worker = helixq(lab.q, "--app", "lab", "--slots", "1")
    wait_until(lambda: helix.state(receipt) is State.RUNNING, seconds=60)
    helix.cancel(receipt, reason="not wanted")
    # Its only slot is free long before the handler would have ended.
    another = helix.submit(lab.q, identity="s2", payload={"n": 2}).receipt
    assert helix.wait(another, timeout=40) is State.COMPLETED
    worker.send_signal(signal.SIGTERM)
    assert ended(worker) == {"completed": 1, "failed": 0, "lost": 1, "released": 0}


def test_token_without_work_scope_is_refused_at_once(helixq, lab):
    worker = helixq(lab.q, "--exec", "true", "--until-idle", scopes=("read",))
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == Exit.REFUSED
    assert "scope work" in err
    assert "Traceback" not in err
