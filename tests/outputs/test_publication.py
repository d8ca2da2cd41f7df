"""The way of a file: written by a handler, staged, granted, published, sealed, read."""

from __future__ import annotations

import os
import sys

import pytest

from helixqueue import Queue
from helixqueue.outputs.store import NameOccupied
from helixqueue.outputs.stores import open_store
from helixqueue.worker.handlers import QueueHandler
from helixqueue.worker.program import Program
from tests.outputs import app
from tests.outputs.conftest import (
    demand_complete,
    due_now,
    manifests,
    publish,
    published,
    staged,
)

NAMES = [
    "reads/a.fastq", "reads/[b]*?.txt", "sp ace%20/100%.txt", "Sämple-Ω/x", ".hidden", "empty",
    "q&+=;:,$@!'()/~#{}^\"<>|`\\",
]  # fmt: skip


def write_all(lease):
    for name in NAMES:
        content = b"" if name == "empty" else f"{lease.attempt} {name}".encode()
        lease.output(name).write_bytes(content)


def test_files_of_a_completed_batch_are_published_and_read(helix, database, destination, name):
    queue = Queue(name)
    queue.handler(write_all)
    destination.use(database, name)
    receipt = helix.submit(queue, identity="sample/1", payload={}).receipt
    helix.work(queue, until_idle=True)
    contents = demand_complete(database, destination, receipt.batch_id)
    assert contents == {n: b"" if n == "empty" else f"1 {n}".encode() for n in NAMES}
    assert staged(destination) == set()
    assert all(n.startswith(f"a/{name}/sample%2F1/") for n in published(destination))


def test_file_of_several_parts_is_copied_and_streamed_whole(destination, tmp_path, monkeypatch):
    """Above the size of one copy an object passes through the publisher; both refuse to replace."""
    monkeypatch.setattr("helixqueue.outputs.object_store.COPY_BYTES_MAX", 8 * 1024 * 1024)
    store = destination.store
    for size in (0, 8 * 1024 * 1024, 20 * 1024 * 1024 + 7):
        content = os.urandom(size)
        source = tmp_path / "source"
        source.write_bytes(content)
        found, sha256 = store.stage(str(source), ".helix/m/1")
        assert found == size
        store.publish(".helix/m/1", f"big{size}", found, sha256)
        assert destination.read(f"big{size}") == content
        store.publish(".helix/m/1", f"big{size}", found, sha256)  # a repeat
        destination.write("other", b"foreign")
        with pytest.raises(NameOccupied):
            store.publish(".helix/m/1", "other", found, sha256)
        assert destination.read("other") == b"foreign"
        store.remove_staging("m")


def test_memory_destination_creates_each_name_once(tmp_path):
    store = open_store("memory://once/only")
    (tmp_path / "a").write_bytes(b"one")
    size, sha256 = store.stage(str(tmp_path / "a"), ".helix/m/1")
    store.publish(".helix/m/1", "x", size, sha256)
    (tmp_path / "a").write_bytes(b"two")
    size, sha256 = store.stage(str(tmp_path / "a"), ".helix/m/2")
    with pytest.raises(NameOccupied):
        store.publish(".helix/m/2", "x", size, sha256)


def test_late_write_through_an_open_descriptor_changes_no_published_file(
    helix, database, directory, name
):
    queue = Queue(name)
    left_open = []

    @queue.handler
    def write(lease):
        file = lease.output("a.txt").open("w+b", buffering=0)
        file.write(b"first")
        left_open.append(file)

    directory.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    [file] = left_open
    file.seek(0)
    file.write(b"LATER")
    file.close()
    assert demand_complete(database, directory, receipt.batch_id) == {"a.txt": b"first"}


def test_revision_stands_beside_the_first(helix, database, directory, name):
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("r").write_text(lease.revision) and None)
    directory.use(database, name)
    receipts = [
        helix.submit(queue, identity="s", payload={}, revision=r).receipt for r in ("1", "2")
    ]
    helix.work(queue, until_idle=True)
    found = [demand_complete(database, directory, r.batch_id) for r in receipts]
    assert found == [{"r": b"1"}, {"r": b"2"}]


def test_program_writes_outputs_to_its_directory(helix, database, directory, name):
    code = (
        "import os,pathlib;p=pathlib.Path(os.environ['HELIX_OUT'],'d');p.mkdir();"
        "(p/'f').write_text('x')"
    )
    directory.use(database, name)
    queue = Queue(name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    program = Program([sys.executable, "-c", code])
    from helixqueue.client import run_worker  # noqa: PLC0415

    run_worker.work(helix, {name: QueueHandler(name, None, program.run)}, {"until_idle": True})
    assert demand_complete(database, directory, receipt.batch_id) == {"d/f": b"x"}


@pytest.mark.parametrize("way", ["return", "transaction"])
def test_handler_process_publishes_through_its_worker(helix, database, directory, way):
    helix.submit(app.in_process, identity=f"declares {way}", payload={"way": "return"})
    directory.use(database, app.in_process.name)
    receipt = helix.submit(app.in_process, identity=way, payload={"way": way}).receipt
    helix.work(app.in_process, until_idle=True)
    process = helix.result(receipt)["process"]
    assert process != os.getpid()
    contents = demand_complete(database, directory, receipt.batch_id)
    assert contents == {"a/b.txt": f"{way} {process}".encode()}


def test_async_handler_publishes_what_its_transaction_staged(helix, database, directory, name):
    queue = Queue(name)

    @queue.handler
    async def write(lease):
        lease.output("a").write_text("x")
        async with lease.transaction() as tx:
            tx.complete({"done": True})

    directory.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    assert demand_complete(database, directory, receipt.batch_id) == {"a": b"x"}


@pytest.mark.parametrize("way", ["transaction", "within"])
def test_transaction_of_a_handler_publishes_what_it_staged(helix, database, directory, name, way):
    queue = Queue(name)

    @queue.handler
    def write(lease):
        lease.output("a").write_text(way)
        if way == "transaction":
            with lease.transaction() as tx:
                tx.complete({"done": True})
            return
        import psycopg  # noqa: PLC0415

        with psycopg.connect(database.dsn("pool")) as connection:
            lease.within(connection).complete({"done": True})

    directory.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    assert demand_complete(database, directory, receipt.batch_id) == {"a": way.encode()}


def test_attempt_that_fails_publishes_nothing_and_its_staging_is_removed(
    helix, database, directory, name
):
    queue = Queue(name, max_attempts=2, backoff=0)

    @queue.handler
    def write(lease):
        lease.output(f"attempt{lease.attempt}").write_text("x")
        if lease.attempt == 1:
            with lease.transaction() as tx:
                tx.complete({"done": True})
                tx._handle.stage_outputs(lease._attempt)
                raise RuntimeError("after staging")

    directory.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    assert demand_complete(database, directory, receipt.batch_id) == {"attempt2": b"x"}
    assert len(staged(directory)) == 1
    publish(database)  # within the grace time
    assert len(staged(directory)) == 1
    due_now(database)
    publish(database)
    assert staged(directory) == set()
    assert {row.state for row in manifests(database, ids=[receipt.batch_id])} == {"sealed", "lost"}


def test_queue_without_destination_fails_the_attempt_for_good(helix, name):
    queue = Queue(name, max_attempts=3)
    queue.handler(lambda lease: lease.output("a").write_text("x") and None)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    batch = helix.batch(receipt)
    assert (batch.state, batch.attempt) == ("FAILED", 1)
    assert batch.failure == "outputs"
    assert "has no destination" in batch.detail


def test_foreign_object_at_a_final_name_blocks_until_an_operator_publishes_again(
    helix, database, destination, name
):
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("a").write_text("ours") and None)
    destination.use(database, name)
    destination.write(f"a/{name}/s/a", b"foreign")
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert manifest.state == "blocked"
    assert "expected 4 bytes" in manifest.problem
    assert destination.read(f"a/{name}/s/a") == b"foreign"
    # Blocked: only by name.
    assert manifest.manifest not in {task.manifest for task in publish(database)}
    destination.write(f"a/{name}/s/a", b"ours")  # the operator decided that it is the same
    publish(database, [manifest.manifest])
    assert demand_complete(database, destination, receipt.batch_id) == {"a": b"ours"}
