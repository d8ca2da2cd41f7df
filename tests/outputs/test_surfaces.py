"""Output files on the command line, in clients and in a service."""

from __future__ import annotations

import asyncio
import json

import pytest

from helixqueue import Queue, Refused
from helixqueue.errors import NoSuchOutputs
from helixqueue.outputs.publish import Publisher
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.service.publisher import OutputPublisher
from tests.outputs.conftest import demand_complete, due_now, manifests, published
from tests.support.cli import Helixq


@pytest.fixture
def granted(helix, database, destination, name, monkeypatch):
    """A batch whose worker ended between its settlement and the publication."""
    queue = Queue(name)
    queue.handler(lambda lease: lease.output("d/f.txt").write_text("content") and None)
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
    assert (tmp_path / "got" / "d" / "f.txt").read_text() == "content"
    destination.write(row["uri"].removeprefix(f"{destination.uri}/"), b"changed")
    assert "expected 7 bytes" in helixq("output", "verify", batch, code=1).out
    root = ("output", "root", "file:///srv/x", "--tenant", "a", "--reason", "r")
    assert "added" in helixq(*root).out
    assert "as it was" in helixq(*root).out
    assert "removed" in helixq(*root, "--remove").out
