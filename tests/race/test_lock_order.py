"""Calls that meet crosswise: whatever the order of their arguments, one goes on and then the other.

A deadlock would surface as Retryable, in one of the callers and so in the test.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from helixqueue.engine import calls
from tests.support.engine_traffic import (
    assert_consistent,
    claim,
    drain,
    open_queue,
    open_store,
    run_in_processes,
    submit,
    wait_until_blocked,
)
from tests.support.lab import completion, failure, lease_refs

SECONDS = 30.0 if os.environ.get("HELIX_PROOF") else 3.0
CANCELLERS, WORKERS = 5, 3


def test_settlements_that_free_limit_keys_crosswise(database):
    """Completions free their keys in one statement and failures in another."""
    dsn = database.dsn("pool")
    with open_store(dsn) as db, open_store(dsn) as other, ThreadPoolExecutor(2) as pool:
        open_queue(db, key_limit=2)
        leases = {}
        for worker in ("A", "B"):
            for key in ("k1", "k2"):
                submit(db, [f"{worker}-{key}"], limit_key=key)
                [leases[worker, key]] = claim(db, 1, worker)
        crosswise = [
            (db, "A", [completion(leases["A", "k2"]), failure(leases["A", "k1"])]),
            (other, "B", [completion(leases["B", "k1"]), failure(leases["B", "k2"])]),
        ]
        # Both stop where they have freed the first key and look for who may have its place.
        with database.connect("helix_bootstrap", autocommit=False) as blocker:
            blocker.execute("lock table helix.queue in access exclusive mode")
            settled = [
                pool.submit(first.run, calls.settle(worker=worker, settlements=settlements))
                for first, worker, settlements in crosswise
            ]
            wait_until_blocked(database, 2, "settle_v1")
            blocker.rollback()
        answers = [answer.answer for item in settled for answer in item.result(30)]
        assert answers == ["ok"] * 4
        drain(db)
    assert_consistent(database)


def test_settlements_that_waited_for_a_renewal_find_where_it_put_their_leases(database):
    """A renewal writes each row anew, and a settlement goes by where the rows stand."""
    dsn = database.dsn("pool")
    with open_store(dsn) as db, open_store(dsn) as other, ThreadPoolExecutor(1) as pool:
        open_queue(db)
        submit(db, ["one", "two"])
        leases = claim(db, 2, "A")
        with other.connection.transaction():
            other.run(calls.renew(worker="A", leases=lease_refs(leases)))
            settled = pool.submit(
                db.run,
                calls.settle(worker="A", settlements=[completion(lease) for lease in leases]),
            )
            wait_until_blocked(database, 1, "settle_v1")
        assert [answer.answer for answer in settled.result(30)] == ["ok", "ok"]
    assert_consistent(database)


def cancel_or_work(role, dsn, number, ids):
    """Cancel sets that overlap with everybody's, or claim and give back what they cancel."""
    chance = random.Random(number)
    mine = list(ids)
    done = Counter()
    finish = time.monotonic() + SECONDS
    with open_store(dsn) as db:
        while time.monotonic() < finish:
            if role == "work":
                leases = claim(db, chance.choice([5, 50]), f"w{number}")
                chance.shuffle(leases)
                db.run(calls.release(worker=f"w{number}", leases=lease_refs(leases)))
            else:
                chance.shuffle(mine)
                some = mine[: chance.choice([3, 40, 400])]
                # Undone nearly always, so that there is something to cancel until the end.
                db.connection.execute("begin")
                verdicts = db.run(calls.cancel(ids=some, reason="wrong tube"))
                undone = chance.random() < 0.98
                db.connection.execute("rollback" if undone else "commit")
                done.update(verdict.answer for verdict in verdicts)
            done[role] += 1
    return done


def test_cancels_of_overlapping_sets_while_the_batches_move(database):
    dsn = database.dsn("pool")
    with open_store(dsn) as db:
        open_queue(db, max_attempts=1000)
        ids = [
            submitted.receipt.batch_id for submitted in submit(db, (f"s{n}" for n in range(1_500)))
        ]
    roles = ["cancel"] * CANCELLERS + ["work"] * WORKERS
    answer = run_in_processes(
        cancel_or_work, [(role, dsn, number, ids) for number, role in enumerate(roles)]
    )
    done = sum(answer, Counter())
    # Busy is what was in somebody's hands at each of the moments when the cancel looked.
    assert done["busy"] < done["ok"] / 5
    assert done["cancel"] > 10 * SECONDS / 5
    assert done["work"] > 10
    assert done["illegal"] == done["refused"] == 0
    with open_store(dsn) as db:
        drain(db)
    assert_consistent(database)
