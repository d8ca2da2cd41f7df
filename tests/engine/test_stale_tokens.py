"""A worker that froze and woke up: its batch is another's, and nothing it says counts (G2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helixqueue.engine import calls
from helixqueue.states import State
from tests.support.engine_traffic import (
    assert_consistent,
    claim,
    open_queue,
    open_store,
    run_in_threads,
    submit,
    wait_until_expired,
)
from tests.support.lab import completion, failure, lease_refs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from helixqueue.postgres.database import Database as Store
    from helixqueue.records.lease import LeaseRow, WriteResult

SHORT_S = 0.05

# Everything a worker can do with a lease.
WRITES: dict[str, Callable[[str, LeaseRow], calls.Call[list[WriteResult]]]] = {
    "start": lambda worker, lease: calls.start(worker=worker, leases=lease_refs([lease])),
    "renew": lambda worker, lease: calls.renew(worker=worker, leases=lease_refs([lease])),
    "complete": lambda worker, lease: calls.settle(worker=worker, settlements=[completion(lease)]),
    "fail": lambda worker, lease: calls.settle(worker=worker, settlements=[failure(lease)]),
    "release": lambda worker, lease: calls.release(worker=worker, leases=lease_refs([lease])),
}
OPERATION = {name: name for name in WRITES} | {"complete": "settle", "fail": "settle"}
EVERY_COLUMN = "select to_jsonb(w) from helix.work w where batch = %s"
EVERY_ROW = (
    "select to_jsonb(w) from helix.work w union all select to_jsonb(r) from helix.result r"
    " union all select to_jsonb(e) from helix.ended e"
)


@pytest.fixture
def db(database):
    with open_store(database.dsn("pool")) as db:
        open_queue(db)
        yield db


def frozen(database, db: Store, *, started: bool = True, worker: str = "A") -> LeaseRow:
    """A lease whose worker has not been heard of until its deadline."""
    submit(db, ["one"])
    [lease] = claim(db, 1, worker, start=started, seconds=SHORT_S)
    wait_until_expired(database, lease)
    return lease


def replaced(db: Store, stale: LeaseRow, worker: str = "B") -> LeaseRow:
    """The lease of whoever the batch was given to after that."""
    wait_until(
        lambda: db.run(calls.reap(actor="reaper")) == 1, "the frozen worker's lease to be reaped"
    )
    [lease] = claim(db, 1, worker)
    assert lease.batch == stale.batch
    assert lease.token != stale.token
    return lease


def both(write: str, *leases: LeaseRow) -> calls.Call[list[WriteResult]]:
    """One call that names these leases."""
    if write in ("complete", "fail"):
        settled = [completion(lease) if write == "complete" else failure(lease) for lease in leases]
        return calls.settle(worker="A", settlements=settled)
    verb = {"start": calls.start, "renew": calls.renew, "release": calls.release}[write]
    return verb(worker="A", leases=lease_refs(leases))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["B", "A"], ids=["other-name", "same-name"])
def test_stale_token_cannot_write_after_reassignment(database, db, write, name):
    stale = frozen(database, db, started=write != "start")
    lease = replaced(db, stale, worker=name)
    before = database.rows(EVERY_COLUMN, lease.batch)

    [answer] = db.run(WRITES[write]("A", stale))

    assert (answer.answer, answer.owner, answer.late) == ("refused", name, False)
    assert database.rows(EVERY_COLUMN, lease.batch) == before
    assert database.rows(
        "select operation, worker, owner, number, owner_number, state::text, times"
        " from helix.refusal where batch = %s",
        lease.batch,
    ) == [(OPERATION[write], "A", name, stale.token.number, lease.token.number, "RUNNING", 1)]
    [answer] = db.run(WRITES["complete"](name, lease))
    assert (answer.answer, answer.state) == ("ok", State.COMPLETED)
    assert_consistent(database)


def test_zombie_is_refused_while_its_batch_has_no_owner(database, db):
    stale = frozen(database, db)
    wait_until(lambda: db.run(calls.reap(actor="reaper")) == 1, "the lease to be reaped")
    answers = [answer for write in WRITES.values() for answer in db.run(write("A", stale))]
    assert {(answer.answer, answer.owner, answer.state) for answer in answers} == {
        ("refused", None, State.PENDING)
    }
    assert database.rows("select distinct worker, owner, state::text from helix.refusal") == [
        ("A", None, "PENDING")
    ]
    assert_consistent(database)


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_zombie_is_refused_after_the_end(database, db, end):
    stale = frozen(database, db)
    lease = replaced(db, stale)
    if end == "cancelled":
        db.run(calls.cancel(ids=[lease.batch_id], reason="wrong tube"))
    else:
        settlement = completion(lease) if end == "completed" else failure(lease, permanent=True)
        db.run(calls.settle(worker="B", settlements=[settlement]))
    outcome = database.rows(EVERY_ROW)
    answers = [answer for write in WRITES.values() for answer in db.run(write("A", stale))]
    assert {(answer.answer, answer.owner, answer.state) for answer in answers} == {
        ("refused", "B", State(end.upper()))
    }
    assert database.rows(EVERY_ROW) == outcome
    assert_consistent(database)


@pytest.mark.parametrize("write", WRITES)
def test_late_write_of_an_unreplaced_lease_is_accepted_and_marked(database, db, write):
    lease = frozen(database, db, started=write != "start")
    [answer] = db.run(WRITES[write]("A", lease))
    assert (answer.answer, answer.late) == ("ok", True)
    assert database.value("select count(*) from helix.refusal") == 0
    last = database.rows("select reason::text, late from helix.event order by version desc limit 1")
    if write == "complete":
        assert last == [("completed", True)]
        assert database.rows("select state::text, late, actor from helix.work") == [
            ("COMPLETED", True, "A")
        ]
    elif write == "renew":
        # Nothing but the deadline changed, so there is no event to mark.
        assert last == [("started", False)]
        assert database.value("select deadline > %s from helix.work", lease.deadline)
    else:
        assert last == [
            ({"start": "started", "fail": "failed", "release": "released"}[write], True)
        ]
    assert_consistent(database)


def test_late_start_does_not_make_a_timely_completion_late(database, db):
    lease = frozen(database, db, started=False)
    assert db.run(WRITES["start"]("A", lease))[0].late
    db.run(WRITES["renew"]("A", lease))
    db.run(WRITES["complete"]("A", lease))
    assert database.rows("select reason::text, late from helix.event order by version")[2:] == [
        ("started", True),
        ("completed", False),
    ]


def test_repeated_refusals_of_a_zombie_are_one_row_with_a_count(database, db):
    stale = frozen(database, db)
    lease = replaced(db, stale)
    for _ in range(7):
        db.run(WRITES["renew"]("A", stale))

    def hammer(_: int) -> list[str]:
        with open_store(database.dsn("pool")) as mine:
            return [mine.run(WRITES["complete"]("A", stale))[0].answer for _ in range(25)]

    answers = run_in_threads(hammer, [(number,) for number in range(8)])
    assert {answer for item in answers for answer in item} == {"refused"}
    assert database.rows(
        "select operation, worker, owner, times, last_at > first_at from helix.refusal order by 1"
    ) == [("renew", "A", "B", 7, True), ("settle", "A", "B", 200, True)]
    assert db.run(WRITES["complete"]("B", lease))[0].answer == "ok"
    assert_consistent(database)


def test_refusals_of_two_workers_with_one_stale_token_are_both_recorded(database, db):
    """A token that leaked, or a process that was copied: the second name is what matters."""
    stale = frozen(database, db)
    lease = replaced(db, stale)
    for worker, times in (("A", 2), ("copy of A", 3), ("thief", 1)):
        for _ in range(times):
            [answer] = db.run(calls.settle(worker=worker, settlements=[completion(stale)]))
            assert (answer.answer, answer.owner) == ("refused", "B")
    assert database.rows(
        "select worker, owner, number, owner_number, times from helix.refusal order by worker"
    ) == [
        ("A", "B", stale.token.number, lease.token.number, 2),
        ("copy of A", "B", stale.token.number, lease.token.number, 3),
        ("thief", "B", stale.token.number, lease.token.number, 1),
    ]
    assert db.run(WRITES["complete"]("B", lease))[0].answer == "ok"
    assert_consistent(database)


def test_repeated_refusal_keeps_the_owner_of_the_first_try(database, db):
    stale = frozen(database, db)
    lease = replaced(db, stale)
    assert db.run(WRITES["renew"]("A", stale))[0].owner == "B"
    db.run(calls.release(worker="B", leases=lease_refs([lease])))
    claim(db, 1, "C")
    assert db.run(WRITES["renew"]("A", stale))[0].owner == "C"
    assert database.rows("select owner, owner_number, times from helix.refusal") == [
        ("B", lease.token.number, 2)
    ]


def test_stale_token_does_not_affect_others_of_the_call(database, db):
    stale = frozen(database, db)
    lease = replaced(db, stale)
    submit(db, ["two", "three"])
    others = claim(db, 2, "A")
    answers = db.run(
        calls.settle(worker="A", settlements=[completion(other) for other in [*others, stale]])
    )
    assert {answer.batch: answer.answer for answer in answers} == {
        others[0].batch: "ok",
        others[1].batch: "ok",
        lease.batch: "refused",
    }
    assert_consistent(database)


def test_stale_token_passed_twice_in_one_call_is_refused_once(database, db):
    stale = frozen(database, db)
    replaced(db, stale)
    for write in WRITES:
        answers = db.run(both(write, stale, stale))
        assert {answer.answer for answer in answers} == {"refused"}
    # "settle" by both of its outcomes.
    assert database.rows("select operation, times from helix.refusal order by 1") == [
        ("release", 1),
        ("renew", 1),
        ("settle", 2),
        ("start", 1),
    ]


@pytest.mark.parametrize("write", WRITES)
def test_valid_token_passed_twice_in_one_call_counts_once(database, db, write):
    submit(db, ["one"])
    [lease] = claim(db, 1, "A", start=write != "start")
    answers = db.run(both(write, lease, lease))
    repeated = [] if write == "renew" else ["repeat"]  # a renewal is answered once per batch
    assert sorted(answer.answer for answer in answers) == ["ok", *repeated]
    assert database.value("select count(*) from helix.refusal") == 0
    assert_consistent(database)


@pytest.mark.parametrize("write", WRITES)
def test_worker_with_stale_and_new_token_in_one_call_uses_the_new_one(database, db, write):
    """It lost the batch and was given it again, and settles all its slots with one call."""
    stale = frozen(database, db, started=write != "start")
    wait_until(lambda: db.run(calls.reap(actor="reaper")) == 1, "the lease to be reaped")
    [lease] = claim(db, 1, "A", start=write != "start")
    answers = db.run(both(write, stale, lease))
    assert sorted(answer.answer for answer in answers) == ["ok", "refused"]
    assert database.rows("select number, owner_number from helix.refusal") == [
        (stale.token.number, lease.token.number)
    ]
    last = database.rows(
        "select number, reason::text from helix.history_of(array[%s::bigint])"
        " order by version desc",
        lease.batch,
    )[0]
    expected = {"start": "started", "renew": "started", "complete": "completed", "fail": "failed"}
    assert last == (lease.token.number, expected.get(write, "released"))
    assert_consistent(database)


@pytest.mark.parametrize("write", WRITES)
def test_every_part_of_the_token_is_compared(database, db, write):
    submit(db, ["one"])
    [lease] = claim(db, 1, "A", start=write != "start")
    for part in ("epoch", "nonce", "number"):
        forged = lease.token._replace(**{part: getattr(lease.token, part) + 1})
        [answer] = db.run(WRITES[write]("A", lease._replace(token=forged)))
        assert (answer.answer, answer.owner) == ("refused", "A")
    [answer] = db.run(WRITES[write]("A", lease))
    assert answer.answer == "ok"
    assert_consistent(database)


def test_process_stopped_by_the_kernel_is_refused_when_it_continues(database, db):
    submit(db, ["one"])
    local = Path(__file__)
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.test_stale_tokens", database.dsn("pool")],
        cwd=local.parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdin
        assert worker.stdout
        assert worker.stdout.readline() == "claimed\n"
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(
            lambda: " T " in Path(f"/proc/{worker.pid}/stat").read_text(), "the process to stop"
        )
        # It will find this the moment it wakes up: it knows nothing of the time in between.
        worker.stdin.write("settle\n")
        worker.stdin.flush()
        wait_until(lambda: db.run(calls.reap(actor="reaper")) == 1, "its lease to be reaped")
        [lease] = claim(db, 1, "B")
        os.kill(worker.pid, signal.SIGCONT)
        assert worker.stdout.readline() == "refused B\n"
        # Also when the rightful owner is long done.
        assert db.run(WRITES["complete"]("B", lease))[0].answer == "ok"
        worker.stdin.write("settle\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "refused B\n"
        worker.stdin.close()
    assert worker.returncode == 0
    assert database.rows("select worker, owner, times from helix.refusal") == [("frozen", "B", 2)]
    assert database.rows("select state::text, actor from helix.work") == [("COMPLETED", "B")]
    assert_consistent(database)


def frozen_worker(dsn: str) -> None:
    """The process of the test above: claims, and settles each time it is told to."""
    with open_store(dsn) as db:
        [lease] = claim(db, 1, "frozen", seconds=0.5)
        sys.stdout.write("claimed\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            [answer] = db.run(WRITES["complete"]("frozen", lease))
            sys.stdout.write(f"{answer.answer} {answer.owner}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    frozen_worker(sys.argv[1])
