"""Stores that fail, stall, are another machine's or replace what they should keep."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helixqueue import Queue
from helixqueue.errors import Refused, Unavailable
from helixqueue.outputs import object_store
from helixqueue.outputs.local_store import LocalStore
from helixqueue.outputs.scratch import ScratchFile
from helixqueue.outputs.staging import stage
from helixqueue.outputs.store import NameOccupied, StoreUnavailable, digest
from helixqueue.outputs.stores import open_store, probe
from tests.outputs.conftest import (
    Destination,
    demand_complete,
    due_now,
    manifests,
    publish,
    staged,
)
from tests.support.lab import wait_until


def written(lease):
    lease.output("d/f").write_text("x")


@pytest.fixture
def broken(monkeypatch):
    """An S3 server that answers every request with a status; None: never."""
    ended = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        status = 503

        def handle_one_request(self):
            self.raw_requestline = self.rfile.readline(65_537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.status is None:
                ended.wait(60)
                return
            self.send_response(self.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setattr(object_store, "RETRIES", 0)
    object_store.s3_client.cache_clear()
    yield Answer
    ended.set()
    server.shutdown()
    server.server_close()
    object_store.s3_client.cache_clear()


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [
        (404, FileNotFoundError, "404"),
        (403, Unavailable, "refused the credentials"),
        (401, Unavailable, "refused the credentials"),
        (500, Unavailable, "failed"),
        (503, Unavailable, "failed"),
    ],
)
def test_store_that_refuses_or_fails_does_not_look_like_a_missing_object(
    broken, tmp_path, status, error, text
):
    broken.status = status
    store = open_store(f"s3://broken{status}/p")
    with pytest.raises(error, match=text):
        digest(store, "a")
    with pytest.raises(Unavailable):  # nothing is known of the name, so it is not occupied
        store.publish(".helix/m/0000000", "a", 5, b"h" * 32)
    if status != 404:
        (tmp_path / "f").write_text("x")
        with pytest.raises(Unavailable, match=text):
            store.stage(str(tmp_path / "f"), ".helix/m/0000000")
        with pytest.raises(Unavailable):
            store.remove_staging("m")


def test_transfer_that_stalls_ends(broken, monkeypatch, tmp_path):
    monkeypatch.setattr(object_store, "REQUEST_TIMEOUT", "500ms")
    broken.status = None
    store = open_store("s3://stalls/p")
    (tmp_path / "f").write_text("x")
    began = time.monotonic()
    with pytest.raises(Unavailable):
        store.stage(str(tmp_path / "f"), ".helix/m/0000000")
    with pytest.raises(Unavailable):
        digest(store, "a")
    assert time.monotonic() - began < 20


def test_large_object_is_read_in_requests_of_bounded_size(s3, tmp_path, monkeypatch):
    """A time limit of a request is then one of a stall, whatever the size of the object."""
    import obstore  # noqa: PLC0415

    sizes = []
    real = obstore.get_range

    def get_range(store, path, *, start, end):
        sizes.append(end - start)
        return real(store, path, start=start, end=end)

    monkeypatch.setattr(obstore, "get_range", get_range)
    store = open_store(f"s3://{s3}/ranges")
    content = os.urandom(2 * object_store.PART_BYTES + 5)
    (tmp_path / "f").write_bytes(content)
    assert store.stage(str(tmp_path / "f"), "big") == digest(store, "big")
    assert sizes == [object_store.PART_BYTES, object_store.PART_BYTES, 5]


def test_store_that_replaces_objects_is_refused(tmp_path, monkeypatch):
    """Copy headers that a store ignores, tried at obstore's default copy."""
    probe(LocalStore(tmp_path))
    probe(open_store("memory://probed"))
    assert [name for name, _ in LocalStore(tmp_path).names()] == []

    class Replacing(LocalStore):
        def publish(self, staged_file, name, size, sha256):  # noqa: ARG002
            (self._root / staged_file).replace(self._root / name)

    with pytest.raises(Refused, match="refuses to replace"):
        probe(Replacing(tmp_path))

    def link(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)  # a file system without links
    with pytest.raises(Refused, match="links files"):
        probe(LocalStore(tmp_path))
    assert [name for name, _ in LocalStore(tmp_path).names()] == []


def test_probe_of_a_bucket_passes_and_leaves_nothing(s3):
    store = open_store(f"s3://{s3}/probed")
    probe(store)
    assert list(store.names()) == []


def test_new_directories_are_synced_up_to_the_first_that_existed(tmp_path, monkeypatch):
    opened = []
    real = os.open

    def open_(path, *arguments, **options):
        opened.append(str(path))
        return real(path, *arguments, **options)

    (tmp_path / "f").write_text("x")
    store = LocalStore(tmp_path / "new" / "root")
    store.stage(str(tmp_path / "f"), ".helix/m/0000000")
    monkeypatch.setattr(os, "open", open_)
    store.sync()
    chain = ["", "/new", "/new/root", "/new/root/.helix", "/new/root/.helix/m"]
    assert sorted(opened) == [f"{tmp_path}{name}" for name in chain]


def test_publisher_on_a_machine_without_the_directory_changes_nothing(
    helix, database, directory, name, monkeypatch
):
    """A granted manifest must not become blocked, an erased one not pass for removed."""
    queue = Queue(name)
    queue.handler(written)
    directory.use(database, name)
    elsewhere = directory.root.with_name("elsewhere")
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    with monkeypatch.context() as patched:
        patched.setattr(
            "helixqueue.worker.output_files.OutputFiles.publish", lambda *_: None
        )  # the worker ends before it publishes
        helix.work(queue, until_idle=True)
    directory.root.rename(elsewhere)
    [manifest] = manifests(database, ids=[receipt.batch_id])
    publish(database, [manifest.manifest])
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert manifest.state == "granted"
    assert "is it mounted here?" in manifest.problem
    # Staged elsewhere, although other attempts stage here.
    (directory.root / ".helix").mkdir(parents=True)
    publish(database, [manifest.manifest])
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert manifest.state == "granted"
    assert "neither its staged copy nor the file" in manifest.problem
    (directory.root / ".helix").rmdir()
    directory.root.joinpath("a", name, "s", "d").rmdir()
    for parent in ("s", "", ".."):
        directory.root.joinpath("a", name, parent).resolve().rmdir()
    directory.root.rmdir()
    elsewhere.rename(directory.root)
    publish(database, [manifest.manifest])
    assert demand_complete(database, directory, receipt.batch_id) == {"d/f": b"x"}
    directory.root.rename(elsewhere)
    helix.erase(receipt, reason="r")
    publish(database, [manifest.manifest])
    assert manifests(database, ids=[receipt.batch_id])[0].state == "removing"
    elsewhere.rename(directory.root)
    publish(database, [manifest.manifest])
    assert manifests(database, ids=[receipt.batch_id])[0].state == "removed"
    assert directory.names() == set()


def test_store_without_an_answer_leaves_the_manifest_granted_with_the_reason(
    helix, database, s3, name, monkeypatch
):
    destination = Destination(f"s3://{s3}/{name}").allow(database)
    queue = Queue(name)
    queue.handler(written)
    destination.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt

    def refuse(*_):
        raise Unavailable("the store refused the credentials")

    with monkeypatch.context() as patched:
        patched.setattr(object_store.ObjectStore, "publish", refuse)
        helix.work(queue, until_idle=True)
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert (manifest.state, manifest.problem) == ("granted", "the store refused the credentials")
    publish(database, [manifest.manifest])
    [manifest] = manifests(database, ids=[receipt.batch_id])
    assert (manifest.state, manifest.problem) == ("sealed", None)


def test_publisher_that_wakes_after_an_erasure_removes_what_it_creates(
    helix, database, destination, name, monkeypatch
):
    """Frozen between reading a staged copy and creating the object: no condition stops that."""
    queue = Queue(name)
    queue.handler(written)
    destination.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    with monkeypatch.context() as patched:
        patched.setattr("helixqueue.worker.output_files.OutputFiles.publish", lambda *_: None)
        helix.work(queue, until_idle=True)
    [manifest] = manifests(database, ids=[receipt.batch_id])
    kind = type(destination.store)
    real = kind.publish

    def publish_late(_, staged_file, final, *__):
        content = destination.read(staged_file)
        with monkeypatch.context() as patched:
            patched.setattr(kind, "publish", real)
            publish(database, [manifest.manifest])
            demand_complete(database, destination, receipt.batch_id)
            helix.erase(receipt, reason="r")
            publish(database, [manifest.manifest])
        assert destination.names() == set()
        destination.write(final, content)

    with monkeypatch.context() as patched:
        patched.setattr(kind, "publish", publish_late)
        publish(database, [manifest.manifest])
    assert destination.names() == set()
    assert manifests(database, ids=[receipt.batch_id])[0].state == "removed"


def test_worker_publishes_only_for_its_own_queues(helix, database, directory, name, monkeypatch):
    """It has no credentials of other destinations, and would keep others from their tasks."""
    from helixqueue.engine import outputs  # noqa: PLC0415
    from helixqueue.postgres.database import Database as Connection  # noqa: PLC0415

    queue = Queue(name)
    queue.handler(written)
    directory.use(database, name)
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    with monkeypatch.context() as patched:
        patched.setattr("helixqueue.worker.output_files.OutputFiles.publish", lambda *_: None)
        helix.work(queue, until_idle=True)
    due_now(database)
    with Connection.connect(database.dsn("pool")) as pool:
        others = pool.run(outputs.take_outputs(limit=20, queues=["another"]))
        own = pool.run(outputs.take_outputs(limit=20, queues=["another", name]))
    assert others == []
    assert [task.batch_id for task in own] == [receipt.batch_id]
    publish(database, [own[0].manifest])
    demand_complete(database, directory, receipt.batch_id)
    assert staged(directory) == set()


def test_occupied_directory_name_blocks_and_is_not_taken_for_a_failure(tmp_path):
    (tmp_path / "f").write_text("x")
    store = LocalStore(tmp_path / "root")
    size, sha256 = store.stage(str(tmp_path / "f"), ".helix/m/0000000")
    (tmp_path / "root" / "d").write_text("a file")
    with pytest.raises(NameOccupied, match="Not a directory"):
        store.publish(".helix/m/0000000", "d/f", size, sha256)


def test_cancelled_staging_leaves_no_copy_behind_its_removal(tmp_path, monkeypatch):
    """A worker that lost its lease removes what it staged, also what is being copied then."""
    store = LocalStore(tmp_path / "root")
    manifest = uuid.uuid4()
    (tmp_path / "f").write_text("x")
    is_copying, may_copy = threading.Event(), threading.Event()
    real = LocalStore.stage

    def stage_slowly(*arguments):
        is_copying.set()
        assert may_copy.wait(30)
        return real(*arguments)

    monkeypatch.setattr(LocalStore, "stage", stage_slowly)

    async def run():
        files = [ScratchFile(f"{number}", str(tmp_path / "f"), 1, 0) for number in range(9)]
        task = asyncio.create_task(stage(store, manifest, files))
        await asyncio.to_thread(is_copying.wait, 30)
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, may_copy.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        store.remove_staging(manifest)

    asyncio.run(run())
    assert list(store.names()) == []


def test_store_that_stalls_is_tried_once_and_delays_no_other_destination(
    helix, database, directory, name, monkeypatch
):
    """Nor does it hold the threads that asyncio shares with everything else of the process."""
    healthy, stalled = Queue(f"{name}.healthy"), Queue(f"{name}.stalled")
    receipts = {}
    with monkeypatch.context() as patched:
        patched.setattr("helixqueue.worker.output_files.OutputFiles.publish", lambda *_: None)
        for queue in (stalled, healthy):
            queue.handler(written)
            Destination(f"{directory.uri}/{queue.name}").use(database, queue.name)
            receipts[queue] = [
                helix.submit(queue, identity=f"{n}", payload={}).receipt for n in range(3)
            ]
            helix.work(queue, until_idle=True)
    may_end, tries = threading.Event(), []
    real = LocalStore.publish

    def publish_or_stall(self, *arguments):
        if self._root.name != stalled.name:
            return real(self, *arguments)
        tries.append(threading.current_thread().name)
        assert may_end.wait(60)
        raise StoreUnavailable("the store stalled")

    monkeypatch.setattr(LocalStore, "publish", publish_or_stall)
    due_now(database)
    thread = threading.Thread(target=publish, args=(database,))
    thread.start()
    wait_until(
        lambda: all(
            manifests(database, ids=[row.batch_id])[0].state == "sealed"
            for row in receipts[healthy]
        )
    )
    may_end.set()
    thread.join()
    assert len(tries) == 1
    assert tries[0].startswith("helix-outputs")
    found = [manifests(database, ids=[row.batch_id])[0] for row in receipts[stalled]]
    assert {(row.state, row.problem) for row in found} == {("granted", "the store stalled")}
