"""Lists of workers: who is there, who ended, and what each holds or lost."""

from __future__ import annotations

import signal
import threading
import uuid

import pytest

from helixqueue import HelixClient, HelixQueue, Lease, Queue
from helixqueue.client.backend import backend_of
from helixqueue.engine import calls, reads
from tests.support.lab import wait_until
from tests.support.service import Site, serving, settings_for

SILENCE = """
create function helix.test_silence(p_name text) returns void language sql security definer as $$
  select helix.enter();
  update helix.worker set last_seen = last_seen - interval '31 s' where name = p_name
$$;
alter function helix.test_silence owner to helix_engine;
"""


@pytest.fixture(scope="module")
def site(database):
    with serving(settings_for(database)) as url:
        yield Site(database, url)


@pytest.fixture
def http(site):
    with site.client("read") as client:
        yield client


def seen(helix, name):
    """The workers of the client's login whose names begin so."""
    found = backend_of(helix).run(reads.workers(limit=500))
    return [row for row in found.rows if row.name.startswith(name)]


def seen_by_token(http, name):
    found = http.get("/v1/workers", params={"limit": 500}).json()["rows"]
    return [row for row in found if row["name"].startswith(name)]


def status(helix, name):
    return {row.status for row in seen(helix, name)}


@pytest.mark.parametrize("way", ["database", "service"])
def test_worker_that_ended_is_listed_as_ended_at_once(helix, site, name, way):
    queue = Queue(name)
    queue.handler(lambda _: None)
    helix.submit(queue, identity="s", payload={})
    with HelixClient(site.url, site.token("work", "submit", "read", "payloads")) as client:
        worker = helix if way == "database" else client
        assert worker.work(queue, until_idle=True, name=name).completed == 1
    [row] = seen(helix, name)
    assert (row.tenant, row.status, row.leases) == ("a", "ended", 0)
    assert row.ended_at is not None
    assert row.free["health"]["completed"] == 1


def test_killed_worker_is_listed_as_ended_without_a_report_of_its_own(helix, name, process):
    helix.submit(Queue(name, lease=60), identity="s", payload={"seconds": 60})
    with process(name, options={"slots": 1, "name": name}) as worker:
        wait_until(lambda: [row.leases for row in seen(helix, name)] == [1])
        assert status(helix, name) == {"alive"}
        worker.signal(signal.SIGKILL)
        wait_until(lambda: status(helix, name) == {"ended"})


def test_worker_without_two_reports_is_silent_until_the_next_report(helix, database, name):
    with database.connect("helix_bootstrap") as connection:
        connection.execute(SILENCE)
    backend_of(helix).run(calls.hello(worker=name, tenant="a"))
    assert status(helix, name) == {"alive"}
    database.rows("select helix.test_silence(%s)", name, role="helix_bootstrap")
    assert status(helix, name) == {"silent"}
    backend_of(helix).run(calls.hello(worker=name, tenant="a"))
    assert status(helix, name) == {"alive"}


def test_token_lists_workers_that_use_a_database_login(database, http, name):
    with HelixQueue(database.dsn("app_a"), tenant="a") as own:
        backend_of(own).run(calls.hello(worker=f"{name}-own", free={"gpus": 1}))
    with HelixQueue(database.dsn("app_b"), tenant="b") as other:
        backend_of(other).run(calls.hello(worker=f"{name}-other", free={"gpus": 1}))
        assert [row.name for row in seen(other, name)] == [f"{name}-other"]
    [row] = seen_by_token(http, name)
    assert (row["name"], row["tenant"], row["role"]) == (f"{name}-own", "a", None)


def test_tenant_sees_of_a_shared_worker_its_resources_and_slots_only(database, http, name):
    secret = f"secret-of-b-{uuid.uuid4()}"
    report = {
        "gpus": 4,
        "health": {"slots": 2, "busy": 2, "queues": [secret], "last_error": secret},
        "progress": [{"batch": secret, "fraction": 0.5, "note": secret}],
    }
    with HelixQueue(database.dsn("pool"), tenant="b") as pool:
        backend_of(pool).run(calls.hello(worker=name, free=report))
        [whole] = seen(pool, name)
    [row] = seen_by_token(http, name)
    assert (row["tenant"], row["status"]) == ("*", "alive")
    assert row["free"] == {"gpus": 4, "health": {"slots": 2, "busy": 0}}
    assert secret in repr(whole)


def test_busy_slots_agree_with_the_batches_that_a_worker_holds(helix, name, shift):
    release = threading.Event()
    queue = Queue(name)

    @queue.handler
    def hold(_: Lease):
        release.wait(60)

    with shift(helix, [queue], slots=2) as working:
        worker = working.worker.worker
        wait_until(lambda: status(helix, worker) == {"alive"})  # reported, and idle
        helix.submit(queue, identity="s", payload={})
        wait_until(lambda: [row.leases for row in seen(helix, worker)] == [1])
        [row] = seen(helix, worker)
        held = helix.batches(worker=worker, state="RUNNING")
        assert [batch.identity for batch in held] == [("s",)]
        assert (row.free["health"]["busy"], row.free["health"]["slots"]) == (1, 2)
        release.set()
        working.stop()


def test_batches_of_a_worker_include_those_that_it_lost(helix, database, name):
    queue = Queue(name, lease=0.05, backoff=0)
    lost = helix.submit(queue, identity="lost", payload={}).receipt
    [stale] = helix.claim("loser", [queue])
    wait_until(lambda: helix.claim("winner", [queue]))
    helix.submit(queue, identity="other", payload={})
    for filters in ({}, {"queue": queue}, {"identity": "lost"}):
        found = helix.batches(worker="loser", **filters)
        assert [row.batch_id for row in found] == [lost.batch_id], filters
    assert stale.batch_id == lost.batch_id
    assert list(helix.batches(worker="loser", state="RUNNING")) == []
    assert list(helix.batches(worker="loser", state="COMPLETED")) == []
    with HelixQueue(database.dsn("app_b"), tenant="b") as other:
        assert list(other.batches(worker="loser")) == []
