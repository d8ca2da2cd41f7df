"""Tenants on shared workers: none gets more by using many lanes or urgent priorities."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from helixqueue.engine import calls
from helixqueue.records.submission import SubmissionRow
from tests.support.duties import run_duty
from tests.support.lab import Lab

pytestmark = pytest.mark.module_database

EVERYTHING = {"gpus": 4, "disk_gb": 1e9}
_names = itertools.count(1)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


@pytest.fixture
def sessions(database, lab):
    """Four workers on connections of their own, of the same queue."""
    labs = [Lab(database, worker=f"w{n}", q=lab.q) for n in range(4)]
    yield labs
    for other in labs:
        other.__exit__(None, None, None)


def submit(lab, tenant, count, *, lanes=1, priorities=(5,), requires=None):
    """Work of one tenant, spread over lanes and priorities."""
    lab.queue(tenant=tenant)
    rows = [
        SubmissionRow(
            f"s{next(_names)}", "{}", priority=priorities[n % len(priorities)],
            requires=json.dumps(requires or {"disk_gb": n % lanes}),
        )
        for n in range(count)
    ]  # fmt: skip
    lab.submit_rows(*rows, tenant=tenant)


def claimed(workers, size, total):
    """The tenants of so many batches, in the order in which the workers took them."""
    order = []
    for worker in itertools.cycle(workers):
        if len(order) >= total:
            return order
        result = worker.claim_result(size, free=EVERYTHING)
        assert len(result.leases) == size
        order += [lease.tenant for lease in result.leases]
    raise AssertionError("cycle does not end")


def least_share(order, tenants):
    """The smallest part of its fair share that a tenant got of any 100 batches in a row."""
    windows = (Counter(order[n : n + 100]) for n in range(len(order) - 99))
    return min(min(window[name] for name in tenants) for window in windows) * len(tenants) / 100


GREEDY = {
    "100 lanes": {"lanes": 100},
    "urgent priority": {"priorities": (0,)},
    "all priorities": {"priorities": tuple(range(10))},
    "100 lanes of all priorities": {"lanes": 100, "priorities": tuple(range(10))},
}


@pytest.mark.parametrize("size", [1, 10, 100])
@pytest.mark.parametrize("greedy", GREEDY)
def test_tenant_with_many_lanes_or_urgent_work_starves_no_other(lab, greedy, size):
    submit(lab, "greedy", 300, **GREEDY[greedy])
    submit(lab, "modest", 300)
    assert least_share(claimed([lab], size, 300), ("greedy", "modest")) >= 0.8


@pytest.mark.parametrize("size", [1, 10, 100])
def test_twenty_tenants_get_their_share_from_workers_in_turn(lab, sessions, size):
    tenants = [f"t{n:02}" for n in range(20)]
    shapes = itertools.cycle([{}, {"priorities": (0, 5)}, {"lanes": 7}, {"priorities": (9,)}])
    for name, shape in zip(tenants, shapes, strict=False):
        submit(lab, name, 40, **shape)
    workers = [lab] if size == 100 else sessions
    assert least_share(claimed(workers, size, 500), tenants) >= 0.8


@pytest.mark.parametrize("number", [3, 7, 13, 19])
def test_shares_hold_for_numbers_of_tenants_that_divide_no_claim(lab, number):
    tenants = [f"n{n:02}" for n in range(number)]
    for n, name in enumerate(tenants):
        submit(lab, name, 400 // number + 10, priorities=(n % 10,))
    assert least_share(claimed([lab], 10, 400), tenants) >= 0.8


def test_more_tenants_than_claims_share_among_alternate_in_their_lane(lab):
    """A claim looks at no tenant by itself, and takes the lane in the order of its turns."""
    tenants = [f"m{n:02}" for n in range(40)]
    submit(lab, tenants[0], 100)
    for name in tenants[1:]:
        submit(lab, name, 2)
    [(listed,)] = lab.rows(LISTED, lab.q)
    assert len(listed) == 33  # one more than the bound
    assert Counter(claimed([lab], 10, 80)) == dict.fromkeys(tenants, 2)


def test_tenant_that_arrives_late_gets_its_share_and_no_more(lab):
    submit(lab, "early", 700)
    claimed([lab], 100, 300)
    submit(lab, "late", 300)
    assert least_share(claimed([lab], 10, 200), ("early", "late")) >= 0.8


@pytest.mark.parametrize("size", [1, 7])
def test_claimer_gets_full_claims_while_an_open_one_holds_whole_tenants(lab, database, size):
    """Its turn falls on tenants whose work is all locked: others give theirs."""
    for name, count in (("held", 6), ("half", 12), ("free", 12)):
        submit(lab, name, count, priorities=(0, 5))
    with database.connect("pool", autocommit=False) as open_claim:
        held = calls.claim(worker="w9", request=uuid.uuid4(), queues=[lab.q], count=18, start=True)
        # A cursor of this kind sends the text that `claim_result` sends.
        rows = open_claim.execute(held.sql, held.args).fetchall()
        assert len(rows) == 19  # with the header
        left = 12
        while left:
            leases = lab.claim(size)
            assert len(leases) == min(size, left)
            left -= len(leases)
        open_claim.commit()
    assert lab.claim(size) == []


def test_concurrent_claimers_all_get_work_and_tenants_their_shares(lab, sessions):
    tenants = ["big", "t1", "t2", "t3", "t4"]
    submit(lab, "big", 400, lanes=5, priorities=(0, 5))
    for name in tenants[1:]:
        submit(lab, name, 100, priorities=(5, 9))
    empty = Counter()
    barrier = threading.Barrier(len(sessions))

    def work(number):
        done = []
        barrier.wait(10)
        for _ in range(50):
            leases = sessions[number].claim(2, free=EVERYTHING)
            empty[number] += 2 - len(leases)
            done += leases
        return done

    with ThreadPoolExecutor(len(sessions)) as pool:
        done = [lease for leases in pool.map(work, range(len(sessions))) for lease in leases]
    # 400 of 800 are claimed, so no claim may come back short.
    assert not +empty
    assert len({lease.batch for lease in done}) == len(done) == 400
    order = [lease.tenant for lease in sorted(done, key=lambda lease: lease.token.number)]
    assert least_share(order, tenants) >= 0.8


LISTED = "select queues from helix.lane where queue = %s and cardinality(queues) > 0"


def submit_while_the_lane_is_locked(lab, database):
    """Two tenants are busy; the third submits while the lane is locked, and is not listed."""
    for name in ("busy1", "busy2"):
        submit(lab, name, 60)
    lab.queue(tenant="other")
    with database.connect("pool", autocommit=False) as open_transaction:
        row = SubmissionRow("s", "{}", requires=json.dumps({"disk_gb": 0}))
        first = calls.submit(tenant="other", queue=lab.q, profile="text-v1", rows=[row])
        open_transaction.execute(first.sql, first.args)
        lab.store.connection.execute("set statement_timeout = '5s'")
        submit(lab, "locked", 10)
        open_transaction.rollback()
    [(listed,)] = lab.rows(LISTED, lab.q)
    assert len(listed) == 2


def test_queue_whose_first_submission_met_a_locked_lane_gets_its_share_after_the_sweep(
    lab, database
):
    """The tenants that are listed could fill every claim for ever."""
    submit_while_the_lane_is_locked(lab, database)
    assert Counter(claimed([lab], 3, 12)) == {"busy1": 6, "busy2": 6}
    assert run_duty(lab, "sweep") is None  # every 15 s
    assert Counter(claimed([lab], 3, 30)) == {"busy1": 10, "busy2": 10, "locked": 10}


def test_queue_whose_first_submission_met_a_locked_lane_gets_its_share_after_its_second(
    lab, database
):
    submit_while_the_lane_is_locked(lab, database)
    submit(lab, "locked", 1)
    assert Counter(claimed([lab], 3, 30)) == {"busy1": 10, "busy2": 10, "locked": 10}


def test_priority_orders_the_work_of_a_tenant(lab):
    submit(lab, "first", 60, priorities=(9, 5, 0))
    submit(lab, "second", 60, priorities=(3,))
    leases = [lease for _ in range(4) for lease in lab.claim(30)]
    priorities = {row[0]: row[1] for row in lab.rows("select b.id, b.priority from helix.batch b")}
    mine = [priorities[lease.batch] for lease in leases if lease.tenant == "first"]
    assert mine == sorted(mine)


def test_scarce_devices_are_shared_by_a_worker_that_asks_for_more_than_it_has(lab):
    """It can hold four at a time, whatever it asks for."""
    for name in ("one", "two", "three"):
        submit(lab, name, 40, requires={"gpus": 1})
    order = [lease.tenant for _ in range(25) for lease in lab.claim(20, free=EVERYTHING)]
    assert len(order) == 100
    assert least_share(order, ("one", "two", "three")) >= 0.8


def test_batch_of_a_queue_that_its_lane_does_not_list_is_claimed(lab, database):
    """The list only makes shares: nothing is stuck for want of an entry."""
    submit(lab, "listed", 3)
    submit(lab, "listed2", 3)
    submit(lab, "missing", 3)
    with lab.superuser.transaction():
        lab.superuser.execute("alter table helix.lane disable trigger all")
        lab.superuser.execute(
            "update helix.lane set queues = queues[1:2] where queue = %s", (lab.q,)
        )
        lab.superuser.execute("alter table helix.lane enable trigger all")
    assert Counter(lease.tenant for lease in lab.claim(9))["missing"] == 3


def test_open_first_submission_of_a_tenant_does_not_block_that_of_another(lab, database):
    """Both list their queue in one lane; the second does not wait for the first to commit."""
    for tenant in ("slow", "quick"):
        lab.queue(tenant=tenant)
    with database.connect("pool", autocommit=False) as open_transaction:
        row = SubmissionRow("s", "{}")
        first = calls.submit(tenant="slow", queue=lab.q, profile="text-v1", rows=[row])
        open_transaction.execute(first.sql, first.args)
        lab.store.connection.execute("set statement_timeout = '5s'")
        lab.submit("q", tenant="quick")
        open_transaction.commit()
    assert {lease.tenant for lease in lab.claim(2)} == {"slow", "quick"}


@pytest.mark.parametrize(
    "options",
    [{"requires": '{"gpus": 3}'}, {"priority": 7}, {"requires": '{"labels": {"a": "b"}}'}],
    ids=["class", "lane", "label"],
)
def test_open_transaction_with_a_new_requirement_blocks_no_other_tenants_submission(
    lab, database, options
):
    for tenant in ("slow", "quick"):
        lab.queue(tenant=tenant)
    row = SubmissionRow("s", "{}", **options)

    def call(tenant):
        return calls.submit(tenant=tenant, queue=lab.q, profile="text-v1", rows=[row])

    with database.connect("pool", autocommit=False) as open_transaction:
        first = call("slow")
        open_transaction.execute(first.sql, first.args)
        lab.store.connection.execute("set statement_timeout = '5s'")
        assert [answer.decision for answer in lab.run(call("quick"))] == ["new"]
        open_transaction.commit()
    free = {"gpus": 8, "labels": {"a": "b"}}
    assert {lease.tenant for lease in lab.claim(2, free=free)} == {"slow", "quick"}


def test_open_transaction_that_wakes_an_idle_lane_blocks_no_other_tenants_submission(lab, database):
    for tenant in ("slow", "quick"):
        lab.queue(tenant=tenant)
        lab.submit("first", tenant=tenant, priority=7)
    lab.complete(*lab.claim(2))
    with lab.superuser.transaction():
        lab.superuser.execute("alter table helix.lane disable trigger all")
        lab.superuser.execute("update helix.lane set idle = true where queue = %s", (lab.q,))
        lab.superuser.execute("alter table helix.lane enable trigger all")
    row = SubmissionRow("s", "{}", priority=7)
    with database.connect("pool", autocommit=False) as open_transaction:
        first = calls.submit(tenant="slow", queue=lab.q, profile="text-v1", rows=[row])
        open_transaction.execute(first.sql, first.args)
        lab.store.connection.execute("set statement_timeout = '5s'")
        lab.submit("s", tenant="quick", priority=7)
        open_transaction.commit()
    assert {lease.tenant for lease in lab.claim(2)} == {"slow", "quick"}
