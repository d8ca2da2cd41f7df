"""Faults of another queue, Falconeri, that concern outputs: each is a test.

a slower clean-up deletes the rows of the new attempt            test_slower_clean_up_...
a refused worker repeats its call for a quarter of an hour       test_refused_worker_...
a settlement whose answer was lost is refused when repeated      test_lost_answers_...
a late upload replaces the files of the new attempt              test_zombies.py, all of it
another worker's rows are updated by their ids                   test_page_for_the_batch_...
the record of an attempt is overwritten by the next one          test_every_attempt_keeps_...
a large log, or a NUL in it, fails the report of the attempt     test_logs.py
one statement for all files exceeds the limit of parameters      test_hundred_thousand_files_...
"""

from __future__ import annotations

import threading
import time

import pytest

from helixqueue import Queue
from helixqueue.engine import outputs
from helixqueue.errors import HelixError
from helixqueue.records.lease import LeaseRef
from helixqueue.worker.output_files import OutputFiles
from tests.outputs.conftest import (
    demand_complete,
    due_now,
    files,
    leased,
    manifests,
    publish,
    register,
)
from tests.support.lab import Lab


@pytest.fixture
def lab(database, directory, name):
    with Lab(database, q=name) as lab:
        lab.queue(max_attempts=9, backoff_seconds=0)
        directory.use(database, name)
        yield lab


def test_slower_clean_up_does_not_touch_the_manifest_of_the_new_attempt(lab):
    """Two publishers saw the lost attempt; one acts when the new attempt has registered."""
    zombie = leased(lab)
    register(lab, zombie, files("a", "b"), files=2)
    [old] = manifests(lab.database, queue=lab.q)
    lab.pass_time(zombie.batch)
    [heir] = lab.claim(worker="w2")
    due_now(lab.database)
    for _ in range(2):  # decided, then taken by both
        lab.run(outputs.take_outputs(limit=9, manifests=[old.manifest]))
        due_now(lab.database)
    assert register(lab, heir, files("a", "b"), files=2, worker="w2").answer == "ok"
    for _ in range(2):
        assert lab.run(outputs.end_outputs(manifest=old.manifest, outcome="cleaned")) == "lost"
    assert dict(
        lab.rows(
            "select m.worker, count(o) from helix.manifest m left join helix.output o "
            "on o.manifest = m.id where m.queue = %s group by 1", lab.q,
        )
    ) == {"w1": 0, "w2": 2}  # fmt: skip
    names = "select count(*) from helix.output_name where batch = %s"
    assert lab.value(names, zombie.batch) == 2


def test_refused_worker_ends_its_attempt_at_once_and_takes_the_next_batch(
    helix, database, directory, name, monkeypatch
):
    """A refusal is an answer, not a fault of the network: it is not repeated."""
    queue = Queue(name, backoff=0)
    began = []
    real = OutputFiles._register

    async def register_late(self, attempt, staged):
        if not began:
            began.append(time.monotonic())
            with Lab(database, q=name) as lab:
                lab.pass_time(attempt.row.batch)
                lab.claim(worker="another")
        await real(self, attempt, staged)

    monkeypatch.setattr(OutputFiles, "_register", register_late)
    queue.handler(lambda lease: lease.output("a").write_text(lease.identity) and None)
    directory.use(database, name)
    receipts = [helix.submit(queue, identity=i, payload={}).receipt for i in ("first", "second")]
    helix.work(queue, until_idle=True, slots=1)
    assert time.monotonic() - began[0] < 30
    refused = helix.batch(receipts[0])
    assert refused.state in {"ASSIGNED", "RUNNING"}
    assert refused.attempt == 2
    assert [row.times for row in refused.refusals] == [1]
    assert demand_complete(database, directory, receipts[1].batch_id) == {"a": b"second"}


def test_lost_answers_of_every_call_about_outputs_are_repeated_without_a_second_effect(lab):
    lease = leased(lab)
    ref = LeaseRef(lease.batch, lease.token)
    first, again = (lab.run(outputs.open_outputs(worker="w1", lease=ref)) for _ in range(2))
    assert first == again
    for _ in range(2):
        assert register(lab, lease, files("a"), files=1).answer == "ok"
    lab.complete(lease)
    assert lab.run(outputs.take_outputs(limit=1, manifests=[first.manifest]))
    ended = [
        lab.run(outputs.end_outputs(manifest=first.manifest, outcome=outcome, files=1))
        for outcome in ("sealed", "sealed", "blocked", "cleaned", "cleaned")
    ]
    assert ended == ["sealed"] * 5
    counted = (
        "select sum(value) from helix.metric_change where queue = %s "
        "and name = 'helix_outputs_published_total'"
    )
    assert lab.value(counted, lab.q) == 1


def test_page_for_the_batch_of_another_worker_is_refused(lab):
    mine, other = leased(lab, "mine"), leased(lab, "other")
    assert register(lab, other, files("b"), files=1).answer == "ok"
    forged = LeaseRef(other.batch, mine.token)
    for call in (
        outputs.open_outputs(worker="w1", lease=forged),
        outputs.register_outputs(worker="w1", lease=forged, first=0, staged=files("a"), files=1),
    ):
        assert lab.run(call).answer == "refused"
    [row] = manifests(lab.database, queue=lab.q)
    assert (row.files, row.worker) == (1, "w1")


def test_every_attempt_keeps_its_own_manifest(lab):
    lease, before = leased(lab), "w1"
    for worker in ("w2", "w3"):
        register(lab, lease, files("a"), files=1, worker=before)
        lab.pass_time(lease.batch)
        [lease] = lab.claim(worker=worker)
        before = worker
    register(lab, lease, files("a", "b"), files=2, worker="w3")
    found = manifests(lab.database, queue=lab.q)
    assert [(row.attempt, row.worker, row.files) for row in reversed(found)] == [
        (1, "w1", 1), (2, "w2", 1), (3, "w3", 2),
    ]  # fmt: skip


def test_two_publishers_at_once_publish_and_count_each_file_once(lab, destination, tmp_path):
    destination.use(lab.database, lab.q)
    lease = leased(lab)
    opened = lab.run(outputs.open_outputs(worker="w1", lease=LeaseRef(lease.batch, lease.token)))
    (tmp_path / "f").write_bytes(b"x")
    names = [f"d/{number}" for number in range(30)]
    for number in range(len(names)):
        destination.store.stage(str(tmp_path / "f"), f".helix/{opened.manifest}/{number:07}")
    register(lab, lease, files(*names), files=len(names))
    lab.complete(lease)
    faults = []

    def run():
        try:
            publish(lab.database, [opened.manifest])
        except HelixError as error:
            faults.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    publish(lab.database, [opened.manifest])
    [manifest] = manifests(lab.database, queue=lab.q)
    assert len(demand_complete(lab.database, destination, manifest.batch_id)) == len(names)
