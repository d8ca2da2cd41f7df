"""Several services behind one PostgreSQL: killed, cut off from it, and of two releases."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from helixqueue.embedded import Postgres
from helixqueue.engine import tokens
from helixqueue.engine.migrate import migrate
from helixqueue.ledger.replay import replay
from helixqueue.up.databases import admit
from tests.service.conftest import TLS, Site, serving, settings_for
from tests.support.cli import HELIXQ
from tests.support.database import Database
from tests.support.lab import Lab, one_database, until

ROOT = Path(__file__).parents[2]
AWAY_SECONDS = 30 if os.environ.get("HELIX_PROOF") else 8
pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def scratch(server, template):
    """A database of one test: services of others would do its duties."""
    yield from one_database(server, template, None)


@contextmanager
def replica(dsn, source=ROOT / "src"):
    """A service in a process of its own, and its URL; `source` has the release."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    with subprocess.Popen(
        [HELIXQ, "serve", "--dsn", dsn, "--port", "0", "--json"],
        env=kept | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            url = json.loads(process.stdout.readline())["url"]
            until(lambda: code(f"{url}/health/ready") == 200, 60)
            yield process, url
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def queue_of(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def code(url):
    try:
        return httpx.get(url, verify=TLS, timeout=30).status_code
    except httpx.TransportError:
        return None


class Load:
    """Clients that submit until told to stop, at whichever service answers."""

    def __init__(self, urls, token, queue, clients=4):
        self.urls = urls
        self.acknowledged = {}  # identity: the receipts it was answered with
        self.statuses = []  # of every answer, with how long it took
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = f"/v1/queues/{queue}/batches"
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self._numbers = itertools.count()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self):
        with httpx.Client(headers=self._headers, verify=TLS, timeout=30) as http:
            while not self._stop.is_set():
                # Each identity comes from several clients.
                self._submit(http, f"S-{next(self._numbers) // 2}")

    def _submit(self, http, identity):
        for url in itertools.cycle(self.urls):
            began = time.monotonic()
            try:
                told = http.post(url + self._path, json={"identity": identity, "payload": 1})
                status = told.status_code
            except httpx.TransportError:
                status = None
            with self._mutex:
                self.statuses.append((status, time.monotonic() - began))
            if status in {200, 201}:
                with self._mutex:
                    receipt = json.dumps(told.json()["receipt"], sort_keys=True)
                    self.acknowledged.setdefault(identity, []).append(receipt)
                return
            if self._stop.wait(0.05):
                return


def proven(database, load):
    """Everything acknowledged is there, once, and the ledger says so."""
    assert load.acknowledged
    assert {len(set(receipts)) for receipts in load.acknowledged.values()} == {1}
    kept = database.rows("select b.identity, count(*) from helix.batch b group by 1")
    assert {number for _, number in kept} == {1}
    assert set(load.acknowledged) <= {identity for identity, _ in kept}
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean


def test_one_of_two_replicas_is_killed_under_load_and_nothing_acknowledged_is_lost(scratch):
    dsn = scratch.dsn("service", direct=True)
    with (
        replica(dsn) as (doomed, first),
        replica(dsn) as (survivor, second),
        queue_of(scratch) as lab,
        Load([first, second], Site(scratch, first).token(), lab.q) as load,
    ):
        until(lambda: len(load.acknowledged) > 100, 60)
        doomed.kill()
        before = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > before + 100, 60)
        # The duties go on: a worker that died is found out by the one that is left.
        [lease] = lab.claim(lease_seconds=0.05)
        until(
            lambda: lab.rows(
                "select from helix.work w where w.pending and w.batch = %s", lease.batch
            )
        )
        actor = lab.value(
            "select e.actor from helix.event e where e.batch = %s order by e.version desc limit 1",
            lease.batch,
        )
        assert actor.endswith(f".{survivor.pid}")
    assert None in {status for status, _ in load.statuses}, "nobody felt the kill"
    proven(scratch, load)


def test_a_database_that_is_gone_for_a_while_costs_503s_and_no_restart(tmp_path):
    postgres = Postgres(tmp_path / "pg", supervised=False)
    with postgres.start():
        migrate(postgres.migrator_dsn)
        admit(postgres.migrator_dsn, "helix_service", create=True)
        database = Database(postgres, "helix")
        database.rows("select helix.set_queue_v1('a', 'q', 'ann')")
        token = _token(database)
        with (
            replica(postgres.service_dsn) as (_, url),
            Load([url], token, "q") as load,
        ):
            until(lambda: len(load.acknowledged) > 20, 60)
            postgres.kill()
            until(lambda: load.statuses[-1][0] == 503, 30)
            down = len(load.statuses)
            deadline = time.monotonic() + AWAY_SECONDS
            until(lambda: time.monotonic() > deadline, AWAY_SECONDS + 2)
            during = load.statuses[down:]
            assert {status for status, _ in during} == {503}
            assert max(seconds for _, seconds in during) < 8
            assert code(f"{url}/health/live") == 200
            assert code(f"{url}/health/ready") == 503
            postgres.start()
            back = len(load.acknowledged)
            until(lambda: len(load.acknowledged) > back + 20, 30)
            until(lambda: code(f"{url}/health/ready") == 200)
            ran = "select max(d.last_at) from helix.duty d"
            at = database.value(ran)
            until(lambda: database.value(ran) > at)
        assert 500 not in {status for status, _ in load.statuses}
        proven(database, load)


def _token(database):
    """For tenant a, made by the server's superuser: no role of the tests is on this server."""
    made = tokens.fresh()
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    with Lab(database, "helix_bootstrap") as lab:
        assert lab.run(
            tokens.create(
                tenant="a", name="t", token_hash=made.hash, scopes=tokens.SCOPES, queues=None,
                expires_at=expires_at,
            )
        )  # fmt: skip
    return made.token


def set_revision(database, revision, oldest):
    with database.connect("helix_migrator") as owner:
        owner.execute("update helix_migration.revision set version_num = %s", (revision,))
        owner.execute("update helix_migration.reach set oldest = %s", (oldest,))


def test_an_old_release_serves_on_the_new_schema_while_a_release_is_rolled_out(scratch):
    """The old and the new one side by side; and a schema that leaves the old one behind says so."""
    with serving(settings_for(scratch)) as old, Site(scratch, old).client() as http:
        assert http.get("/v1/queues").status_code == 200
        set_revision(scratch, "9999", "0001")
        with serving(settings_for(scratch)) as restarted:
            for url in (old, restarted):
                assert code(f"{url}/health/ready") == 200
            assert http.get("/v1/queues").status_code == 200
        set_revision(scratch, "9999", "9000")
        until(lambda: code(f"{old}/health/ready") == 503)
        told = httpx.get(f"{old}/health/ready", verify=TLS).json()
        assert "does not fit" in told["detail"]


def test_a_new_release_is_not_ready_before_somebody_migrated(scratch):
    set_revision(scratch, "0000", "0000")
    with serving(settings_for(scratch)) as url:
        assert code(f"{url}/health/ready") == 503


def test_the_database_shares_the_duties_out(scratch):
    """Each run is by one of them, and no duty is done twice as often for two replicas."""
    with serving(settings_for(scratch)), serving(settings_for(scratch)):
        until(lambda: scratch.value("select count(*) = 0 from helix.duty where last_at is null"))
        seen = set()

        def three_runs():
            seen.add(scratch.value("select last_at from helix.duty where duty = 'reap'"))
            return len(seen) >= 3

        until(three_runs)
    runs = sorted(seen)
    every = scratch.value("select every from helix.duty where duty = 'reap'")
    assert min(later - earlier for earlier, later in pairwise(runs)) >= every
