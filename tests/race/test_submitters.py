"""Many submitters of one identity, in any spelling, order and company: one batch (G1)."""

from __future__ import annotations

import time
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from helixqueue.engine import calls
from helixqueue.errors import Retryable
from helixqueue.identity import canonical_text, canonicalize
from helixqueue.records.submission import SubmissionRow
from helixqueue.states import State
from tests.support.engine_traffic import (
    PAYLOAD,
    assert_consistent,
    claim,
    open_queue,
    open_store,
    run_in_processes,
    run_in_threads,
    submit,
    wait_until_blocked,
)
from tests.support.lab import completion, end_minute

SUBMITTERS = 200
TUBE = "Sämple-Ω-001"
SPELLINGS = [unicodedata.normalize("NFC", TUBE), unicodedata.normalize("NFD", TUBE), f" {TUBE} "]
PAYLOADS = [{"pod5": "a.pod5", "lanes": [1, 2]}, {"lanes": [1, 2], "pod5": "a.pod5"}]


def test_two_hundred_submitters_of_one_identity_get_one_receipt(database):
    dsn = database.dsn("app_a")
    with open_store(dsn) as db:
        open_queue(db)

    def submit_spelling(number):
        identity = canonicalize(SPELLINGS[number % len(SPELLINGS)])
        payload = canonical_text(PAYLOADS[number % len(PAYLOADS)])
        row = SubmissionRow(identity.text, payload, raw=SPELLINGS[number % len(SPELLINGS)])
        call = calls.submit(tenant="a", queue="q", profile="text-v1", rows=[row])
        with open_store(dsn) as db:
            return db.run(call)[0]

    assert len(set(SPELLINGS)) == 3
    answers = run_in_threads(submit_spelling, [(number,) for number in range(SUBMITTERS)])
    assert Counter(answer.decision for answer in answers) == {"new": 1, "duplicate": SUBMITTERS - 1}
    assert len({answer.receipt for answer in answers}) == 1
    assert database.value("select count(*) from helix.batch") == 1
    end_minute(database)
    assert database.rows(
        "select kind, sum(times) from helix.decision where batch is not null group by 1"
    ) == [("duplicate", SUBMITTERS - 1)]
    assert_consistent(database)


def test_overlapping_submissions_in_any_order_do_not_deadlock(database):
    """Within one call the engine sorts, so callers need not."""
    dsn = database.dsn("pool")
    with open_store(dsn) as db:
        open_queue(db)
    names = [f"s{number}" for number in range(60)]

    def submit_in_turn(number):
        mine = names[number:] + names[:number]
        if number % 2:
            mine.reverse()
        with open_store(dsn) as db:
            return submit(db, mine)

    answers = run_in_threads(submit_in_turn, [(number,) for number in range(30)])
    decisions = Counter(item.decision for each in answers for item in each)
    assert decisions == {"new": len(names), "duplicate": 29 * len(names)}
    assert len({item.receipt for each in answers for item in each}) == len(names)
    assert_consistent(database)


def test_opposite_orders_in_two_transactions_end_as_retryable_for_one(database):
    """The engine cannot sort across a caller's calls: PostgreSQL ends it, and says so."""
    dsn = database.dsn("pool")
    began = time.monotonic()
    with (
        open_store(dsn) as db,
        open_store(dsn) as left,
        open_store(dsn) as right,
        ThreadPoolExecutor(1) as pool,
    ):
        open_queue(db)
        for item in (left, right):
            item.connection.autocommit = False
        submit(left, ["one"])
        submit(right, ["two"])
        waits = pool.submit(outcome, left, "two")
        wait_until_blocked(database, 1, "submit_v1")
        outcomes = [outcome(right, "one"), waits.result(30)]
        assert sorted(outcomes) == ["committed", "retryable"]
        assert time.monotonic() - began < 20
        # Run again from its start, the other one finds everything done.
        assert [submitted.decision for submitted in submit(db, ["one", "two"])] == [
            "duplicate",
            "duplicate",
        ]
    assert_consistent(database)


def outcome(db, identity):
    try:
        submit(db, [identity])
    except Retryable:
        db.connection.rollback()
        return "retryable"
    db.connection.commit()
    return "committed"


# Retention takes finished batches away while their identities are submitted again and again.

IDENTITIES = [f"s{number}" for number in range(25)]
ROUNDS_S = 4.0


def submit_work_retire(role: str, dsn: str) -> list[tuple[str, str, str]]:
    """Each role by itself, for some seconds; submitters return decision, key and batch id."""
    found = []
    finish = time.monotonic() + ROUNDS_S
    with open_store(dsn) as db:
        while time.monotonic() < finish:
            if role == "submit":
                found += [
                    (
                        submitted.decision,
                        submitted.receipt.key,
                        str(submitted.receipt.batch_id),
                        submitted.state,
                    )
                    for submitted in submit(db, IDENTITIES)
                ]
            elif role == "work":
                leases = claim(db, 5, "w")
                settlements = [completion(lease) for lease in leases]
                if settlements:
                    db.run(calls.settle(worker="w", settlements=settlements))
            else:
                later = datetime.now(UTC) + timedelta(hours=1)
                found.append(
                    db.run(
                        calls.retire(
                            tenant="a", queue="q", state=State.COMPLETED, before=later, limit=3
                        )
                    )
                )
    return found


def test_retention_does_not_make_a_second_batch_for_a_key(database):
    dsn = database.dsn("pool")
    with open_store(dsn) as db:
        open_queue(db)
    roles = ["submit", "submit", "work", "retire", "retire"]
    *submitted, _, first, second = run_in_processes(
        submit_work_retire, [(role, dsn) for role in roles]
    )
    answers = [item for each in submitted for item in each]
    assert Counter(answer[0] for answer in answers)["new"] == len(IDENTITIES)
    assert {answer[0] for answer in answers} == {"new", "duplicate"}
    assert len({answer[1:3] for answer in answers}) == len(IDENTITIES)
    # Whoever asked was told where the batch stands, also after it was taken away.
    assert None not in {answer[3] for answer in answers}
    assert answers[-1][3] is State.COMPLETED
    assert sum(first) + sum(second) == len(IDENTITIES)
    assert database.rows(
        "select count(*), count(retired_at), count(payload), count(identity) from helix.batch"
    ) == [(len(IDENTITIES), len(IDENTITIES), 0, 0)]
    assert database.value("select count(*) from helix.work") == 0
    with open_store(dsn) as db:
        again = db.run(
            calls.submit(
                tenant="a",
                queue="q",
                profile="text-v1",
                rows=[SubmissionRow(IDENTITIES[0], PAYLOAD.replace("1", "2"))],
            )
        )
    assert again[0].decision == "conflict"
    assert_consistent(database)
