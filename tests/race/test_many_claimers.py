"""Fifty claimers: each batch goes to one of them, and no tenant waits for another's pile."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections import Counter
from typing import NamedTuple

from helixqueue.engine import calls
from helixqueue.records.claim_hints import Hints
from tests.support.engine_traffic import (
    assert_consistent,
    connect_operator,
    open_queue,
    open_store,
    run_in_processes,
    submit,
    wait_for_all,
)
from tests.support.lab import completion

CLAIMERS = 50
MOST_AT_ONCE = 6
BIG = "t00"
SMALL = [f"t{number:02}" for number in range(1, 20)]
BIG_BATCHES = 4_506
SMALL_BATCHES = 26
PLACES = "select tenant, row_number() over (order by at) from helix.event where reason = %s"


class Worked(NamedTuple):
    done: list[int]
    slowest_s: float


def claim_until_empty(dsn: str, number: int) -> Worked:
    """Claim a few, bring them back with the next claim, and so on; as a worker does it."""
    chance = random.Random(number)
    name = f"w{number}"
    done, slowest = [], 0.0
    hints, settlements = Hints(), []
    with open_store(dsn) as db:
        wait_for_all()  # again, when all have connected
        for number_of_claim in itertools.count(1):
            count = chance.randint(1, MOST_AT_ONCE)
            began = time.monotonic()
            claimed = db.run(
                calls.claim(
                    worker=name,
                    request=uuid.uuid4(),
                    queues=["q"],
                    count=count,
                    start=True,
                    hints=hints.now(began),
                    settle=settlements,
                )
            )
            slowest = max(slowest, time.monotonic() - began)
            if number_of_claim == 1:
                # On a busy machine the last process leaves a barrier seconds after the first one,
                # and the others could have claimed everything by then.
                wait_for_all()
            assert [answer.answer for answer in claimed.settled] == ["ok"] * len(settlements)
            done += [answer.batch for answer in claimed.settled]
            hints.learn(claimed.hints, short=len(claimed.leases) < count)
            settlements = [completion(lease) for lease in claimed.leases]
            if not settlements and not anything_claimable(dsn):
                return Worked(done, slowest)
    raise AssertionError("count() does not end")


def anything_claimable(dsn: str) -> bool:
    with connect_operator(dsn) as reader:
        return reader.execute("select from helix.work where pending limit 1").rowcount > 0


def last_of_the_small(database, reason):
    """The rank, among all batches, of the last one that is not the big tenant's."""
    return max(place for tenant, place in database.rows(PLACES, reason) if tenant != BIG)


def test_fifty_processes_complete_five_thousand_batches_once_each(database):
    with open_store(database.dsn("pool")) as db:
        open_queue(db, BIG, *SMALL)
        # The big tenant comes first, with nine tenths of everything.
        submit(db, (f"big-{n}" for n in range(BIG_BATCHES)), tenant=BIG)
        for tenant in SMALL:
            submit(db, (f"small-{n}" for n in range(SMALL_BATCHES)), tenant=tenant)
    dsn = database.dsn("pool")
    began = time.monotonic()
    worked = run_in_processes(claim_until_empty, [(dsn, number) for number in range(CLAIMERS)])
    seconds = time.monotonic() - began

    total = BIG_BATCHES + len(SMALL) * SMALL_BATCHES
    times_done = Counter(batch for item in worked for batch in item.done)
    assert len(times_done) == total == 5_000
    assert set(times_done.values()) == {1}
    assert database.rows(
        "select state::text, pending, cause, count(*) from helix.work group by 1, 2, 3"
    ) == [("COMPLETED", False, None, total)]
    assert database.rows("select ending, count(*) from helix.ended group by 1") == [(1, total)]
    assert database.value("select count(*) from helix.refusal") == 0
    # One life of four events each: nobody lost a lease, nobody was given one twice.
    assert database.value("select count(*) from helix.event") == 4 * total
    assert_consistent(database)

    # Fairness. The small tenants have 494 batches together and alternate with the big one, so they
    # have been claimed after about 20 x 26 claims. By order of arrival the first of them would be
    # number 4,507. Between the two lies what a claimer may hold locked while the machine lets
    # others run: nothing bounds that but the machine.
    in_hand = CLAIMERS * MOST_AT_ONCE
    assert last_of_the_small(database, "claimed") <= 20 * SMALL_BATCHES + 10 * in_hand
    assert last_of_the_small(database, "completed") <= 20 * SMALL_BATCHES + 10 * in_hand
    first = {tenant for tenant, place in database.rows(PLACES, "claimed") if place <= in_hand}
    assert first == {BIG, *SMALL}
    assert all(item.done for item in worked)
    # Nobody hangs: the slowest of all calls, with 50 processes on the cores of this machine.
    assert max(item.slowest_s for item in worked) < 20
    assert seconds < 60
