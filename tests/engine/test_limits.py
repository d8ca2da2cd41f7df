"""Limit keys: no more live leases of one key than its queue allows, however many claim at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from helixqueue.engine import calls
from tests.support.duties import run_duty
from tests.support.lab import Lab, wait_until

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


def names(leases):
    return sorted(lease.identity for lease in leases)


def held(lab, key="k"):
    return lab.value(
        "select k.held from helix.key_limit k join helix.queue q on q.id = k.queue"
        " where q.tenant = 'a' and q.name = %s and k.key = %s",
        lab.q,
        key,
    )


def test_one_key_has_one_lease_by_default(lab):
    lab.submit("s1", "s2", "s3", limit_key="k")
    lab.submit("free")
    first = lab.claim(10)
    assert len(first) == 2
    assert "free" in names(first)
    assert lab.claim(10) == []
    assert held(lab) == 1


def test_limit_holds_within_one_call_across_lanes(lab):
    """The call leases at its end, so what it has taken already must count."""
    lab.submit("urgent", limit_key="k", priority=0)
    lab.submit("usual", limit_key="k", priority=5)
    lab.submit("slow", limit_key="k", priority=9)
    assert names(lab.claim(10)) == ["urgent"]
    assert held(lab) == 1


@pytest.mark.parametrize("limit", [2, 3])
def test_queue_sets_the_number_of_leases_per_key(lab, limit):
    lab.queue(key_limit=limit)
    lab.submit_many(6, limit_key="k")
    assert len(lab.claim(10)) == limit


def test_limit_keys_are_independent(lab):
    for key in ("k1", "k2", "k3"):
        lab.submit(f"{key}-1", f"{key}-2", limit_key=key)
    assert names(lab.claim(10)) == ["k1-1", "k2-1", "k3-1"]


def test_limit_key_belongs_to_one_queue_and_tenant(lab):
    other = f"{lab.q}-other"
    lab.queue(other)
    lab.queue(tenant="b")
    for options in ({}, {"queue": other}, {"tenant": "b"}):
        lab.submit("s1", "s2", limit_key="k", **options)
    assert len(lab.claim(10, queues=[lab.q, other])) == 3


ENDS = {
    "completes": lambda lab, lease: lab.complete(lease),
    "fails": lambda lab, lease: lab.fail(lease, permanent=True),
    "is tried again later": lambda lab, lease: lab.fail(lease, after_seconds=3600),
    "is cancelled": lambda lab, lease: lab.decide("cancel", lease.batch_id),
}


@pytest.mark.parametrize("end", ENDS)
def test_next_batch_of_a_limit_key_is_claimable_after(lab, end):
    lab.submit("s1", "s2", "s3", limit_key="k")
    [lease] = lab.claim(10)
    assert lab.claim(10) == []
    ENDS[end](lab, lease)
    assert held(lab) == 0
    [after] = lab.claim(10)
    assert after.batch != lease.batch
    assert lab.claim(10) == []


@pytest.mark.parametrize("end", ["released", "lost"])
def test_limit_key_has_capacity_again_when_its_lease_is(lab, end):
    lab.submit("s1", "s2", "s3", limit_key="k")
    [lease] = lab.claim(10)
    if end == "released":
        lab.release(lease)
    else:
        lab.pass_time(lease.batch)
        assert lab.run(calls.reap(actor="r")) == 1
    assert held(lab) == 0
    assert len(lab.claim(10)) == 1
    assert lab.claim(10) == []
    assert held(lab) == 1


def test_blocked_work_keeps_its_order(lab):
    lab.submit("s1", "s2", "s3", "s4", limit_key="k")
    order = []
    while leases := lab.claim(10):
        order += names(leases)
        lab.complete(*leases)
    assert sorted(order) == ["s1", "s2", "s3", "s4"]
    assert order[0] == "s1"


def test_changed_limit_applies_to_later_claims(lab):
    lab.submit_many(8, limit_key="k")
    first = lab.claim(10)
    assert len(first) == 1
    lab.queue(key_limit=4)
    lab.run(calls.promote())
    more = lab.claim(10)
    assert len(more) == 3
    lab.queue(key_limit=2)
    lab.complete(*first, *more[:1])
    lab.run(calls.promote())
    assert lab.claim(10) == []
    lab.complete(more[1])
    assert len(lab.claim(10)) == 1
    assert held(lab) == 2


def test_blocked_batch_can_be_cancelled(lab):
    answers = lab.submit("s1", "s2", limit_key="k")
    [lease] = lab.claim(10)
    blocked = next(a.receipt for a in answers if a.receipt.batch_id != lease.batch_id)
    assert lab.decide("cancel", blocked.batch_id)[0].answer == "ok"
    lab.complete(lease)
    assert lab.claim(10) == []
    assert held(lab) == 0


def test_holder_and_blocked_are_cancelled_in_one_call(lab):
    ids = [answer.receipt.batch_id for answer in lab.submit("s1", "s2", "s3", limit_key="k")]
    lab.claim(10)
    assert [verdict.answer for verdict in lab.decide("cancel", *ids)] == ["ok"] * 3
    assert held(lab) == 0


def test_backlog_of_one_key_does_not_delay_a_claim(lab):
    lab.submit_many(3000, limit_key="k")
    lab.submit("free")
    found = []

    def enough():
        found.extend(lab.claim(2))
        return len(found) == 2

    wait_until(enough, seconds=5)
    assert "free" in names(found)
    # One place becomes free: one batch comes back, not three thousand.
    waiting = (
        "select count(*) from helix.work w join helix.queue q on q.id = w.queue"
        " where q.name = %s and w.cause is not null"
    )
    wait_until(lambda: lab.claim(1) == [] and lab.value(waiting, lab.q) == 2999, seconds=5)
    lab.complete(next(lease for lease in found if lease.identity != "free"))
    lab.run(calls.promote())
    assert lab.value(waiting, lab.q) >= 2997


def test_batches_that_wait_for_a_deleted_limit_key_become_claimable(lab):
    """Without the row of their key no lease would free them: the duties put it back."""
    lab.submit(*"123456", limit_key="k")
    [lease] = lab.claim(1)
    assert lab.claim(10) == []
    lab.superuser.execute("alter table helix.key_limit disable trigger a_guard")
    lab.superuser.execute("delete from helix.key_limit where key = 'k'")
    lab.superuser.execute("alter table helix.key_limit enable always trigger a_guard")
    lab.complete(lease)
    for duty in ("sweep", "promote"):
        assert run_duty(lab, duty) is None
    for _ in range(5):
        [lease] = lab.claim(10)
        lab.complete(lease)


@pytest.mark.parametrize("limit", [1, 2])
def test_many_claimers_never_exceed_the_limit(database, lab, limit):
    """Eight threads claim and end leases; another watches the table all the while."""
    lab.queue(key_limit=limit)
    keys = ["k1", "k2", "k3"]
    for key in keys:
        lab.submit(*[f"{key}-{n:02}" for n in range(14)], limit_key=key)
    done = Counter()
    stop = threading.Event()
    deadline = time.monotonic() + 30

    def work(number):
        with Lab(database, worker=f"w{number}", q=lab.q) as mine:
            while sum(done.values()) < 42 and time.monotonic() < deadline:
                for n, lease in enumerate(mine.claim(2)):
                    if (number + n) % 5 == 4 and lease.attempt < 3:
                        mine.fail(lease)
                    else:
                        assert mine.complete(lease)[0].answer == "ok"
                        done[lease.identity] += 1

    def watch():
        most = 0
        with Lab(database, "operator", q=lab.q) as eyes:
            while not stop.is_set():
                counts = eyes.rows_as_client(
                    "select count(*) from helix.work w join helix.queue q on q.id = w.queue"
                    " where q.name = %s and w.state in ('ASSIGNED', 'RUNNING')"
                    " group by w.limit_key",
                    lab.q,
                )
                most = max([most, *[n for (n,) in counts]])
        return most

    with ThreadPoolExecutor(9) as pool:
        watched = pool.submit(watch)
        for future in [pool.submit(work, n) for n in range(8)]:
            future.result()
        stop.set()
        assert watched.result() in range(1, limit + 1)
    assert len(done) == 42
    assert set(done.values()) == {1}
    assert {held(lab, key) for key in keys} == {0}
    # What the ledger tells: at no event were more leases of a key open than the limit.
    live = Counter()
    for key, before, after in lab.rows(
        "select b.limit_key, e.from_state::text, e.to_state::text from helix.event e "
        "join helix.batch b on b.id = e.batch join helix.queue q on q.id = b.queue "
        "where q.name = %s order by e.at, e.version",
        lab.q,
    ):
        live[key] += (after == "ASSIGNED") - (before == "RUNNING")
        assert live[key] <= limit
    assert set(live.values()) == {0}
