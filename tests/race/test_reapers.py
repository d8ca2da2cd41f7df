"""Two reapers and workers that settle around their deadlines: nothing lost, doubled or reopened."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import NamedTuple

from helixqueue.engine import calls
from tests.support.engine_traffic import (
    UNFINISHED,
    assert_consistent,
    claim,
    connect_operator,
    open_queue,
    open_store,
    run_in_processes,
    submit,
)
from tests.support.lab import completion

BATCHES = 120
LEASE_S = 0.2
WORKERS = 3
LIMIT_S = 40.0


class Tally(NamedTuple):
    """What the engine told one worker, or how much a reaper took back."""

    accepted: list[tuple[int, int]]  # batch, token number
    refused: list[tuple[int, int]]
    late: int
    reaped: int


def settle_around_the_deadline(dsn: str, number: int) -> Tally:
    chance = random.Random(number)
    name = f"w{number}"
    accepted, refused, late = [], [], 0
    limit = time.monotonic() + LIMIT_S
    with open_store(dsn) as db, connect_operator(dsn) as reader:
        while reader.execute(UNFINISHED).fetchone() != (0,):
            assert time.monotonic() < limit, "batches are stuck"
            leases = claim(db, 5, name)
            if not leases:
                continue
            # The work: it takes about as long as the lease, a little less or a little more.
            time.sleep(LEASE_S * chance.uniform(0.85, 1.1))
            answers = db.run(
                calls.settle(worker=name, settlements=[completion(lease) for lease in leases])
            )
            numbers = {lease.batch: lease.token.number for lease in leases}
            for answer in answers:
                assert answer.answer in ("ok", "refused")
                kept = accepted if answer.answer == "ok" else refused
                kept.append((answer.batch, numbers[answer.batch]))
                late += answer.late
    return Tally(accepted, refused, late, 0)


def reap_all_the_time(dsn: str, number: int) -> Tally:
    reaped = 0
    limit = time.monotonic() + LIMIT_S
    with open_store(dsn) as db, connect_operator(dsn) as reader:
        while reader.execute(UNFINISHED).fetchone() != (0,):
            assert time.monotonic() < limit, "batches are stuck"
            reaped += db.run(calls.reap(actor=f"r{number}"))
    return Tally([], [], 0, reaped)


def either(role: str, dsn: str, number: int) -> Tally:
    return {"work": settle_around_the_deadline, "reap": reap_all_the_time}[role](dsn, number)


def test_concurrent_reapers_and_workers_keep_each_lease_consistent(database):
    dsn = database.dsn("pool")
    with open_store(dsn) as db:
        open_queue(db, lease_seconds=LEASE_S, max_attempts=1000)
        submit(db, (f"s{number}" for number in range(BATCHES)))
    parts = [("reap", dsn, 1), ("reap", dsn, 2), *(("work", dsn, n) for n in range(WORKERS))]
    answer = run_in_processes(either, parts)

    accepted = [item for part in answer for item in part.accepted]
    assert Counter(batch for batch, _ in accepted) == dict.fromkeys(
        (batch for (batch,) in database.rows("select id from helix.batch")), 1
    )
    # What the workers were told is what stands there: under the same token, no other.
    assert sorted(accepted) == database.rows(
        "select batch, number from helix.work where state = 'COMPLETED' order by 1"
    )
    # Every lease that was taken back and then used met a refusal, and is on record.
    refused = sorted(item for part in answer for item in part.refused)
    assert refused == database.rows("select batch, number from helix.refusal order by 1, 2")
    lost = database.rows(
        "select h.batch, h.number from helix.history_of(array(select id from helix.batch)) h"
        " where h.reason = 'lost'"
    )
    assert set(refused) <= set(lost)
    assert not set(accepted) & set(lost)
    # Claims reap too; with the reapers' own catch that makes every lost lease.
    assert sum(part.reaped for part in answer) <= len(lost)
    assert sum(part.late for part in answer) == database.value(
        "select count(*) from helix.event where late"
    )
    # A run in which nobody met anybody proves nothing.
    assert len(refused) > 5
    assert len(lost) > 5
    assert sum(part.reaped for part in answer) > 0
    assert_consistent(database)
