"""Reads: pages neither lose nor repeat, stories leave nothing out, tenants see their own."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from helixqueue.engine import calls, reads
from helixqueue.errors import InvalidIdentity, Refused
from helixqueue.states import State
from tests.support.lab import Lab, completion, new_database

NFC, NFD = "S\u00e4mple-1", "Sa\u0308mple-1"


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from new_database(server, template, pooler)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue()
        yield lab


def names(page):
    return [row.identity[0] for row in page.rows]


def walk(lab, limit=7, **filters):
    """Every page of a list, as names."""
    found, after = [], None
    while True:
        page = lab.run(reads.batches(queue=lab.q, limit=limit, after=after, **filters))
        assert len(page.rows) <= limit
        found += names(page)
        after = page.next
        if after is None:
            return found


def in_every_state(lab):
    """25 batches: 5 completed, 4 failed, 3 cancelled, 2 running, 1 assigned, 3 waiting, 7 ready."""
    lab.queue(max_attempts=1)
    ids = [submitted.receipt.batch_id for submitted in lab.submit_many(22)]
    lab.submit_many(3, prefix="later", run_at=lab.value("select now() + interval '1 h'"))
    lab.complete(*lab.claim(5))
    lab.fail(*lab.claim(4))
    lab.claim(2)
    lab.claim(1, start=False)
    lab.decide("cancel", *ids[-3:])


@pytest.mark.parametrize(
    ("state", "count"),
    [
        (None, 25),
        (State.COMPLETED, 5),
        (State.FAILED, 4),
        (State.CANCELLED, 3),
        (State.RUNNING, 2),
        (State.ASSIGNED, 1),
        (State.PENDING, 10),
    ],
)
@pytest.mark.parametrize("limit", [1, 4, 1000])
def test_pages_neither_lose_nor_repeat(lab, state, count, limit):
    in_every_state(lab)
    found = walk(lab, limit, state=state)
    assert len(found) == len(set(found)) == count
    assert found == walk(lab, 1000, state=state)
    if state is None:
        assert all(name.startswith("later") for name in found[:3])


def test_work_that_arrives_between_pages_does_not_shift_them(lab):
    for name in "abcdef":
        lab.submit(name)
    first = lab.run(reads.batches(queue=lab.q, limit=3))
    lab.submit("late")
    second = lab.run(reads.batches(queue=lab.q, limit=3, after=first.next))
    assert names(first) + names(second) == list("fedcba")
    assert second.next is None


def test_list_is_bounded_by_since_and_until(lab):
    [first] = lab.submit("first")
    created = lab.run(reads.batch_detail(first.receipt.batch_id)).created_at
    lab.submit("second")
    a_moment = timedelta(microseconds=1)
    assert walk(lab, until=created + a_moment) == ["first"]
    assert walk(lab, since=created + a_moment) == ["second"]
    assert walk(lab, since=created, until=created) == []
    assert walk(lab, since=created + a_moment, state=State.PENDING) == ["second"]


@pytest.mark.parametrize("spelling", [NFC, NFD, f"  {NFD}  "])
def test_an_identity_is_found_in_any_spelling(lab, spelling):
    [submitted] = lab.submit(NFD)
    lab.submit("other")
    lab.submit(NFC, revision="2")
    page = lab.run(reads.batches(queue=lab.q, identity=spelling))
    assert [(row.revision, row.raw) for row in page.rows] == [("2", (NFC,)), ("", (NFD,))]
    assert page.rows[1].batch_id == submitted.receipt.batch_id
    story = lab.run(reads.batch_detail(submitted.receipt.batch_id))
    assert (story.identity, story.raw) == ((NFC,), (NFD,))


def test_identity_of_parts_is_one_identity(lab):
    lab.submit(("plate-1", "A01"), "plate-1")
    [row] = lab.run(reads.batches(queue=lab.q, identity=("plate-1", "A01"))).rows
    assert row.identity == ("plate-1", "A01")


def test_identity_that_no_profile_takes_is_refused():
    with pytest.raises(InvalidIdentity):
        reads.batches(identity="a\u200bb")


def test_batches_of_a_worker(lab):
    lab.submit_many(3)
    [lease] = lab.claim(1, worker="ann")
    lab.settle(completion(lease), worker="ann")
    lab.claim(1, worker="ann")
    lab.complete(*lab.claim(1))
    assert walk(lab, worker="ann") == ["s00001"]
    assert walk(lab, worker="ann", state=State.COMPLETED) == ["s00000"]
    with pytest.raises(Refused, match="no worker"):
        reads.batches(worker="ann", state=State.PENDING)


@pytest.mark.parametrize("after", ["", "x", "2026-01-01~1", "2026-01-01T00:00:00+00:00~-1", "~~"])
def test_forged_cursor_is_refused(after):
    with pytest.raises(Refused, match="earlier page"):
        reads.batches(after=after)


@pytest.mark.parametrize("limit", [0, 1001])
def test_page_has_a_bound(limit):
    with pytest.raises(Refused, match="page of 1 to 1000"):
        reads.batches(limit=limit)


def test_batch_detail_shows_the_zombie_and_its_successor(lab):
    [submitted] = lab.submit(NFD, payload={"pod5": "a"})
    [frozen] = lab.claim(worker="bo")
    lab.pass_time(frozen.batch)
    lab.run(calls.reap(actor="reaper"))
    [second] = lab.claim(worker="ada")
    lab.settle(completion(second), worker="ada")
    lab.settle(completion(frozen), worker="bo")
    lab.settle(completion(frozen), worker="bo")
    lab.submit(NFC, payload={"pod5": "a"})
    lab.submit(NFC, payload={"pod5": "b"})
    story = lab.run(reads.batch_detail(submitted.receipt.batch_id))
    assert (story.state, story.place, story.fingerprint) == (
        State.COMPLETED,
        "outcome",
        submitted.receipt.fingerprint,
    )
    assert [event.reason for event in story.events] == [
        *("submitted", "claimed", "started"),
        *("lost", "claimed", "started", "completed"),
    ]
    assert [(lease.worker, lease.attempt, lease.end) for lease in story.attempts] == [
        ("bo", 1, "lost"),
        ("ada", 2, "completed"),
    ]
    [refusal] = story.refusals
    assert (refusal.worker, refusal.owner, refusal.times) == ("bo", "ada", 2)
    assert [decision.kind for decision in story.decisions] == ["duplicate", "conflict"]
    assert (story.payload, story.result) == (None, None)
    full = lab.run(reads.batch_detail(submitted.receipt.batch_id, payload=True))
    assert (full.payload, full.result) == ({"pod5": "a"}, {"reads": 7})


def test_lease_that_is_held_has_no_end(lab):
    [submitted] = lab.submit("x")
    [lease] = lab.claim()
    story = lab.run(reads.batch_detail(submitted.receipt.batch_id))
    assert (story.worker, story.deadline) == ("w1", lease.deadline)
    assert [held.ended_at for held in story.attempts] == [None]


def test_erased_and_retired_batches_still_have_a_detail(lab):
    [submitted] = lab.submit("x", payload={"name": "secret"})
    lab.complete(*lab.claim())
    lab.decide("erase", submitted.receipt.batch_id)
    story = lab.run(reads.batch_detail(submitted.receipt.batch_id, payload=True))
    assert (story.erased, story.payload, story.result) == (True, None, None)
    assert [decision.kind for decision in story.decisions] == ["erased"]
    lab.value(
        "select helix.retire_v1('a', %s, 'COMPLETED', clock_timestamp() + interval '1 h')", lab.q
    )
    story = lab.run(reads.batch_detail(submitted.receipt.batch_id))
    assert (story.place, story.state, story.queue) == ("retired", State.COMPLETED, None)
    assert story.retired_at is not None


def test_unknown_batch_has_no_detail(lab):
    assert lab.run(reads.batch_detail(uuid.uuid4())) is None


def test_outcomes_and_events_come_in_input_order(lab):
    first, second, third = (submitted.receipt.batch_id for submitted in lab.submit("1", "2", "3"))
    lab.complete(*lab.claim())
    lab.fail(*lab.claim(), permanent=True, detail="no reads")
    ids = [third, uuid.uuid4(), second, first]
    pending, unknown, failed, done = lab.run(reads.outcomes(ids=ids, results=True))
    assert unknown is None
    assert (pending.state, pending.finished_at) == (State.PENDING, None)
    assert (failed.state, failed.failure, failed.detail) == (State.FAILED, "Broken", "no reads")
    assert (done.state, done.result) == (State.COMPLETED, {"reads": 7})
    [without] = lab.run(reads.outcomes(ids=[first]))
    assert (done.has_result, without.has_result, without.result) == (True, False, None)
    events = lab.run(reads.events(ids=ids))
    assert list(events) == ids
    assert [len(events[item]) for item in ids] == [1, 0, 4, 4]
    assert [event.version for event in lab.run(reads.events(ids=[first], after=2))[first]] == [3, 4]


def test_queues_count_no_further_than_their_bound(lab):
    in_every_state(lab)
    [sight] = lab.run(reads.queues(queue=lab.q, bound=4)).rows
    found = ["ready", "waiting", "assigned", "running", "completed", "failed", "cancelled"]
    shown = [str(getattr(sight.counts, item)) for item in found]
    assert shown == ["4+", "3", "1", "2", "4+", "4", "3"]
    [sight] = lab.run(reads.queues(queue=lab.q)).rows
    assert [getattr(sight.counts, item).number for item in found] == [7, 3, 1, 2, 5, 4, 3]
    assert sight.max_attempts == 1


def test_truncated_count_of_leases_is_marked(lab):
    """A call whose leases were settled one by one is read, newest first, until the look is cut."""
    lab.submit_many(81)
    for lease in lab.claim(80):
        lab.complete(lease)
    lab.claim(1)
    [sight] = lab.run(reads.queues(queue=lab.q, bound=4)).rows
    assert (str(sight.counts.running), str(sight.counts.assigned)) == ("1+", "0+")
    [sight] = lab.run(reads.queues(queue=lab.q)).rows
    assert (str(sight.counts.running), str(sight.counts.assigned)) == ("1", "0")


@pytest.mark.parametrize("tenant", ["c", None])
def test_pages_of_queues_lead_to_all_of_them(lab, tenant):
    for number in range(7):
        lab.queue(f"{lab.q}-{number}", tenant="c")
    found, after = [], None
    while True:
        page = lab.run(reads.queues(tenant=tenant, after=after, limit=2))
        found += [(row.tenant, row.name) for row in page.rows]
        after = page.next
        if after is None:
            break
    truth = "select tenant, name from helix.queue where tenant = coalesce(%s, tenant) order by 1, 2"
    assert found == lab.rows(truth, tenant)
    assert {(f"{lab.q}-{number}") for number in range(7)} <= {name for _, name in found}


@pytest.mark.parametrize("after", ["", "b", "b/", "/q", "b/q/r", "b/\0", "2026~1", "B/q"])
def test_page_of_queues_continues_only_from_a_next(after):
    with pytest.raises(Refused, match="expected the `next` of an earlier page"):
        reads.queues(after=after)


def test_parked_and_limited_work_is_waiting(lab):
    lab.queue(key_limit=1)
    lab.submit_many(3, limit_key="k")
    lab.claim(3)
    lab.queue(paused=True)
    lab.submit("parked")
    [sight] = lab.run(reads.queues(queue=lab.q)).rows
    assert (str(sight.counts.ready), str(sight.counts.waiting), str(sight.counts.running)) == (
        "0",
        "3",
        "1",
    )


def test_workers_are_listed_with_their_leases(lab):
    lab.submit_many(2)
    name = f"worker-of-{lab.q}"
    lab.claim(2, worker=name, free={"gpus": 2})
    lab.rows_as_client("select helix.hello_v1(%s, '{\"gpus\": 2}')", name)
    [worker] = [item for item in every_worker(lab) if item.name == name]
    assert (worker.role, worker.free, worker.leases) == ("pool", {"gpus": 2}, 2)


def every_worker(lab):
    found, after = [], None
    while True:
        page = lab.run(reads.workers(after=after, limit=1_000))
        found += page.rows
        after = page.next
        if after is None:
            return found


def test_worker_of_a_service_is_listed_with_the_leases_of_its_tenant(lab, database):
    name = f"gpu-of-{lab.q}"
    with database.connect("service") as service, service.transaction():
        service.execute("select set_config('helix.tenant', 'a', true)")
        service.execute("select helix.hello_v1(%s)", [name])
    lab.submit("s")
    lab.claim(worker=name)
    with Lab(database, "operator", q=lab.q) as operator:
        found = [
            (item.tenant, item.role, item.leases)
            for item in every_worker(operator)
            if item.name == name
        ]
    assert found == [("a", "service", 1)]


@pytest.mark.parametrize("after", ["", "pool", "2026~1"])
def test_page_of_workers_continues_only_from_a_next(after):
    with pytest.raises(Refused, match="expected the `next` of an earlier page"):
        reads.workers(after=after)


def test_another_tenant_reads_nothing(lab, database):
    [submitted] = lab.submit("mine")
    lab.claim()
    with Lab(database, "app_b", q=lab.q) as stranger:
        run = stranger.run
        assert run(reads.batches()).rows == ()
        for state in State:
            assert run(reads.batches(state=state)).rows == ()
        assert run(reads.batches(identity="mine")).rows == ()
        assert run(reads.batches(worker="w1")).rows == ()
        assert run(reads.batch_detail(submitted.receipt.batch_id)) is None
        assert run(reads.outcomes(ids=[submitted.receipt.batch_id])) == [None]
        assert run(reads.events(ids=[submitted.receipt.batch_id])) == {
            submitted.receipt.batch_id: []
        }
        assert run(reads.queues()).rows == ()
        assert run(reads.tenants()) == ["b"]
    with Lab(database, "app_a", q=lab.q) as own:
        assert names(own.run(reads.batches(queue=lab.q))) == ["mine"]
        assert len(own.run(reads.queues(queue=lab.q)).rows) == 1


@pytest.fixture(scope="module")
def crowd(database):
    """20,000 batches, a third of them done."""
    with Lab(database) as lab:
        lab.queue()
        for n in range(4):
            lab.submit_many(5_000, prefix=f"{n}-")
        for _ in range(7):
            lab.complete(*lab.claim(1000))
        with database.connect("helix_bootstrap") as connection:
            connection.execute("vacuum analyze")
        yield lab


def asked_of(lab):
    page = lab.run(reads.batches(queue=lab.q))
    ids = [row.batch_id for row in page.rows[:10]]
    yield from (reads.batches(), reads.batches(queue=lab.q), reads.batches(after=page.next))
    yield from (reads.batches(state=state) for state in State)
    yield from (reads.batches(identity="1-00007"), reads.batches(worker="w1"))
    yield from (reads.batches(state=State.FAILED), reads.batches(queue=lab.q, failure="Broken"))
    yield from (reads.outcomes(ids=ids, results=True), reads.events(ids=ids))
    yield reads.batch_detail(ids[0])


# The large tables that this transaction read from end to end, by the server's own count.
WALKS = """
  select relname, seq_scan from pg_stat_xact_user_tables
  where schemaname = 'helix' and relname in ('batch', 'work', 'entry', 'result', 'ended')
    and seq_scan > 0
"""


def test_no_read_scans_a_table_sequentially(database, crowd):
    """Row-level security keeps functions away from indexes unless a query is written for it."""
    with Lab(database, "app_a", q=crowd.q) as lab:
        for call in asked_of(lab):
            with lab.store.connection.transaction():
                lab.run(call)
                assert lab.rows_as_client(WALKS) == [], call.sql
