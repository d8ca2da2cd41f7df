"""What a program printed before it failed: both ends in the detail, all at the destination."""

from __future__ import annotations

import sys

import pytest

from helixqueue import Queue
from helixqueue.client import run_worker
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.outcomes import storable
from helixqueue.worker.program import Program
from tests.outputs.conftest import due_now, manifests, publish

PRINTED = b"first\0" + b"\xff" * 300_000 + b"last"
SCRIPT = (
    "import os,sys,pathlib;pathlib.Path(os.environ['HELIX_OUT'],'f').write_text('partial');"
    r"sys.stdout.buffer.write(b'first\0' + b'\xff' * 300_000 + b'last');sys.exit(3)"
)


def fail(helix, name, *, time_limit=None, script=SCRIPT):
    """Run the program as the only attempt of a batch; returns the batch."""
    queue = Queue(name, max_attempts=1)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    program = Program([sys.executable, "-c", script])
    handler = QueueHandler(name, None, program.run, time_limit=time_limit)
    run_worker.work(helix, {name: handler}, {"until_idle": True})
    return helix.batch(receipt)


def test_log_with_nul_above_the_detail_is_kept_whole_beside_no_output(
    helix, database, destination, name
):
    destination.use(database, name)
    batch = fail(helix, name)
    assert (batch.state, batch.failure) == ("FAILED", "executor")
    detail = batch.detail
    assert 40_000 < len(detail.encode()) <= 65_536
    assert "first\\0" in detail
    assert "last" in detail
    [manifest] = manifests(database, ids=[batch.batch_id])
    logs = f".helix/logs/{manifest.manifest}"
    assert detail.endswith(f"log: {destination.uri}/{logs}")
    due_now(database)
    publish(database)  # the clean-up of the lost attempt
    assert destination.names() == {f"{logs}/stdout", f"{logs}/stderr"}
    assert destination.read(f"{logs}/stdout") == PRINTED
    helix.erase(batch.batch_id, reason="r")
    publish(database, [manifest.manifest])
    assert destination.names() == set()


def test_log_of_an_attempt_that_exceeds_its_time_is_kept(helix, database, directory, name):
    directory.use(database, name)
    batch = fail(
        helix, name, time_limit=2,
        script="import time;print('loading', flush=True);time.sleep(60)",
    )  # fmt: skip
    assert batch.failure == "timeout"
    [log] = [file for file in directory.names() if file.endswith("stdout")]
    assert directory.read(log) == b"loading\n"


def test_log_without_a_destination_stays_in_the_detail(helix, name):
    batch = fail(helix, name)
    assert "first\\0" in batch.detail
    assert "log: " not in batch.detail


def test_store_that_is_down_does_not_change_why_an_attempt_failed(helix, database, directory, name):
    directory.use(database, name)
    (directory.root / ".helix").write_text("not a directory")
    batch = fail(helix, name)
    assert (batch.failure, batch.attempt) == ("executor", 1)
    assert "log: " not in batch.detail


@pytest.mark.parametrize("text", ["x" * 200_000, "\0" * 100_000, "\U0001f9ec" * 50_000, "\udcff"])
def test_detail_of_any_text_fits_the_database(database, text):
    stored = storable(text)
    assert database.value("select length((%s::text)::helix.long_text)", stored) == len(stored)
    assert len(stored.encode()) < 65_536
