"""A call whose answer was lost is made again: one effect, and the answer that was meant."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from helixqueue.engine import calls
from helixqueue.errors import Unavailable
from helixqueue.records.submission import SubmissionRow
from helixqueue.states import State
from tests.support.engine_traffic import (
    PAYLOAD,
    assert_consistent,
    claim,
    drain,
    open_queue,
    open_store,
    run_in_threads,
    submit,
    wait_until_blocked,
)
from tests.support.faults import FaultProxy
from tests.support.lab import completion, failure, lease_refs


@pytest.fixture
def db(database):
    """A client whose link is sound."""
    with open_store(database.dsn("pool")) as db:
        open_queue(db)
        yield db


@pytest.fixture
def faults(database, tmp_path):
    with FaultProxy(database.dsn("pool"), tmp_path) as faults:
        yield faults


def lose_reply(faults, call):
    """Make the call; the engine does it, and the caller learns nothing."""
    name = call.sql.partition("helix.")[2].partition("(")[0]
    with open_store(faults.dsn) as cut_off:
        faults.lose_reply(to=name)
        with pytest.raises(Unavailable) as lost:
            cut_off.run(call)
    assert lost.value.outcome_unknown
    assert faults.fired == 1


LEASED = "select count(*) from helix.work where state in ('ASSIGNED', 'RUNNING')"


def events(database):
    return database.rows("select batch, version, reason::text from helix.event order by 1, 2")


def submission(*identities):
    rows = [SubmissionRow(identity, PAYLOAD) for identity in identities]
    return calls.submit(tenant="a", queue="q", profile="text-v1", rows=rows)


def claim_call(count=2, worker="w", settle=()):
    return calls.claim(
        worker=worker, request=uuid.uuid4(), queues=["q"], count=count, start=True, settle=settle
    )


def by_batch(leases):
    return sorted((lease.batch, *lease.token, lease.deadline, lease.attempt) for lease in leases)


def test_submit(database, db, faults):
    call = submission("one", "two")
    lose_reply(faults, call)
    again, once_more = db.run(call), db.run(call)
    assert [item.decision for item in again] == ["duplicate", "duplicate"]
    assert [item.receipt for item in again] == [item.receipt for item in once_more]
    assert [item.receipt.batch_id for item in again] == [
        batch_id
        for (batch_id,) in database.rows("select helix.public_id(key) from helix.batch order by id")
    ]
    assert [reason for _, _, reason in events(database)] == ["submitted", "submitted"]
    assert_consistent(database)


def test_submission_that_never_arrived_is_new_when_it_comes_again(database, db, faults):
    with open_store(faults.dsn) as cut_off:
        faults.lose_request(containing="submit_v1")
        with pytest.raises(Unavailable):
            cut_off.run(submission("one"))
    assert faults.fired == 1
    assert db.run(submission("one"))[0].decision == "new"
    assert_consistent(database)


def test_commit_of_the_callers_own_transaction(database, db, faults):
    """The reply to COMMIT is the one that is lost; what was submitted within is there."""
    with open_store(faults.dsn) as cut_off:
        cut_off.connection.autocommit = False
        assert cut_off.run(submission("one"))[0].decision == "new"
        faults.lose_reply(to="COMMIT")
        with pytest.raises(psycopg.OperationalError):
            cut_off.connection.commit()
    assert faults.fired == 1
    assert db.run(submission("one"))[0].decision == "duplicate"
    assert_consistent(database)


def test_claim(database, db, faults):
    submit(db, ["one", "two", "three", "four", "five"])
    call = claim_call(2)
    lose_reply(faults, call)
    before = events(database)
    again = db.run(call).leases
    assert len(again) == 2
    assert by_batch(db.run(call).leases) == by_batch(again)
    assert events(database) == before
    assert database.value(LEASED) == 2
    answers = db.run(calls.settle(worker="w", settlements=[completion(item) for item in again]))
    assert [answer.answer for answer in answers] == ["ok", "ok"]
    # The request is known for good: its leases are gone, and it gives no others.
    assert db.run(call).leases == ()
    assert drain(db) == 3
    assert_consistent(database)


def test_claim_of_the_last_batches(database, db, faults):
    submit(db, ["one", "two"])
    call = claim_call(2)
    lose_reply(faults, call)
    assert len(db.run(call).leases) == 2
    assert_consistent(database)


def test_request_of_another_worker_is_not_answered(db):
    """Tokens go to whoever they were given to, not to whoever knows a request's id."""
    submit(db, ["one"])
    call = claim_call(1, worker="A")
    assert len(db.run(call).leases) == 1
    other = calls.claim(worker="B", request=call.args[1], queues=["q"], count=1)
    assert db.run(other).leases == ()


@pytest.mark.parametrize("end", [completion, failure], ids=["complete", "fail"])
def test_settle(database, db, faults, end):
    submit(db, ["one", "two"])
    leases = claim(db, 2)
    call = calls.settle(worker="w", settlements=[end(lease) for lease in leases])
    lose_reply(faults, call)
    before = events(database)
    assert [answer.answer for answer in db.run(call)] == ["repeat", "repeat"]
    assert events(database) == before
    # A repeat is answered from the ledger even when the batch has gone on.
    drain(db)
    assert [answer.answer for answer in db.run(call)] == ["repeat", "repeat"]
    assert database.value("select count(*) from helix.refusal") == 0
    assert_consistent(database)


def test_settle_claim_and_start_in_one_call(database, db, faults):
    submit(db, ["one", "two", "three", "four"])
    first = claim(db, 2)
    call = claim_call(2, settle=[completion(lease) for lease in first])
    lose_reply(faults, call)
    before = events(database)
    again = db.run(call)
    assert [answer.answer for answer in again.settled] == ["repeat", "repeat"]
    assert len(again.leases) == 2
    assert {lease.state for lease in again.leases} == {State.RUNNING}
    assert by_batch(db.run(call).leases) == by_batch(again.leases)
    assert events(database) == before
    assert drain_with(db, again.leases) == 2
    assert_consistent(database)


def drain_with(db, leases):
    answers = db.run(calls.settle(worker="w", settlements=[completion(lease) for lease in leases]))
    return sum(answer.answer == "ok" for answer in answers)


def test_release(database, db, faults):
    submit(db, ["one"])
    leases = claim(db, 1)
    call = calls.release(worker="w", leases=lease_refs(leases))
    lose_reply(faults, call)
    before = events(database)
    assert db.run(call)[0].answer == "repeat"
    # Also when somebody else holds the batch by now: it was given back, not lost.
    claim(db, 1, "B")
    assert db.run(call)[0].answer == "repeat"
    assert events(database)[: len(before)] == before
    assert database.value("select count(*) from helix.refusal") == 0
    assert_consistent(database)


def test_start(database, db, faults):
    submit(db, ["one"])
    leases = claim(db, 1, start=False)
    call = calls.start(worker="w", leases=lease_refs(leases))
    lose_reply(faults, call)
    before = events(database)
    [answer] = db.run(call)
    assert (answer.answer, answer.state) == ("repeat", State.RUNNING)
    assert events(database) == before
    assert_consistent(database)


def test_renew(database, db, faults):
    submit(db, ["one"])
    leases = claim(db, 1)
    call = calls.renew(worker="w", leases=lease_refs(leases))
    lose_reply(faults, call)
    assert db.run(call)[0].answer == "ok"
    assert_consistent(database)


def test_cancel(database, db, faults):
    [waiting, running] = submit(db, ["one", "two"])
    claim(db, 1)
    ids = [waiting.receipt.batch_id, running.receipt.batch_id]
    call = calls.cancel(ids=ids, reason="wrong tube", actor="ann")
    lose_reply(faults, call)
    before = events(database)
    verdicts = db.run(call)
    assert [(verdict.answer, verdict.state) for verdict in verdicts] == [
        ("repeat", State.CANCELLED)
    ] * 2
    assert events(database) == before
    assert_consistent(database)


def test_retry(database, db, faults):
    [submitted] = submit(db, ["one"])
    [lease] = claim(db, 1)
    db.run(calls.settle(worker="w", settlements=[failure(lease, permanent=True)]))
    call = calls.retry(ids=[submitted.receipt.batch_id], reason="new reagent", actor="ann")
    lose_reply(faults, call)
    before = events(database)
    assert db.run(call)[0].answer == "repeat"
    assert events(database) == before
    assert drain(db) == 1
    assert_consistent(database)


# The repeat comes while the first call is still under way.


@contextmanager
def hold_up(database, statement, *args):
    """Lock something in a session of its own, until the block ends."""
    with database.connect("helix_bootstrap", autocommit=False) as blocker:
        blocker.execute(statement, args)
        yield
        blocker.rollback()


def both_under_way(database, call, name, statement, *args):
    """The call and its repeat, both begun while what they need is locked."""

    def run(_):
        with open_store(database.dsn("pool")) as db:
            return db.run(call)

    with ThreadPoolExecutor(2) as pool:
        with hold_up(database, statement, *args):
            first = pool.submit(run, 1)
            wait_until_blocked(database, 1, name)
            second = pool.submit(run, 2)
            wait_until_blocked(database, 2, name)
        return first.result(30), second.result(30)


# Between locking what it will lease and leasing it, a claim looks up what was asked.
INSIDE_CLAIM = "lock table helix.batch in access exclusive mode"


@pytest.mark.parametrize("ready", [6, 2], ids=["more-is-ready", "nothing-else-is-ready"])
def test_repeated_claim_waits_for_the_first(database, db, ready):
    submit(db, [f"s{number}" for number in range(ready)])
    first, second = both_under_way(database, claim_call(2), "claim_v1", INSIDE_CLAIM)
    assert len(first.leases) == 2
    assert by_batch(first.leases) == by_batch(second.leases)
    assert database.value(LEASED) == 2
    assert_consistent(database)


def test_repeated_settle_claim_and_start_waits_for_the_first(database, db):
    submit(db, ["one", "two", "three", "four"])
    leases = claim(db, 2)
    call = claim_call(2, settle=[completion(lease) for lease in leases])
    lock = "select from helix.work where batch = %s for update"
    answers = both_under_way(database, call, "claim_v1", lock, leases[0].batch)
    assert by_batch(answers[0].leases) == by_batch(answers[1].leases)
    assert len(answers[0].leases) == 2
    assert sorted(answer.answer for item in answers for answer in item.settled) == [
        "ok", "ok", "repeat", "repeat",
    ]  # fmt: skip
    assert_consistent(database)


@pytest.mark.parametrize("verb", ["settle", "release", "start"])
def test_repeated_write_waits_for_the_first(database, db, verb):
    submit(db, ["one", "two"])
    leases = claim(db, 2, start=verb != "start")
    call = {
        "settle": calls.settle(worker="w", settlements=[completion(lease) for lease in leases]),
        "release": calls.release(worker="w", leases=lease_refs(leases)),
        "start": calls.start(worker="w", leases=lease_refs(leases)),
    }[verb]
    lock = "select from helix.work where batch = %s for update"
    answers = both_under_way(database, call, f"{verb}_v1", lock, leases[1].batch)
    assert sorted({answer.answer for answer in item} for item in answers) == [{"ok"}, {"repeat"}]
    assert database.value("select count(*) from helix.refusal") == 0
    assert_consistent(database)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_repeated_submit_waits_for_the_first(database, db, ends):
    call = submission("one")
    with open_store(database.dsn("pool")) as first, ThreadPoolExecutor(1) as pool:
        first.connection.autocommit = False
        [row] = first.run(call)
        again = pool.submit(db.run, call)
        wait_until_blocked(database, 1, "submit_v1")
        getattr(first.connection, ends)()
        [second] = again.result(30)
    assert (row.decision, second.decision) == ("new", "duplicate" if ends == "commit" else "new")
    assert row.receipt == second.receipt
    assert_consistent(database)


def test_dead_network_link_affects_only_its_caller(database, db, faults):
    """The frozen call's outcome is open until the link is back; the others go on."""
    submit(db, ["one", "two"])
    lost = threading.Event()

    def frozen_claim():
        with open_store(faults.dsn) as far:
            faults.freeze()
            try:
                far.run(claim_call(1, worker="far"))
            except Unavailable:
                lost.set()

    caller = threading.Thread(target=frozen_claim)
    caller.start()
    assert run_in_threads(lambda: drain(db), [()]) == [2]
    faults.cut_all()
    faults.thaw()
    caller.join(30)
    assert lost.is_set()
    assert_consistent(database)
