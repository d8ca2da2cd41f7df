"""Wake-ups reach the workers that may do the work, and tell no other tenant of it."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import sql

from helixqueue.engine import calls
from helixqueue.postgres import wakeups
from tests.support.lab import POOLED, Lab

_numbers = itertools.count(1)


@pytest.fixture
def shared(database):
    """A queue of the same name in both tenants."""
    name = f"shared{next(_numbers)}"
    for role, tenant in (("app_a", "a"), ("app_b", "b")):
        with Lab(database, role, q=name) as lab:
            lab.queue(tenant=tenant)
    return name


def listening(database, role, channels):
    connection = database.connect(role, autocommit=True)
    for channel in channels:
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
    return connection


def heard(connection, seconds=0.5):
    return [notify.channel for notify in connection.notifies(timeout=seconds)]


@pytest.mark.skipif(POOLED, reason="behind a pooler a session cannot listen")
def test_login_of_another_tenant_receives_no_notification_on_any_computable_channel(
    database, shared
):
    with Lab(database, "app_a", worker="wa", q=shared) as a, Lab(database, "app_b", q=shared) as b:
        waits = [calls.wait(worker="wa", queues=[shared], seconds=60)]
        waits += [calls.wait(worker=name, queues=[shared], seconds=60) for name in ("wa", "wb")]
        [own], *others = [lab.run(call) for lab, call in zip((a, b, b), waits, strict=True)]
        # The names of the first edition and of the tables, and those of its own sessions.
        computed = {f"helix_{shared}", f"helix_work_{shared}", "helix", "helix_wake", shared}
        computed |= {channel for channels in others for channel in channels}
        computed |= {
            channel
            for tenant in ("a", "b", "*", "")
            for channel in channels_as(database, "app_b", tenant, shared)
        }
        assert own not in computed
        with (
            listening(database, "app_a", [own]) as mine,
            listening(database, "app_b", computed) as foreign,
        ):
            a.submit("s", queue=shared)
            assert heard(mine) == [own]
            assert heard(foreign) == []
            b.submit("s", tenant="b", queue=shared)
            assert heard(mine) == []
            assert len(heard(foreign)) == 1


def channels_as(database, role, tenant, queue):
    """What the login is told when it names another tenant than its own."""
    with database.connect(role) as connection:
        connection.execute("select set_config('helix.tenant', %s, false)", (tenant,))
        query = "select helix.wait_v1('wb', array[%s::text], 60)"
        return connection.execute(query, (queue,)).fetchone()[0]


def test_login_that_serves_many_tenants_has_a_channel_for_each(database, shared):
    [a], [b] = (channels_as(database, "service", tenant, shared) for tenant in ("a", "b"))
    assert a != b
    assert channels_as(database, "service", "a", shared) == [a]


@pytest.mark.skipif(POOLED, reason="behind a pooler a service cannot listen")
def test_service_wakes_no_worker_for_the_work_of_another_tenant(site, database, shared):
    def waits(client, worker):
        body = {"worker": worker, "queues": [shared]}
        mark = client.post("/v1/work/expect", json={**body, "seconds": 60}).json()["mark"]
        # What came before the service listened counts as a wake-up.
        while (answer := wait(client, {**body, "mark": mark, "seconds": 0.3}))["woken"]:
            mark = answer["mark"]
        return {**body, "mark": mark}

    def wait(client, body):
        return client.post("/v1/work/wait", json=body).json()

    with (
        site.client(tenant="a") as a,
        site.client(tenant="b") as b,
        Lab(database, "app_a", q=shared) as lab,
        ThreadPoolExecutor(2) as threads,
    ):
        of_a, of_b = waits(a, "wa"), waits(b, "wb")
        woken = threads.submit(wait, a, {**of_a, "seconds": 20})
        asleep = threads.submit(wait, b, {**of_b, "seconds": 2})
        time.sleep(0.2)
        lab.submit("s", queue=shared)
        assert woken.result()["woken"] is True
        assert asleep.result() == {"woken": False, "mark": of_b["mark"]}


def test_tenant_with_many_queues_displaces_its_own_channels_only(monkeypatch):
    monkeypatch.setattr(wakeups, "TENANT_CHANNELS_MAX", 3)
    monkeypatch.setattr(wakeups.Wakeups, "_listen", lambda _: None)
    monkeypatch.setattr(wakeups.asyncio, "create_task", lambda _: None)
    made = wakeups.Wakeups(None)
    made.listen("b", {"q": "helix_b"})
    made.listen("a", {f"q{n}": f"helix_{n}" for n in range(3)})
    made.listen("a", {"q3": "helix_3"})
    assert made.knows("b", ["q"])
    assert made.knows("a", ["q3"])
    assert not made.knows("a", ["q0"])
    assert not made.knows("b", ["q3"])
