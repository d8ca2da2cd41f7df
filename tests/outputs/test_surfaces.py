"""Output files on the command line, in clients and in a service."""

from __future__ import annotations

import asyncio
import json
import os
import uuid

import pytest

from helixqueue import Queue, Refused
from helixqueue.cli import output
from helixqueue.errors import NoSuchOutputs
from helixqueue.operate.doctor import examine
from helixqueue.outputs.publish import Publisher
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.records.output import OutputRow
from helixqueue.service.publisher import OutputPublisher
from tests.outputs.conftest import demand_complete, due_now, manifests, published
from tests.support.cli import Helixq
from tests.support.lab import engine_function


@pytest.fixture
def granted(helix, database, request, name, monkeypatch):
    """A batch whose worker ended between its settlement and the publication."""
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("d/f.txt").write_text("content") and None)
    both = "destination" in request.fixturenames
    destination = request.getfixturevalue("destination" if both else "directory")
    destination.use(database, name)
    receipt = helix.submit(queue, identity="Sample-07", payload={}).receipt
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", lambda *_: asyncio.sleep(0))
        helix.work(queue, until_idle=True)
    assert published(destination) == set()
    return receipt


def test_service_publishes_what_a_worker_left_granted(helix, database, destination, granted):
    [manifest] = manifests(database, ids=[granted.batch_id])
    assert manifest.state == "granted"
    with pytest.raises(NoSuchOutputs, match="granted"):
        list(helix.outputs(granted))

    async def run_service():
        seconds = {f"{name}_seconds": 10.0 for name in ("connect", "statement", "wait")}
        sessions = TenantSessions(database.dsn("service"), connections=1, pooled=False, **seconds)
        publisher = OutputPublisher(sessions)
        publisher.start()
        await asyncio.to_thread(helix.wait, granted, 60, outputs=True)
        await publisher.stop()
        await sessions.close()

    due_now(database)
    asyncio.run(run_service())
    assert demand_complete(database, destination, granted.batch_id) == {"d/f.txt": b"content"}
    [file] = helix.outputs(granted)
    assert (file.path, file.size) == ("d/f.txt", 7)
    assert [row.state for row in helix.manifests(batch=granted)] == ["sealed"]


def test_wait_for_blocked_outputs_raises_the_problem(helix, database, directory, name):
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("a").write_text("ours") and None)
    directory.use(database, name)
    directory.write(f"a/{name}/s/a", b"foreign")
    receipt = helix.submit(queue, identity="s", payload={}).receipt
    helix.work(queue, until_idle=True)
    with pytest.raises(Refused, match="blocked"):
        helix.wait(receipt, 30, outputs=True)


def test_commands_publish_show_get_and_verify(database, destination, granted, tmp_path):
    def helixq(*arguments, code=0):
        result = Helixq(database, "operator")(*arguments)
        assert result.code == code, result
        return result

    batch = str(granted.batch_id)
    listed = json.loads(helixq("output", "list", "--tenant", "a", "--json").out)["rows"]
    assert batch in {row["batch_id"] for row in listed}
    assert "sealed" in helixq("output", "publish", batch).out
    [row] = json.loads(helixq("output", "show", batch, "--json").out)["rows"]
    assert (row["path"], row["size"]) == ("d/f.txt", 7)
    assert "1 files" in helixq("output", "verify", batch).out
    helixq("output", "get", batch, "--to", str(tmp_path / "got"))
    assert [str(file) for file in (tmp_path / "got").rglob("*.*")] == [f"{tmp_path}/got/d/f.txt"]
    assert (tmp_path / "got" / "d" / "f.txt").read_text() == "content"
    again = Helixq(database, "operator")("output", "get", batch, "--to", str(tmp_path / "got"))
    assert "expected a new file" in again.err
    destination.write(row["uri"].removeprefix(f"{destination.uri}/"), b"changed")
    assert "expected 7 bytes" in helixq("output", "verify", batch, code=1).out
    root = ("output", "root", "file:///srv/x", "--tenant", "a", "--reason", "r")
    assert "added" in helixq(*root).out
    assert "as it was" in helixq(*root).out
    assert "removed" in helixq(*root, "--remove").out


def test_destination_that_replaces_files_is_refused_before_it_is_set(
    database, directory, name, monkeypatch
):
    """The process that sets it has the credentials; database and service may not."""
    helixq = Helixq(database, "operator")
    setting = ("queue", "set", name, "--tenant", "a", "--outputs", directory.uri, "--reason", "r")

    def rename(*_):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", rename)
        refused = helixq(*setting)
        assert refused.code != 0
        assert "creates and links files" in refused.err
        assert helixq("queue", "show", name, "--tenant", "a").code != 0  # the queue was not made
        assert helixq(*setting, "--unprobed").code == 0
    assert helixq(*setting).code == 0
    assert directory.names() == set()


def test_doctor_names_granted_outputs_that_this_machine_cannot_publish(
    database, directory, granted, name
):
    def found():
        rows = examine(database.dsn("pool"))
        [finding] = [row for row in rows if row.name == "destinations"]
        return finding

    assert found().verdict == "ok"
    assert f"1 of {name} at {directory.uri}" in found().found
    directory.root.rename(directory.root.with_name("unmounted"))
    assert found().verdict == "warn"
    assert f"1 of {name} at {directory.uri}: " in found().found
    assert not directory.root.exists()
    directory.root.with_name("unmounted").rename(directory.root)
    Helixq(database, "operator")("output", "publish", str(granted.batch_id))
    assert name not in found().found


def test_reconcile_lists_staging_and_files_that_no_batch_needs(database, destination, granted):
    """Such as after a restore, and what a zombie staged after the clean-up of its attempt."""
    helixq = Helixq(database, "operator")

    def reconciled(*options):
        result = helixq("output", "reconcile", destination.uri, *options, "--json")
        return result.code, json.loads(result.out)

    nothing = {"staging": [], "files": []}
    assert reconciled() == (0, nothing)  # granted: its staging is needed
    helixq("output", "publish", str(granted.batch_id))
    assert reconciled() == (0, nothing)
    lost = uuid.uuid4()
    destination.write(f".helix/{lost}/0000000", b"late")
    destination.write("a/foreign", b"12345")
    found = {
        "staging": [{"name": f".helix/{lost}", "bytes": 4}],
        "files": [{"name": "a/foreign", "bytes": 5}],
    }
    assert reconciled() == (1, found)
    assert reconciled("--remove") == (1, found)
    assert reconciled() == (1, found | {"staging": []})
    assert demand_complete(database, destination, granted.batch_id) == {"d/f.txt": b"content"}


@pytest.mark.usefixtures("granted")
def test_metrics_show_lag_orphaned_bytes_and_refused_registrations(database, name):
    def measured(change="select"):
        with engine_function(database) as execute:
            assert execute(change) is None
            assert execute("select helix.keep_metrics(1000)") is None
        return dict(
            database.rows(
                "select m.name || m.label, m.value from helix.metric m where m.queue = %s", name
            )
        )

    before = measured()
    assert before["helix_output_lag_seconds"] > 0
    assert before["helix_output_orphaned_bytes"] == 0
    assert before["helix_stale_writes_totaloutputs"] == 0
    after = measured("update helix.manifest set state = 'lost', due_at = 'infinity'")
    assert after["helix_output_lag_seconds"] == 0
    assert after["helix_output_orphaned_bytes"] == len("content")


def test_path_of_a_hostile_service_is_not_written_outside_of_the_directory(
    database, granted, tmp_path, monkeypatch
):
    rows = [OutputRow("../outside", "file:///etc/hostname", 1, "0" * 64)]
    monkeypatch.setattr(output, "_files", lambda *_: iter(rows))
    to = tmp_path / "got"
    result = Helixq(database, "operator")("output", "get", str(granted.batch_id), "--to", str(to))
    assert "without empty parts" in result.err
    assert list(tmp_path.rglob("outside")) == []


def test_all_that_is_due_is_published_in_one_command(helix, database, directory, name, monkeypatch):
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("f").write_text("x") and None)
    directory.use(database, name)
    receipts = [helix.submit(queue, identity=f"{n}", payload={}).receipt for n in range(25)]
    with monkeypatch.context() as patched:
        patched.setattr(Publisher, "publish", lambda *_: asyncio.sleep(0))
        helix.work(queue, until_idle=True)
    due_now(database)
    assert Helixq(database, "operator")("output", "publish").code == 0
    for receipt in receipts:
        demand_complete(database, directory, receipt.batch_id)
