"""Rollout of a new release: a copy of the package with a newer schema."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helixqueue.engine import revision
from tests.support.cli import HELIXQ
from tests.support.lab import new_database, wait_until
from tests.support.replicas import (
    SubmitLoad,
    assert_each_acknowledged_once,
    new_queue,
    replica,
    status_of,
)
from tests.support.service import Site, serving, settings_for

KNOWN = {"identity": "S-0", "payload": 1}
PACKAGE = Path(__file__).parents[2] / "src" / "helixqueue"
pytestmark = [pytest.mark.timeout(200), pytest.mark.xdist_group("replicas")]

# Typical schema changes: columns on busy tables, a replaced function, a new one, an index. Claims,
# submits and settings of the old release continue during all of them.
SCHEMA = """
alter table helix.queue add column colour text not null default 'none';
alter table helix.batch add column colour text;
alter table helix.work add column colour text;
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid::regprocedure from pg_proc p
    where p.pronamespace = 'helix'::regnamespace and p.proname in ('submit_v1', 'claim_v1')
  loop
    execute pg_get_functiondef(v_function);
  end loop;
end
$$;
create function helix.colour_v1() returns text language sql as $f$ select 'none' $f$;
"""
REVISION = """
from helixqueue.engine.migrations import ddl

revision = "0002"
down_revision = "0001"


def upgrade():
    ddl.run("../migrations/colour.sql")
    ddl.build_index("create index concurrently batch_colour on helix.batch (colour) ")
"""


@pytest.fixture
def scratch(server, template):
    yield from new_database(server, template, None)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Directory of the next release."""
    source = tmp_path_factory.mktemp("next") / "src"
    shutil.copytree(PACKAGE, source / "helixqueue", ignore=shutil.ignore_patterns("__pycache__"))
    migrations = source / "helixqueue" / "engine" / "migrations"
    (migrations / "colour.sql").write_text(SCHEMA, encoding="utf-8")
    (migrations / "versions" / "r0002_colour.py").write_text(REVISION, encoding="utf-8")
    return source


def helixq(release, *words):
    """The command of the next release."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX")}
    return subprocess.run(
        [HELIXQ, *words],
        env=kept | {"PYTHONPATH": str(release)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_new_release_asks_for_the_migration(scratch, release):
    done = helixq(release, "serve", "--dsn", scratch.dsn("service", direct=True), "--port", "0")
    assert (done.returncode, "helixq migrate" in done.stderr) == (4, True)


def test_rollout_under_load_keeps_the_old_release_working(scratch, release):
    assert revision.head() == "0001", "the next release of this test is 0002"
    dsn = scratch.dsn("service", direct=True)
    urls = []
    with new_queue(scratch) as lab, replica(dsn) as (old, old_url):
        urls.append(old_url)
        site = Site(scratch, old_url)
        with SubmitLoad(urls, site.token(), lab.q, clients=2) as load, site.client() as http:
            wait_until(lambda: len(load.acknowledged) > 20, seconds=60)
            held = lab.claim(4)  # by a worker of the old release, which settles later
            migrated = helixq(release, "migrate", "--dsn", scratch.dsn("helix_migrator"))
            assert migrated.returncode == 0, migrated.stderr
            assert scratch.value("select version_num from helix_migration.revision") == "0002"
            # Submits, settings, claims and settlements continue.
            before = len(load.acknowledged)
            wait_until(lambda: len(load.acknowledged) > before + 20, seconds=60)
            assert status_of(f"{old_url}/health/ready") == 200
            assert {item.answer for item in lab.complete(*held)} == {"ok"}
            lab.complete(*lab.claim(4))
            lab.queue(max_attempts=7)
            assert http.get(f"/v1/queues/{lab.q}").json()["max_attempts"] == 7
            # Restarted replicas of either release work as well.
            with (
                serving(settings_for(scratch)) as again,
                replica(dsn, source=release) as (_, new_url),
            ):
                urls += [again, new_url]
                for url in urls[1:]:
                    with Site(scratch, url).client() as other:
                        response = other.post(f"/v1/queues/{lab.q}/batches", json=KNOWN).json()
                    assert response["decision"] == "duplicate"
                old.terminate()
                before = len(load.acknowledged)
                wait_until(lambda: len(load.acknowledged) > before + 20, seconds=60)
    assert not {status for status, _ in load.statuses} - {200, 201, 503, None}
    assert_each_acknowledged_once(scratch, load)
