"""Several replicas on one PostgreSQL: killed, disconnected, and of two releases."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from helixqueue.embedded import Postgres
from helixqueue.engine import tokens
from helixqueue.engine.migrate import migrate
from helixqueue.up.databases import grant_service
from tests.support.database import Database
from tests.support.lab import Lab, new_database, wait_until
from tests.support.replicas import (
    SubmitLoad,
    assert_each_acknowledged_once,
    new_queue,
    replica,
    status_of,
)
from tests.support.service import TLS, Site, serving, settings_for

ROOT = Path(__file__).parents[2]
AWAY_SECONDS = 30 if os.environ.get("HELIX_PROOF") else 8
pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def scratch(server, template):
    """A database for one test: other services would run its duties."""
    yield from new_database(server, template, None)


def test_killed_replica_loses_no_acknowledged_batch(scratch):
    dsn = scratch.dsn("service", direct=True)
    with (
        replica(dsn) as (doomed, first),
        replica(dsn) as (survivor, second),
        new_queue(scratch) as lab,
        SubmitLoad([first, second], Site(scratch, first).token(), lab.q) as load,
    ):
        wait_until(lambda: len(load.acknowledged) > 100, seconds=60)
        doomed.kill()
        before = len(load.acknowledged)
        wait_until(lambda: len(load.acknowledged) > before + 100, seconds=60)
        # Duties continue: the remaining replica reaps the lease of a dead worker.
        [lease] = lab.claim(lease_seconds=0.05)
        wait_until(
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
    assert_each_acknowledged_once(scratch, load)


def test_replica_recovers_from_a_database_outage_without_restart(tmp_path):
    postgres = Postgres(tmp_path / "pg", supervised=False)
    with postgres.start():
        migrate(postgres.migrator_dsn)
        grant_service(postgres.migrator_dsn, "helix_service", create=True)
        database = Database(postgres, "helix")
        database.rows("select helix.set_queue_v1('a', 'q', 'ann')")
        token = _token(database)
        with (
            replica(postgres.service_dsn) as (_, url),
            SubmitLoad([url], token, "q") as load,
        ):
            wait_until(lambda: len(load.acknowledged) > 20, seconds=60)
            postgres.kill()
            wait_until(lambda: load.statuses[-1][0] == 503, seconds=30)
            down = len(load.statuses)
            deadline = time.monotonic() + AWAY_SECONDS
            wait_until(lambda: time.monotonic() > deadline, seconds=AWAY_SECONDS + 2)
            during = load.statuses[down:]
            assert {status for status, _ in during} == {503}
            assert max(seconds for _, seconds in during) < 8
            assert status_of(f"{url}/health/live") == 200
            assert status_of(f"{url}/health/ready") == 503
            postgres.start()
            back = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > back + 20, seconds=30)
            wait_until(lambda: status_of(f"{url}/health/ready") == 200)
            ran = "select max(d.last_at) from helix.duty d"
            at = database.value(ran)
            wait_until(lambda: database.value(ran) > at)
        assert 500 not in {status for status, _ in load.statuses}
        assert_each_acknowledged_once(database, load)


def _token(database):
    """Of tenant a, created by the superuser: this server has no roles of the tests."""
    made = tokens.new_token()
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


def test_old_release_serves_on_the_new_schema(scratch):
    """Old and new release run side by side until the schema excludes the old one."""
    with serving(settings_for(scratch)) as old, Site(scratch, old).client() as http:
        assert http.get("/v1/queues").status_code == 200
        set_revision(scratch, "9999", "0001")
        with serving(settings_for(scratch)) as restarted:
            for url in (old, restarted):
                assert status_of(f"{url}/health/ready") == 200
            assert http.get("/v1/queues").status_code == 200
        set_revision(scratch, "9999", "9000")
        wait_until(lambda: status_of(f"{old}/health/ready") == 503)
        response = httpx.get(f"{old}/health/ready", verify=TLS).json()
        assert "does not match" in response["detail"]


def test_new_release_is_not_ready_before_the_migration(scratch):
    set_revision(scratch, "0000", "0000")
    with serving(settings_for(scratch)) as url:
        assert status_of(f"{url}/health/ready") == 503


def test_database_distributes_duties_among_replicas(scratch):
    """One replica makes each run, and two replicas do not run a duty twice as often."""
    with serving(settings_for(scratch)), serving(settings_for(scratch)):
        wait_until(
            lambda: scratch.value("select count(*) = 0 from helix.duty where last_at is null")
        )
        ids = set()

        def three_runs():
            ids.add(scratch.value("select last_at from helix.duty where duty = 'reap'"))
            return len(ids) >= 3

        wait_until(three_runs)
    runs = sorted(ids)
    every = scratch.value("select every from helix.duty where duty = 'reap'")
    assert min(later - earlier for earlier, later in pairwise(runs)) >= every
