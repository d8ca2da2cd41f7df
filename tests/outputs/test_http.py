"""A worker that has a token and the credentials of the store, and no database connection."""

from __future__ import annotations

import logging
import uuid

import pytest

from helixqueue import HelixClient, Queue
from tests.outputs.conftest import demand_complete, manifests, publish, staged
from tests.support.lab import Lab, wait_until
from tests.support.service import Site, problem_kind, serving, settings_for


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def http(site):
    with site.client() as http:
        yield http


@pytest.fixture
def lab(database, directory, name):
    with Lab(database, q=name) as lab:
        lab.queue(max_attempts=9, backoff_seconds=0)
        directory.use(database, name)
        yield lab


def claimed(http, lab, worker="gpu-1"):
    body = {"worker": worker, "request": str(uuid.uuid4()), "queues": [lab.q], "start": True}
    [lease] = http.post("/v1/work/claim", json=body).json()["leases"]
    return lease


def opened(http, lease, worker="gpu-1"):
    body = {"worker": worker, "lease": lease["lease"], "size": 1}
    return http.post("/v1/work/outputs/open", json=body)


def registered(http, lease, *paths, worker="gpu-1", **more):
    rows = [{"path": path, "size": 1, "sha256": "ab" * 32} for path in paths]
    body = {"worker": worker, "lease": lease["lease"], "staged": rows, **more}
    return http.post("/v1/work/outputs/register", json=body)


def test_worker_over_http_stages_and_the_service_publishes(site, database, destination, name):
    """Several pages, and names that JSON escapes."""
    queue = Queue(name)
    count = 501 if destination.uri.startswith("file") else 3
    names = [f"d/{number}" for number in range(count)] + ['q"\\ü', "empty"]

    @queue.handler
    def write(lease):
        for path in names:
            lease.output(path).write_text("" if path == "empty" else path)

    with HelixClient(site.url, token=site.token("submit", "work", "read", "operate")) as helix:
        receipt = helix.submit(queue, identity="declares", payload={}).receipt
        helix.work(queue, until_idle=True)
        assert helix.batch(receipt).failure == "outputs"  # the queue has no destination
        destination.use(database, name)
        receipt = helix.submit(queue, identity="s", payload={}).receipt
        helix.work(queue, until_idle=True)
        helix.wait(receipt, 120, outputs=True)
        assert len(list(helix.outputs(receipt))) == len(names)
    contents = demand_complete(database, destination, receipt.batch_id)
    assert contents == {path: b"" if path == "empty" else path.encode() for path in names}
    assert staged(destination) == set()


def test_stale_lease_cannot_register_over_http_after_reassignment(http, lab, caplog):
    caplog.set_level(logging.INFO, logger="helixqueue")
    lab.submit("s")
    zombie = claimed(http, lab)
    assert opened(http, zombie).json()["answer"] == "ok"
    lab.pass_time(lab.batch_number(uuid.UUID(zombie["batch_id"])))
    heir = claimed(http, lab, "gpu-2")
    assert heir["batch_id"] == zombie["batch_id"]
    for answer in (opened(http, zombie), registered(http, zombie, "a", files=1)):
        found = answer.json()
        assert found["answer"] == "refused"
        assert found["owner"].endswith("gpu-2")
        assert found["destination"] is None
    assert opened(http, heir, "gpu-2").json()["answer"] == "ok"
    for _ in range(2):  # a repeat after a lost response
        assert registered(http, heir, "a", worker="gpu-2", files=1).json()["answer"] == "ok"
    wait_until(lambda: sum(line.count("conflicting_worker") for line in caplog.messages) == 2)


def test_lease_of_another_tenant_or_queue_opens_no_outputs(site, http, lab):
    lab.submit("s")
    lease = claimed(http, lab)
    with site.client(tenant="b") as intruder:
        for answer in (opened(intruder, lease), registered(intruder, lease, "a", files=1)):
            assert answer.json() == {
                "answer": "refused", "owner": None, "state": None, "manifest": None,
                "destination": None, "note": None,
            }  # fmt: skip
    with site.client("work", queues=["elsewhere"]) as narrow:
        for answer in (opened(narrow, lease), registered(narrow, lease, "a", files=1)):
            assert problem_kind(answer) == "forbidden"
    assert manifests(lab.database, queue=lab.q) == []


def test_registration_of_a_bad_page_is_refused_and_changes_nothing(http, lab):
    lab.submit("s")
    lease = claimed(http, lab)
    assert opened(http, lease).json()["answer"] == "ok"
    for paths, more in ((["../a"], {"files": 1}), (["a"], {"files": 2}), (["a\nb"], {"files": 1})):
        answer = registered(http, lease, *paths, **more)
        assert 400 <= answer.status_code < 500, answer.text
    assert registered(http, lease, *(f"{n}" for n in range(501))).status_code == 422
    [manifest] = manifests(lab.database, queue=lab.q)
    assert (manifest.state, manifest.files) == ("open", None)
    assert registered(http, lease, "a", files=1).json()["answer"] == "ok"


def test_completion_over_http_grants_what_the_lease_registered(http, lab, directory):
    lab.submit("s")
    lease = claimed(http, lab)
    found = opened(http, lease).json()
    directory.write(f".helix/{found['manifest']}/0000000", b"x")
    sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    row = {"path": "a", "size": 1, "sha256": sha256}
    body = {"worker": "gpu-1", "lease": lease["lease"], "staged": [row], "files": 1}
    assert http.post("/v1/work/outputs/register", json=body).json()["answer"] == "ok"
    done = {"lease": lease["lease"], "outcome": "completed"}
    http.post("/v1/work/settle", json={"worker": "gpu-1", "settlements": [done]})
    publish(lab.database, [uuid.UUID(found["manifest"])])
    batch_id = uuid.UUID(lease["batch_id"])
    assert demand_complete(lab.database, directory, batch_id) == {"a": b"x"}
