"""Deliveries at the edges: slow databases, odd names, expired memory, and many at once."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.webhook import source as sources
from tests.support.fence_time import expire
from tests.support.lab import wait_until
from tests.support.service import problem_kind
from tests.support.webhooks import signed_headers

ORDERED = {"entity": "/sample", "version": "/v", "order": "version", "revision": "/v"}


@pytest.fixture(scope="module")
def time_passes(database):
    expire.install(database)

    def passes(source):
        for (key,) in database.rows(
            "select key from helix.fence where name = %s", f"webhook {source.name}"
        ):
            expire(database, key, answer=True, tombstone=True)
            expire.restate(database, key)

    return passes


def client_of(helix):
    """A client of an application that mounts the receiver."""
    transport = httpx.ASGITransport(
        Starlette(routes=[Mount("/hooks", helix.webhook_app())]), raise_app_exceptions=False
    )
    return httpx.AsyncClient(transport=transport, base_url="http://shop")


def test_equal_event_ids_of_two_sources_are_two_events(source_of):
    for source in (source_of("stripe"), source_of("stripe")):
        answer = source.send(source.event("evt_same", sample="S-1"))
        assert answer.headers["helix-decision"] == "new"
        assert len(source.batches()) == 1


def test_event_id_that_contains_the_version_of_another_is_another_event(source_of):
    source = source_of("stripe", mapping={"version": "/v"})
    for event, version, sample in (("run/7", None, "S-1"), ("run", "7", "S-2")):
        answer = source.send(source.event(event, v=version, sample=sample))
        assert answer.headers["helix-decision"] == "new", source.letters()


def test_event_resent_after_its_fence_was_deleted_makes_no_second_batch(source_of, time_passes):
    source = source_of("stripe")
    body = source.event("evt_late", sample="S-1")
    first = source.send(body)
    time_passes(source)
    assert source.send(body).json() == first.json()
    other = source.send(source.event("evt_late", sample="S-2"))
    assert (other.status_code, problem_kind(other)) == (409, "reused-event-id")
    time_passes(source)
    reused = source.send(source.event("evt_late", sample="S-2"))
    assert reused.headers["helix-decision"] == "dead_letter"
    assert [letter["reason"] for letter in source.letters()] == ["reused"]
    assert len(source.batches()) == 1


def test_older_version_is_superseded_also_after_its_fence_was_deleted(source_of, time_passes):
    source = source_of("stripe", mapping=ORDERED)
    old, new = (source.event(f"evt_{v}", sample="S-1", v=v) for v in (1, 2))
    for body, decision in ((old, "new"), (new, "new")):
        assert source.send(body).headers["helix-decision"] == decision
    time_passes(source)
    assert source.send(old).headers["helix-decision"] == "superseded"
    assert source.send(new).headers["helix-decision"] == "duplicate_body"


def test_concurrent_versions_of_an_entity_take_effect_in_increasing_order(source_of):
    source = source_of("stripe", mapping=ORDERED)
    versions = random.Random(3).sample(range(1, 31), 30)

    def deliver(version):
        body = source.event(sample="S-1", v=version)
        while (answer := source.send(body)).status_code == 503:
            pass
        return answer.headers["helix-decision"]

    with ThreadPoolExecutor(8) as threads:
        decisions = dict(zip(versions, threads.map(deliver, versions), strict=True))
    assert set(decisions.values()) == {"new", "superseded"}
    assert decisions[30] == "new"
    made = [int(row["revision"]) for row in source.batches()]  # newest first
    assert made == sorted((v for v in versions if decisions[v] == "new"), reverse=True)


def test_source_that_is_applied_and_rotated_meanwhile_loses_no_delivery(source_of):
    source = source_of("stripe")
    stop = threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            source.apply(tolerance_seconds=300 + number % 2)
            source.rotate(f"whsec_of_number_{number % 3}", overlap=3600)
            source.rotate(overlap=3600)

    with ThreadPoolExecutor(5) as threads:
        changing = threads.submit(change)
        try:
            bodies = [source.event(sample=f"S-{n}") for n in range(40)]
            answers = list(threads.map(source.send, bodies))
        finally:
            stop.set()
        changing.result()
    assert {answer.headers.get("helix-decision") for answer in answers} == {"new"}


def test_conflicting_letter_is_redriven_under_another_revision(source_of):
    source = source_of("stripe", mapping=ORDERED)
    source.send(source.event(sample="S-1", v=1, ml=1))
    source.send(source.event(sample="S-1", v=1, ml=2))
    [letter] = source.letters()
    path = f"/v1/letters/{letter['letter']}/redrive"
    assert source.admin.post(path, json={"reason": "try"}).status_code == 409
    redriven = source.admin.post(path, json={"reason": "measured twice", "revision": "1b"})
    assert redriven.json()["decision"] == "new"
    again = source.admin.post(path, json={"reason": "measured twice", "revision": "1c"})
    assert again.status_code == 422
    assert len(source.batches()) == 2


def test_provider_is_answered_before_it_stops_waiting_and_the_delivery_goes_on(
    database, source_of, monkeypatch
):
    monkeypatch.setitem(sources.ANSWER_SECONDS, "slack", 0.2)
    source = source_of("slack")
    body = source.event("Ev1", sample="S-1")
    with database.connect("helix_bootstrap") as connection, connection.transaction():
        connection.execute("lock table helix.source")
        answer = source.send(body)
        assert (answer.status_code, problem_kind(answer)) == (503, "delivery-in-progress")
        assert answer.headers["retry-after"] == "1"
    wait_until(source.batches)
    assert source.send(body).headers["helix-decision"] == "duplicate"


def test_slow_effect_of_an_application_goes_on_after_the_answer(database, source_of, monkeypatch):
    monkeypatch.setitem(sources.ANSWER_SECONDS, "slack", 0.2)
    source = source_of("slack", mapping={"queue": None})
    body = source.event("Ev1", sample="S-1")

    async def story():
        leave = asyncio.Event()
        async with AsyncHelixQueue(database.dsn("app_a"), tenant="a") as helix:

            @helix.webhook(source.name, "*")
            async def slow(event, _tx):
                await leave.wait()
                return f"done {event.id}"

            async with client_of(helix) as client:

                def send():
                    headers = signed_headers("slack", body)
                    return client.post(f"/hooks/{source.name}", content=body, headers=headers)

                assert (await send()).status_code == 503
                leave.set()
                while (answer := await send()).status_code == 503:
                    pass
                assert answer.headers["helix-decision"] == "duplicate"
                assert answer.json()["effect"] == "done Ev1"

    asyncio.run(story())


def test_path_that_is_no_name_gets_the_response_of_an_unknown_source(database):
    async def story():
        async with (
            AsyncHelixQueue(database.dsn("app_a"), tenant="a") as helix,
            client_of(helix) as client,
        ):
            for path in ("unknown", "a%00b", "%ff", "A/b", "x" * 1000):
                answer = await client.post(f"/hooks/{path}", content=b"{}")
                assert answer.status_code == 401, path

    asyncio.run(story())


def test_effect_that_loses_its_connection_is_answered_500_and_takes_effect_when_resent(
    database, source_of
):
    source = source_of("stripe", mapping={"queue": None})
    body = source.event(sample="S-1")
    failing = [True]

    async def story():
        with HelixQueue(database.dsn("app_a"), tenant="a") as helix:

            @helix.webhook(source.name, "*")
            def lost(_event, tx):
                if failing:
                    failing.clear()
                    tx.close()
                    raise TimeoutError("of the application")

            async with client_of(helix) as client:
                headers = signed_headers("stripe", body)
                for status in (500, 200):
                    answer = await client.post(
                        f"/hooks/{source.name}", content=body, headers=headers
                    )
                    assert answer.status_code == status, answer.text

    asyncio.run(story())
