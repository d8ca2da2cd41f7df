"""A worker is killed, frozen or cut off at every step of its outputs, and another takes over.

All points of one fault run side by side, a process and a queue each. Always: the files that stand
at the destination are those of exactly one attempt, the one that the ledger shows as completed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from helixqueue import Queue, State
from helixqueue.failpoints import OUTPUT_POINTS
from tests.outputs import app
from tests.outputs.conftest import (
    demand_complete,
    due_now,
    manifests,
    publish,
    published,
    staged,
)
from tests.support.faults import FaultProxy
from tests.support.lab import wait_until
from tests.support.processes import ModuleProcess
from tests.support.shift import proven

LEASE = 2.0
PROOF = "HELIX_PROOF" in os.environ
SLACK = 240.0 if PROOF else 60.0  # 2,000 files pass through a server of Python on S3
BATCHES = 5 if PROOF else 1  # of each point
FILES = 40 if PROOF else 4
# run, copy, register, grant, publish, seal
POINTS = ("start", *OUTPUT_POINTS, "settle.before", "settle.after")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("outputs"), pytest.mark.timeout(900 if PROOF else 300)]


class Victim:
    """A worker process with one failpoint armed, and a queue of its own."""

    def __init__(self, helix, database, destination, directory, point, action):  # noqa: PLR0917
        self.point = point
        self.name = f"{action}.{point}.{directory.name.lower()}"
        self.queue = Queue(self.name, lease=LEASE, backoff=0.01, max_attempts=5)
        self.queue.handler(app.write)
        helix.submit(self.queue, identity="first", payload={"files": 1})  # declares the queue
        helix.cancel(next(iter(helix.batches(queue=self.queue))), reason="declared")
        destination.use(database, self.name)
        self.receipts = [
            helix.submit(self.queue, identity=f"s{number}", payload={"files": FILES}).receipt
            for number in range(BATCHES)
        ]
        self.helix, self.database, self.destination = helix, database, destination
        home = directory / point
        home.mkdir()
        self.mark = home / "point"
        self.link = FaultProxy(database.dsn("pool"), home)
        self.link.__enter__()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HELIX_FAIL")}
        self.process = ModuleProcess(
            "tests.outputs.app",
            '{"slots": 1}',
            environment=kept
            | {
                "HELIX_DSN": self.link.dsn,
                "HELIX_APP_QUEUE": self.name,
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                "HELIX_FAILPOINTS": f"{point}={action}",
                "HELIX_FAILPOINT_FILE": str(self.mark),
                "TMPDIR": str(home),
            },
        )

    @property
    def fired(self):
        return self.mark.with_suffix(".fired").exists()

    @property
    def completed(self):
        return all(self.helix.state(receipt) is State.COMPLETED for receipt in self.receipts)

    @property
    def sealed(self):
        ids = [receipt.batch_id for receipt in self.receipts]
        rows = manifests(self.database, ids=ids)
        return sum(row.state == "sealed" for row in rows) == len(ids)

    def tree(self):
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = [int(pid) for item in children for pid in item.read_text().split()]
        return [self.process.pid, *found]

    def signal(self, number):
        for pid in self.tree():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def judge(self):
        """Every file is of the attempt that the ledger shows as completed, with one nonce."""
        for receipt in self.receipts:
            contents = demand_complete(self.database, self.destination, receipt.batch_id)
            result = self.helix.result(receipt)
            assert len(contents) == FILES, self.point
            assert {tuple(text.decode().split()[:2]) for text in contents.values()} == {
                (str(result["attempt"]), result["nonce"])
            }, self.point
        folders = {f"a/{self.name}/s{number}/" for number in range(BATCHES)}
        for name in published(self.destination, f"a/{self.name}/"):
            assert any(name.startswith(folder) for folder in folders), name

    def close(self):
        self.signal(signal.SIGKILL)
        self.process.__exit__()
        self.link.__exit__()


@pytest.fixture
def victims(helix, database, destination, tmp_path_factory, request):
    directory = tmp_path_factory.mktemp("z")  # short: a socket's path has 107 bytes
    made = [
        Victim(helix, database, destination, directory, point, request.param) for point in POINTS
    ]
    yield made
    for item in made:
        item.close()


def rescued(helix, shift, database, victims):
    """Another worker completes everything, and any process publishes what is granted."""
    with shift(helix, [victim.queue for victim in victims], slots=4, poll_seconds=0.2):
        wait_until(lambda: all(victim.completed for victim in victims), seconds=SLACK)

        def all_sealed():
            publish(database)
            return all(victim.sealed for victim in victims)

        due_now(database)
        wait_until(all_sealed, seconds=SLACK)


def judged(database, destination, victims):
    for victim in victims:
        victim.judge()
    # What lost attempts staged goes after the grace time, and nothing else.
    due_now(database)
    while publish(database):
        pass
    assert staged(destination) == set()
    for victim in victims:
        victim.judge()
    proven(database)


@pytest.mark.parametrize("victims", ["kill"], indirect=True)
def test_worker_killed_at_any_step_leaves_the_files_of_one_attempt(
    helix, database, destination, shift, victims
):
    for victim in victims:
        wait_until(lambda item=victim: item.fired, seconds=SLACK)
    rescued(helix, shift, database, victims)
    judged(database, destination, victims)


def test_out_of_memory_kill_in_mid_upload_leaves_nothing_visible(
    helix, database, destination, tmp_path_factory
):
    """The kernel sends SIGKILL; no other worker comes."""
    directory = tmp_path_factory.mktemp("o")
    victim = Victim(helix, database, destination, directory, "outputs.stage", "kill")
    try:
        wait_until(lambda: victim.fired, seconds=SLACK)
        victim.process.wait()
        assert staged(destination) != set()
        assert published(destination) == set()
        assert list(helix.manifests(batch=victim.receipts[0], state="open"))
    finally:
        victim.close()


@pytest.mark.parametrize("victims", ["stop"], indirect=True)
def test_worker_frozen_at_any_step_changes_nothing_when_it_wakes(
    helix, database, destination, shift, victims
):
    for victim in victims:
        wait_until(lambda item=victim: item.fired, seconds=SLACK)
    rescued(helix, shift, database, victims)
    before = {name: destination.read(name) for name in published(destination)}
    for victim in victims:
        victim.signal(signal.SIGCONT)
    for victim in victims:
        victim.process.signal(signal.SIGTERM)
    for victim in victims:
        victim.process.wait()
    assert {name: destination.read(name) for name in published(destination)} == before
    judged(database, destination, victims)


@pytest.mark.parametrize("victims", ["hold"], indirect=True)
def test_link_cut_at_any_step_leaves_the_files_of_one_attempt(
    helix, database, destination, shift, victims
):
    held = list(victims)
    while held:  # each as soon as it stops, before its lease ends
        victim = wait_until(
            lambda: next((item for item in held if item.mark.exists()), None), seconds=SLACK
        )
        victim.link.cut_all()
        victim.mark.unlink()
        held.remove(victim)
    rescued(helix, shift, database, victims)
    judged(database, destination, victims)
