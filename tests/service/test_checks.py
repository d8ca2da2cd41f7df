"""Check and replay over HTTP: rows of one tenant, one at a time, in bounded time."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import service_calls
from helixqueue.engine.check_runs import note_check
from helixqueue.errors import Unavailable
from helixqueue.operate.check import TIMED_OUT, invariants
from helixqueue.service.service import Service
from tests.support.cli import Helixq
from tests.support.lab import Lab, wait_until
from tests.support.ledger_damage import damage
from tests.support.service import Site, serving, settings_for


@pytest.fixture(scope="module")
def site(database):
    with database.connect("helix_bootstrap") as connection:
        # `check` reports foreign objects in the schema, and this belongs to the tests.
        connection.execute("drop function helix.test_pass_time")
    with serving(settings_for(database, replay_batches=3)) as url:
        yield Site(database, url)


@pytest.fixture(scope="module")
def busy(site, database):
    """Alternating batches of both tenants; one entry of tenant b only was edited."""
    with Lab(database, q="audited") as lab:
        for tenant in "ab":
            lab.queue(tenant=tenant)
        for n in range(4):
            for tenant in "ab":
                lab.submit(f"s{n}", tenant=tenant)
        # One entry for all of them, then one per tenant.
        leases = lab.claim(8)
        for tenant in "ab":
            own = [lease for lease in leases if lease.tenant == tenant]
            lab.fail(*own, permanent=True, detail="okapi")
    damage(
        database,
        "update helix.entry set actor = 'zebra' where id = (select max(e.id) from helix.entry e "
        "join helix.queue q on q.id = e.queue[1] where q.tenant = 'b')",
    )
    return site


def replayed(http):
    """The whole ledger, range by range."""
    pages, query = [], {}
    while True:
        response = http.get("/v1/replay", params=query)
        assert response.status_code == 200, response.text
        pages.append(response.json())
        query = {"after": pages[-1]["next"]}
        if query["after"] is None:
            return pages


def test_check_reads_the_rows_of_the_token_tenant_only(busy):
    with busy.client(tenant="a") as a, busy.client(tenant="b") as b:
        ours, theirs = a.get("/v1/check").json(), b.get("/v1/check").json()
    assert {item["name"] for item in ours["results"]} == set(invariants())
    assert (ours["ok"], ours["every_tenant"]) == (True, False)
    holding = [item for item in ours["results"] if item["holds"]]
    assert len(holding) > len(ours["results"]) / 2
    skipped = {item["skipped"] for item in ours["results"] if item["skipped"]}
    assert all("owner" in why and "service" not in why for why in skipped)
    broken = {item["name"]: item for item in theirs["results"] if item["count"]}
    assert set(broken) == {"hash_broken", "row_not_last_step"}
    # Entry numbers would disclose how many calls all tenants made.
    assert not any("entry" in witness for item in broken.values() for witness in item["witnesses"])


def test_replay_ranges_cover_the_whole_ledger_of_the_tenant(busy):
    with busy.client("operate", tenant="a") as a, busy.client(tenant="b") as b:
        ours, theirs = replayed(a), replayed(b)
    assert len(ours) >= 3
    assert sum(page["batches"] for page in ours) == 4
    assert sum(page["events"] for page in ours) == 16
    assert sum(page["violated"] for page in ours) == 0
    # Each range with a batch of the entry reports it.
    violations = [item for page in theirs for item in page["violations"]]
    assert [item["kind"] for item in violations] == ["hash", "hash"]
    for violation in violations:
        [witness] = violation["witnesses"]
        assert (witness["version"], witness["actor"]) == (4, "zebra")
        assert not {"entry", "part", "before"} & witness.keys()


@contextmanager
def held_up(database):
    """Locks the fences."""
    with database.connect("helix_bootstrap", autocommit=False) as connection:
        connection.execute("lock table helix.fence in access exclusive mode")
        yield
        connection.rollback()


def waiting(database):
    return database.value(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
        "and datname = current_database() and usename = 'service'"
    )


def test_one_check_runs_per_tenant_while_the_service_responds(busy, database):
    with busy.client() as http, busy.client(tenant="b") as other, ThreadPoolExecutor() as threads:
        with held_up(database):
            first = threads.submit(http.get, "/v1/check")
            wait_until(lambda: waiting(database))
            for path in ("/v1/check", "/v1/replay"):
                response = http.get(path)
                assert response.status_code == 429
                assert response.json()["type"].endswith(":check-under-way")
                assert int(response.headers["retry-after"]) >= 1
            assert http.get("/v1/batches").status_code == 200
            assert other.get("/v1/replay").status_code == 200, "no tenant waits for another's"
        assert first.result().status_code == 200
        assert http.get("/v1/replay").status_code == 200


def test_check_ends_in_time_and_lists_late_invariants(database, busy):
    with serving(settings_for(database, check_seconds=0.5)) as url, held_up(database):
        site = Site(database, url)
        with site.client(token=busy.token()) as http:
            response = http.get("/v1/check").json()
            alone = http.get("/v1/check", params={"invariant": "fence_not_last_event"}).json()
            quick = {"invariant": ["version_gap", "hash_broken"]}
            others = http.get("/v1/check", params=quick).json()
            assert http.get("/v1/check", params={"invariant": "two"}).status_code == 422
    late = [item for item in response["results"] if item["late"]]
    assert {item["name"] for item in response["results"]} == set(invariants())
    assert 0 < len(late) < len(response["results"])
    assert "fence_not_last_event" in {item["name"] for item in late}
    assert not any(item["holds"] for item in late)
    assert {item["skipped"] for item in late} == {TIMED_OUT}
    assert (response["ok"], alone["ok"], others["ok"]) == (False, False, True)
    assert [item["name"] for item in others["results"] if item["holds"]] == quick["invariant"]


def test_command_line_repeats_late_invariants_separately(database, busy):
    helixq, token = Helixq(database), busy.token()
    with serving(settings_for(database, check_seconds=0.5)) as url:

        def checked():
            return helixq("check", "--url", url, "--token", token, HELIX_DSN="")

        with held_up(database):
            done = checked()
        assert checked().code == Exit.OK
    assert done.code == Exit.UNAVAILABLE
    late = {row[1] for row in done.lines if row[3] == TIMED_OUT}
    # Everything after the first blocked invariant was late, and then checked separately.
    behind = itertools.dropwhile(lambda name: name not in late, invariants())
    assert late
    assert len(late) < len(list(behind))
    assert "use the database itself, with --dsn" in done.out


def test_check_is_cancelled_when_the_service_closes(database, busy):
    with held_up(database), ThreadPoolExecutor() as threads:
        with serving(settings_for(database)) as url:
            client = Site(database, url).client(token=busy.token())
            sent = threads.submit(client.get, "/v1/check")
            wait_until(lambda: waiting(database))
        # The service closed without waiting for the lock.
        assert sent.exception() is not None or sent.result().status_code >= 500
        client.close()


def test_close_continues_when_a_check_ends_before_its_cancellation(database, busy, monkeypatch):
    cancel = psycopg.Connection.cancel_safe

    async def end():
        service = Service(settings_for(database))

        def cancelled(connection):
            cancel(connection)
            wait_until(lambda: not service.check_jobs._tasks)

        monkeypatch.setattr(psycopg.Connection, "cancel_safe", cancelled)
        asker = await service.principals.get([f"Bearer {busy.token()}".encode()])
        sent = asyncio.ensure_future(service.check_jobs.check(asker, None))
        await asyncio.to_thread(wait_until, lambda: waiting(database))
        await service.close()
        with pytest.raises(Unavailable):
            await sent

    with held_up(database):
        asyncio.run(end())


def test_close_continues_when_a_part_fails_to_close(database, monkeypatch):
    async def end():
        service = Service(settings_for(database))
        assert await service.check_ready() is None

        async def broken():
            raise RuntimeError("broken")

        monkeypatch.setattr(service.check_jobs, "close", broken)
        with pytest.raises(RuntimeError, match="broken"):
            await service.close()
        with pytest.raises(Unavailable, match="closed"):
            await service.sessions.run_without_tenant(service_calls.read_schema_revision())

    asyncio.run(end())


def test_run_of_all_invariants_is_recorded_with_its_findings(busy):
    with busy.client(tenant="b", name="auditor") as http:
        found = http.get("/v1/check").json()["results"]
        http.get("/v1/check", params={"invariant": "hash_broken"})
        run, *before = http.get("/v1/checks").json()["rows"]
        after = run["number"]
        http.get("/v1/check")
        assert [row["number"] for row in http.get("/v1/checks").json()["rows"]][1:] == [
            after, *(row["number"] for row in before),
        ], "a check of one invariant is no run"  # fmt: skip
    names = ("name", "count", "witnesses", "skipped")
    assert run["results"] == [{name: row[name] for name in names} for row in found]
    assert run["actor"].startswith("auditor")
    assert run["seconds"] > 0


def test_newest_hundred_runs_of_a_tenant_are_kept(database):
    with Lab(database) as lab:
        for tenant, count in (("b", 1), ("a", 103)):
            for number in range(count):
                lab.run(note_check(tenant=tenant, actor=f"ann-{number}", seconds=1.0, results=[]))
        runs = lab.rows("select actor from helix.check_run where tenant = 'a' order by id")
        assert [actor for (actor,) in runs] == [f"ann-{number}" for number in range(3, 103)]
        assert lab.value("select count(*) from helix.check_run where tenant = 'b'") >= 1
