"""Figures of fences, dead letters and feeds, counted in the database for all processes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from helixqueue import Conflict, HelixQueue, Queue
from helixqueue.engine import duties, fences, letters, metrics
from helixqueue.engine.fences import Times
from tests.support.duties import run_duty
from tests.support.fence_sweep import sweep_fences
from tests.support.lab import Lab, end_minute, wait_until
from tests.support.letters import write_letters

CALLS = "helix_fence_calls_total"


def series(database, *names, role="operator"):
    """The series of these metrics after a run of the duty, without those that are zero."""
    end_minute(database)
    with Lab(database) as lab:
        assert run_duty(lab, "metrics") is None
    with Lab(database, role) as lab:
        return {
            (row.tenant, row.name, row.queue, row.label): row.value
            for row in lab.run(metrics.read_metrics())
            if row.name in names and row.value
        }


def call(helix, name, key, payload, **options):
    with helix.fence(name, key, payload=payload, **options) as held:
        if held.first:
            held.seal({"done": True})


def test_fence_calls_of_all_processes_are_counted_per_fence_and_tenant(database):
    clients = [HelixQueue(database.dsn(f"app_{tenant}"), tenant=tenant) for tenant in "aab"]
    first, second, other = clients
    try:
        for client in clients:  # two processes of a, one of b
            call(client, "refund", "order-1", {"amount": 7, "to": {"iban": "x", "name": "ann"}})
        call(first, "refund", "order-2", {"amount": 8})
        call(other, "mail", "order-1", {})
        for client in (first, second):
            with pytest.raises(Conflict):
                call(client, "refund", "order-1", {"amount": 9, "to": {"iban": "y", "name": "ann"}})
        found = series(database, CALLS, "helix_fence_conflict_differences_total")
        assert found == {
            ("a", CALLS, "refund", "new"): 2,
            ("a", CALLS, "refund", "duplicate"): 1,
            ("a", CALLS, "refund", "conflict"): 2,
            ("a", "helix_fence_conflict_differences_total", "refund", ""): 4,
            ("b", CALLS, "refund", "new"): 1,
            ("b", CALLS, "mail", "new"): 1,
        }
        assert series(database, CALLS) == {k: v for k, v in found.items() if k[1] == CALLS}
        assert {key[0] for key in series(database, CALLS, role="app_b")} == {"b"}
        times = series(database, "helix_fence_seal_seconds")
        buckets = {key: value for key, value in times.items() if key[3] != "sum"}
        assert sum(buckets.values()) == 4
        assert times["a", "helix_fence_seal_seconds", "refund", "sum"] > 0
    finally:
        for client in clients:
            client.close()


def test_fence_that_is_deleted_before_the_duty_runs_is_counted_once(database):
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix, Lab(database) as lab:
        brief = Times(lease=1, quiet=0, answer=0.05, tombstone=0.05)
        call(helix, "brief", "k", {}, ttl=brief)
        wait_until(lambda: lab.run(sweep_fences(actor="test", limit=10)).forgotten == 1)
        assert lab.value("select count(*) from helix.fence_event") == 0
        assert series(database, CALLS) == {("a", CALLS, "brief", "new"): 1}
        call(helix, "brief", "k", {}, ttl=brief)  # the key is new again
        assert series(database, CALLS) == {("a", CALLS, "brief", "new"): 2}
        wait_until(lambda: lab.run(sweep_fences(actor="test", limit=10)).forgotten == 1)
        assert series(database, CALLS) == {("a", CALLS, "brief", "new"): 2}


def test_sweeps_and_duties_at_once_count_each_call_once(database):
    """A sweep waits for a run of the duty that may be counting what it deletes."""
    brief = Times(lease=1, quiet=0, answer=0.05, tombstone=0.05)
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:

        def use(number):
            call(helix, "brief", str(number), {}, ttl=brief)

        def sweep(_):
            with Lab(database) as lab:
                return lab.run(sweep_fences(actor="test", limit=10)).forgotten

        def follow(_):
            with Lab(database) as lab:
                lab.run(duties.run_duty(actor="test", limit=1000))

        with Lab(database, "operator") as operator:
            operator.run(metrics.set_duty(duty="metrics", every_seconds=0.05))

        with ThreadPoolExecutor(6) as pool:
            waits = [pool.submit(f, n) for n in range(40) for f in (use, sweep, follow)]
            for wait in waits:
                wait.result()
    assert series(database, CALLS) == {("a", CALLS, "brief", "new"): 40}


def test_names_of_fences_are_bounded(database):
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        for number in range(120):
            call(helix, f"order-{number:03}", "k", {})
    found = series(database, CALLS)
    assert len(found) == 101
    assert found["a", CALLS, "other", "new"] == 20
    assert sum(found.values()) == 120


@pytest.mark.module_database
@pytest.mark.parametrize(
    ("was", "got", "number"),
    [
        ({"a": 1}, {"a": 1.0}, 0),
        ({"a": 1}, {"a": 2}, 1),
        ({"a": 1}, {}, 1),
        ({"a": None}, {}, 1),
        ({"a": [1, 2, 3]}, {"a": [1, 5, 3, 4]}, 2),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 2, "d": 1}}}, 2),
        ([], {}, 1),
        ({str(n): n for n in range(5000)}, {str(n): -n for n in range(1, 5001)}, 100),
    ],
)
def test_difference_is_the_number_of_values_that_differ(database, was, got, number):
    query = "select helix.count_differences(%s::jsonb, %s::jsonb)"
    assert database.value(query, json.dumps(was), json.dumps(got)) == number


def test_conflict_of_documents_that_cannot_be_compared_counts_as_one(database):
    """A client of its own may send what jsonb cannot hold."""
    with Lab(database, "app_a") as lab:
        for request in ('{"text": "a\\u0000b"}', '{"text": "c\\u0000d", "more": 1}'):
            claim = fences.claim(
                tenant="a", name="nul", identity="k", request=request, actor="x",
                nonce=len(request), start=True, times=Times(),
            )  # fmt: skip
            decision = lab.run(claim).decision
        assert decision == "mismatch"
    name = "helix_fence_conflict_differences_total"
    assert series(database, name) == {("a", name, "nul", ""): 1}


def test_dead_letters_are_counted_while_they_are_open(database):
    with Lab(database) as lab:
        lab.queue()
        [first, *_] = write_letters(lab, "1-0", "2-0", "3-0")
        write_letters(lab, "1-0")  # a redelivery is no new letter
        key = ("a", "helix_dead_letters", lab.q, "refused")
        assert series(database, "helix_dead_letters") == {key: 3}
        lab.run(letters.discard_letters(letters=[first], actor="ann", reason="test"))
        assert series(database, "helix_dead_letters") == {key: 2}


def test_lag_of_a_feed_is_the_age_of_its_oldest_undelivered_event(database):
    idle = Queue("idle")
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix, Lab(database) as lab:
        helix.submit(idle, identity="s-1", payload={})
        feed = helix.feed("follow", queue="idle")
        name = "helix_feed_lag_seconds"
        assert series(database, name)["a", name, "follow", ""] > 0

        def consume():
            for page in feed.pages(100, until_idle=True):
                with feed.transaction():
                    list(page)

        consume()
        helix.submit("busy", identity="s-1", payload={}, create=True)
        assert series(database, name) == {}
        looked = lab.value(
            "select split_part(label, ' ', 2)::bigint from helix.metric where name = 'feed_looked'"
        )
        assert looked > lab.value("select position from helix.feed where name = 'follow'")
        helix.submit(idle, identity="s-2", payload={})
        assert series(database, name)["a", name, "follow", ""] > 0
        consume()
        assert series(database, name) == {}
        # A rewound feed is behind again, although everything was searched before.
        with database.connect("operator") as connection:
            connection.execute("select helix.set_feed_v1('a', 'follow', 'ann', 'test', null, true)")
        assert series(database, name)["a", name, "follow", ""] > 0
