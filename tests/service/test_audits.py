"""Check and replay over HTTP: one tenant's rows, one at a time, in bounded time."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import service_calls
from helixqueue.errors import Unavailable
from helixqueue.operate.check import LATE, invariants
from helixqueue.service.service import Service
from tests.support.cli import Helixq
from tests.support.lab import Lab, until
from tests.support.ledger_damage import damaged
from tests.support.service import Site, serving, settings_for


@pytest.fixture(scope="module")
def site(database):
    with database.connect("helix_bootstrap") as connection:
        # `check` finds strangers in the schema, and this one is the tests' own.
        connection.execute("drop function helix.test_pass_time")
    with serving(settings_for(database, replay_batches=3)) as url:
        yield Site(database, url)


@pytest.fixture(scope="module")
def busy(site, database):
    """Batches of both tenants, by turns in one queue name; an entry of b's alone was edited."""
    with Lab(database, q="audited") as lab:
        for tenant in "ab":
            lab.queue(tenant=tenant)
        for n in range(4):
            for tenant in "ab":
                lab.submit(f"s{n}", tenant=tenant)
        # One entry about all of them, then one about each tenant's.
        leases = lab.claim(8)
        for tenant in "ab":
            own = [lease for lease in leases if lease.tenant == tenant]
            lab.fail(*own, permanent=True, detail="okapi")
    damaged(
        database,
        "update helix.entry set actor = 'zebra' where id = (select max(e.id) from helix.entry e "
        "join helix.queue q on q.id = e.queue[1] where q.tenant = 'b')",
    )
    return site


def replayed(http):
    """The whole ledger, stretch by stretch."""
    pages, behind = [], 0
    while behind is not None:
        told = http.get("/v1/replay", params={"behind": behind})
        assert told.status_code == 200, told.text
        pages.append(told.json())
        behind = pages[-1]["next"]
    return pages


def test_a_token_checks_the_rows_of_its_own_tenant(busy):
    with busy.client(tenant="a") as a, busy.client(tenant="b") as b:
        ours, theirs = a.get("/v1/check").json(), b.get("/v1/check").json()
    assert {one["name"] for one in ours["results"]} == set(invariants())
    assert (ours["ok"], ours["every_tenant"]) == (True, False)
    holding = [one for one in ours["results"] if one["holds"]]
    assert len(holding) > len(ours["results"]) / 2
    skipped = {one["skipped"] for one in ours["results"] if one["skipped"]}
    assert all("owner" in why and "service" not in why for why in skipped)
    broken = {one["name"]: one for one in theirs["results"] if one["count"]}
    assert set(broken) == {"hash_broken", "row_not_last_step"}
    # Numbers of entries would tell how many calls all tenants made.
    assert not any("entry" in witness for one in broken.values() for witness in one["witnesses"])


def test_the_stretches_of_a_replay_are_the_whole_ledger_of_the_tenant(busy):
    with busy.client("operate", tenant="a") as a, busy.client(tenant="b") as b:
        ours, theirs = replayed(a), replayed(b)
    assert len(ours) >= 3
    assert sum(page["batches"] for page in ours) == 4
    assert sum(page["events"] for page in ours) == 16
    assert sum(page["violated"] for page in ours) == 0
    # Each stretch that has a batch of the entry reports it.
    violations = [one for page in theirs for one in page["violations"]]
    assert [one["kind"] for one in violations] == ["hash", "hash"]
    for violation in violations:
        [witness] = violation["witnesses"]
        assert (witness["version"], witness["actor"]) == (4, "zebra")
        assert not {"entry", "part", "before"} & witness.keys()


@contextmanager
def held_up(database):
    """Nobody reads fences meanwhile."""
    with database.connect("helix_bootstrap", autocommit=False) as connection:
        connection.execute("lock table helix.fence in access exclusive mode")
        yield
        connection.rollback()


def waiting(database):
    return database.value(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
        "and datname = current_database() and usename = 'service'"
    )


def test_one_at_a_time_of_a_tenant_and_the_service_serves_on(busy, database):
    with busy.client() as http, busy.client(tenant="b") as other, ThreadPoolExecutor() as threads:
        with held_up(database):
            first = threads.submit(http.get, "/v1/check")
            until(lambda: waiting(database))
            for path in ("/v1/check", "/v1/replay"):
                told = http.get(path)
                assert told.status_code == 429
                assert told.json()["type"].endswith(":check-under-way")
                assert int(told.headers["retry-after"]) >= 1
            assert http.get("/v1/batches").status_code == 200
            assert other.get("/v1/replay").status_code == 200, "no tenant waits for another's"
        assert first.result().status_code == 200
        assert http.get("/v1/replay").status_code == 200


def test_a_check_ends_in_time_and_says_what_it_left_out(database, busy):
    with serving(settings_for(database, check_seconds=0.5)) as url, held_up(database):
        site = Site(database, url)
        with site.client(token=busy.token()) as http:
            told = http.get("/v1/check").json()
            alone = http.get("/v1/check", params={"invariant": "fence_not_last_event"}).json()
            quick = {"invariant": ["version_gap", "hash_broken"]}
            others = http.get("/v1/check", params=quick).json()
            assert http.get("/v1/check", params={"invariant": "two"}).status_code == 422
    late = [one for one in told["results"] if one["late"]]
    assert {one["name"] for one in told["results"]} == set(invariants())
    assert 0 < len(late) < len(told["results"])
    assert "fence_not_last_event" in {one["name"] for one in late}
    assert not any(one["holds"] for one in late)
    assert {one["skipped"] for one in late} == {LATE}
    assert (told["ok"], alone["ok"], others["ok"]) == (False, False, True)
    assert [one["name"] for one in others["results"] if one["holds"]] == quick["invariant"]


def test_the_command_line_asks_alone_for_what_time_did_not_suffice_for(database, busy):
    helixq, token = Helixq(database), busy.token()
    with serving(settings_for(database, check_seconds=0.5)) as url:

        def checked():
            return helixq("check", "--url", url, "--token", token, HELIX_DSN="")

        with held_up(database):
            done = checked()
        assert checked().code == Exit.OK
    assert done.code == Exit.UNAVAILABLE
    late = {row[1] for row in done.lines if row[3] == LATE}
    # All that stood behind the first that had to wait was late, and then asked alone.
    behind = itertools.dropwhile(lambda name: name not in late, invariants())
    assert late
    assert len(late) < len(list(behind))
    assert "ask the database itself, with --dsn" in done.out


def test_a_check_ends_with_the_service(database, busy):
    with held_up(database), ThreadPoolExecutor() as threads:
        with serving(settings_for(database)) as url:
            client = Site(database, url).client(token=busy.token())
            asked = threads.submit(client.get, "/v1/check")
            until(lambda: waiting(database))
        # The service has ended: it did not wait for the lock.
        assert asked.exception() is not None or asked.result().status_code >= 500
        client.close()


def test_a_check_that_has_ended_when_it_is_cancelled_does_not_keep_the_rest_open(
    database, busy, monkeypatch
):
    cancel = psycopg.Connection.cancel_safe

    async def end():
        service = Service(settings_for(database))

        def cancelled(connection):
            cancel(connection)
            until(lambda: not service.audits._under_way)

        monkeypatch.setattr(psycopg.Connection, "cancel_safe", cancelled)
        asker = await service.principals.of([f"Bearer {busy.token()}".encode()])
        asked = asyncio.ensure_future(service.audits.check(asker, None))
        await asyncio.to_thread(until, lambda: waiting(database))
        await service.close()
        with pytest.raises(Unavailable):
            await asked

    with held_up(database):
        asyncio.run(end())


def test_a_part_that_cannot_be_closed_does_not_keep_the_rest_open(database, monkeypatch):
    async def end():
        service = Service(settings_for(database))
        assert await service.why_not_ready() is None

        async def broken():
            raise RuntimeError("broken")

        monkeypatch.setattr(service.audits, "close", broken)
        with pytest.raises(RuntimeError, match="broken"):
            await service.close()
        with pytest.raises(Unavailable, match="closed"):
            await service.served.run_without_tenant(service_calls.read_schema_revision())

    asyncio.run(end())
