"""The cost of claims and of the reaper while a long report holds an old snapshot.

PostgreSQL removes no row version that the snapshot may see, so everything that claims took since
stays in the indexes as dead entries. A claim must not read them again.
"""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from statistics import median

import psycopg
import pytest

from helixqueue.engine import calls
from helixqueue.records.claim_hints import Hints
from tests.support.lab import Lab, completion, engine_function, time_control, wait_until

CALLS, SIZE = 30, 100
DUE = "select count(*) from helix.request where due is not null"


@pytest.fixture
def lab(database):
    with time_control(database), Lab(database) as lab:
        lab.queue()
        yield lab


@contextmanager
def old_snapshot(database):
    with database.connect("helix_bootstrap") as connection:
        connection.autocommit = False
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from helix.lane")
        yield
        connection.rollback()


def pages_of_claim(database, queue, hints):
    """Median number of pages that a claim of ten reads, in transactions rolled back."""
    with psycopg.connect(database.dsn("pool"), cursor_factory=psycopg.ClientCursor) as connection:
        samples = []
        for _ in range(8):
            call = calls.claim(
                worker="probe", request=uuid.uuid4(), queues=[queue], count=10, hints=hints
            )
            query = ("explain (analyze, buffers, format json) " + call.sql).encode()
            [(plan,)] = connection.execute(query, call.args).fetchall()
            connection.rollback()
            plan = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
            assert plan["Actual Rows"] == 11  # the header and ten leases
            samples.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return median(samples[3:])


def ten_seconds_pass(database):
    """The reaper looks at calls that still have leases, and at no others, after ten seconds."""
    with engine_function(database) as execute:
        for statement in (
            "update helix.request set due = now() - interval '1 s' where due is not null",
            "update helix.duty set next_at = '-infinity'",
        ):
            assert execute(statement) is None


def test_hinted_claim_reads_few_pages_while_an_old_snapshot_is_held(lab):
    for start in range(CALLS + 2):
        lab.submit_many(SIZE, prefix=f"s{start}-")
    hints = Hints()
    hints.learn(lab.claim_result(1).hints, short=False)
    before = pages_of_claim(lab.database, lab.q, hints.now(0.0))
    with old_snapshot(lab.database):
        for _ in range(CALLS):
            claimed = lab.claim_result(SIZE, start=True, hints=hints.now(0.0))
            hints.learn(claimed.hints, short=False)
            lab.complete(*claimed.leases)
        ten_seconds_pass(lab.database)
        assert pages_of_claim(lab.database, lab.q, hints.now(0.0)) <= 3 * before


def test_reaper_does_not_visit_calls_whose_leases_were_all_settled(lab):
    lab.submit_many(10)
    first, second = lab.claim(6), lab.claim(4)
    assert lab.value(DUE) == 2
    lab.complete(*first[:2], *second[:3])
    lab.complete(*first[2:])
    assert lab.value(DUE) == 1
    [(number, unsettled)] = lab.rows(
        "select number, unsettled from helix.request where due is not null"
    )
    assert (number, unsettled) == (second[0].token.number, 1)


def test_reaper_visits_calls_whose_settlement_was_rolled_back(lab):
    lab.submit_many(3)
    leases = lab.claim(3)
    with lab.store.connection.transaction(force_rollback=True):
        lab.complete(*leases)
    lab.pass_time(*[lease.batch for lease in leases])
    assert {lease.batch for lease in lab.claim(3)} == {lease.batch for lease in leases}


@pytest.mark.parametrize("settled_together", [True, False])
def test_expired_lease_of_a_partly_settled_call_is_reaped(lab, settled_together):
    lab.submit_many(5)
    *done, lost = lab.claim(5)
    if settled_together:
        lab.complete(*done)
    else:
        for lease in done:
            lab.complete(lease)
    lab.pass_time(lost.batch)
    assert [lease.batch for lease in lab.claim(5)] == [lost.batch]


def test_repeated_and_refused_settlements_are_not_counted(lab):
    lab.submit_many(4)
    leases = lab.claim(4)
    for _ in range(3):
        lab.settle(*[completion(lease) for lease in leases[:2]])
    assert lab.value("select unsettled from helix.request") == 2
    assert lab.value(DUE) == 1


def test_reaper_finds_a_call_that_was_due_long_before_its_last_run(lab):
    """A claim may commit after its leases were due, behind the mark of the reaper."""
    lab.submit_many(1)
    [lease] = lab.claim(1)
    lab.pass_time(lease.batch)
    with engine_function(lab.database) as execute:
        long_ago = "update helix.request set due = clock_timestamp() - interval '1 hour'"
        mark = (
            "update helix.duty set next_at = '-infinity', mark = case when duty = 'reap'"
            " then extract(epoch from clock_timestamp()) * 1000000 else mark end"
        )
        assert execute(long_ago) is execute(mark) is None
    assert [found.batch for found in wait_until(lambda: lab.claim(1))] == [lease.batch]
