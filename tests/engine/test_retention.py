"""Retention: finished batches go, by queue and state, and their keys go on answering."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.store import calls, duties
from tests.lab import Lab, one_database


@pytest.fixture(scope="module")
def database(server, template, pooler):
    yield from one_database(server, template, pooler)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


DUE = """
create function helix.test_due() returns void language sql security definer as
  $$ update helix.duty set next_at = '-infinity' where duty = 'retire' $$;
alter function helix.test_due owner to helix_engine;
select helix.test_due();
drop function helix.test_due;
"""


def retired(lab, limit=1_000):
    """Let the duty be due, and done until there is no more to do."""
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute(DUE)
    did = []
    while (done := lab.run(duties.tend(actor="duty", limit=limit))) is not None:
        assert done.error is None, done
        if done.duty == "retire":
            did.append(done.did)
    return did


def proven(database):
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean
        wrong = {one.name for one in check(connection) if not one.holds}
    # The tests' own function, which lets time pass.
    assert wrong <= {"function_tampered", "open_to_public"}


def finished(lab, count=4, prefix="s", **options):
    told = lab.submit_many(count, prefix, **options)
    lab.complete(*lab.claim(count))
    return told


def test_a_resubmission_after_retention_is_a_duplicate_with_an_equal_receipt(lab):
    lab.queue(keep_completed_seconds=0.001)
    told = finished(lab)
    assert sum(retired(lab)) == 4
    assert lab.rows("select from helix.batch b where b.queue = %s", lab.q) == []
    again = lab.submit_many(4)
    assert [one.decision for one in again] == ["duplicate"] * 4
    assert [one.receipt for one in again] == [one.receipt for one in told]
    assert {one.state.value for one in again} == {"COMPLETED"}
    [other] = lab.submit("s00000", payload={"n": 2})
    assert other.decision == "conflict"
    proven(lab.database)


def test_nothing_goes_unless_the_queue_says_so(lab):
    lab.queue()
    told = finished(lab)
    assert sum(retired(lab)) == 0
    assert lab.standing(told[0].receipt.batch_id)[0] == "COMPLETED"


def test_each_state_has_a_time_of_its_own(lab):
    lab.queue(keep_completed_seconds=0.001, keep_cancelled_seconds=0.001, max_attempts=1)
    done, failed, cancelled, pending = lab.submit_many(4)
    one, two = lab.claim(2)
    lab.complete(one)
    lab.fail(two, permanent=True)
    lab.decide("cancel", cancelled.receipt.batch_id)
    assert sum(retired(lab)) == 2
    assert lab.standing(failed.receipt.batch_id)[0] == "FAILED"
    assert lab.standing(pending.receipt.batch_id)[0] == "PENDING"
    # What failed may be retried, and goes when it is done.
    lab.decide("retry", failed.receipt.batch_id)
    lab.complete(*lab.claim(2))
    assert sum(retired(lab)) == 2
    assert {word for (word,) in lab.rows(
        "select r.state::text from helix.retired r join helix.locate(%s) l on l.batch = r.batch",
        [one.receipt.batch_id for one in (done, failed, cancelled, pending)],
    )} == {"COMPLETED", "CANCELLED"}  # fmt: skip
    proven(lab.database)


def test_one_queues_retention_is_not_anothers(lab):
    lab.queue(keep_completed_seconds=0.001)
    finished(lab, 2)
    with Lab(lab.database) as other:
        other.queue(keep_completed_seconds=1e6)
        [kept] = finished(other, 1)
        lab.queue(keep_completed_seconds=0.001, tenant="b")
        assert sum(retired(lab)) == 2
        assert other.standing(kept.receipt.batch_id)[0] == "COMPLETED"


def test_retention_goes_in_bounded_steps(lab):
    lab.queue(keep_completed_seconds=0.001)
    finished(lab, 25)
    assert retired(lab, limit=10) == [10, 10, 5]


def test_who_is_retrying_a_batch_keeps_it_and_nobody_waits(lab):
    lab.queue(keep_failed_seconds=0.001)
    [one] = lab.submit("s")
    lab.fail(*lab.claim(), permanent=True)
    with Lab(lab.database, q=lab.q) as other, other.store.connection.transaction():
        other.decide("retry", one.receipt.batch_id)
        assert sum(retired(lab)) == 0
    assert lab.standing(one.receipt.batch_id)[0] == "PENDING"
    assert sum(retired(lab)) == 0


def test_a_late_write_for_a_batch_that_went_is_refused(lab):
    lab.queue(keep_completed_seconds=0.001, lease_seconds=60)
    lab.submit("s")
    [lease] = lab.claim()
    lab.pass_time(lease.batch)
    lab.run(calls.reap(actor="x"))
    lab.complete(*lab.claim(worker="w2"))
    assert sum(retired(lab)) == 1
    [answer] = lab.complete(lease)
    assert answer.answer == "refused"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e11])
def test_a_time_that_is_none_is_refused(lab, seconds):
    with pytest.raises(Exception, match="keep_completed_seconds"):
        lab.queue(keep_completed_seconds=seconds)


def decisions(lab):
    return lab.rows(
        "select d.kind, count(*) from helix.decision d where d.queue = %s group by 1 order by 1",
        lab.q,
    )


def test_a_sender_that_repeats_itself_for_ever_leaves_no_rows_for_ever(lab):
    lab.queue(keep_decisions_seconds=1e6)
    told = finished(lab, 1)
    for _ in range(5):
        lab.submit("s00000")
    lab.submit("s00000", payload={"n": 2})
    lab.run(
        calls.note_refused(tenant="a", queue=lab.q, refused=[(b"\xff", "not Unicode")], actor="ann")
    )
    lab.decide("erase", told[0].receipt.batch_id)
    retired(lab)
    before = [("conflict", 1), ("duplicate", 5), ("erased", 1), ("refused", 1), ("setting", 1)]
    assert decisions(lab) == before, "their time has not come"
    lab.queue(keep_decisions_seconds=0.001)
    assert retired(lab, limit=2)[:3] == [2, 2, 2], "in bounded steps"
    # What explains why a payload is gone, and what the queue was told, stays.
    assert decisions(lab) == [("erased", 1), ("setting", 2)]
    lab.queue(keep_decisions_seconds=0)  # for ever: other tests count what goes
    assert [one.decision for one in lab.submit("s00000")] == ["duplicate"]
    proven(lab.database)


def test_one_queues_decisions_are_not_anothers(lab):
    lab.queue()
    lab.submit("a")
    lab.submit("a")
    with Lab(lab.database) as other:
        other.queue(keep_decisions_seconds=0.001)
        other.submit("a")
        other.submit("a")
        assert sum(retired(other)) == 1
        assert decisions(other) == [("setting", 1)]
    assert decisions(lab) == [("duplicate", 1), ("setting", 1)]


def test_refusals_go_with_their_batch(lab):
    lab.queue(keep_completed_seconds=1e6)
    lab.submit("a")
    [zombie] = lab.claim()
    lab.pass_time(zombie.batch)
    lab.run(calls.reap(actor="reaper"))
    lab.run(calls.promote())
    lab.complete(*lab.claim())
    assert [one.answer for one in lab.complete(zombie)] == ["refused"]
    refusals = "select count(*) from helix.refusal r where r.batch = %s"
    assert lab.value(refusals, zombie.batch) == 1
    lab.queue(keep_completed_seconds=0.001)
    retired(lab)
    assert lab.value(refusals, zombie.batch) == 0
    proven(lab.database)


def test_no_hand_but_retentions_takes_events_away(lab):
    lab.queue()
    told = finished(lab, 1)
    number = lab.number(told[0].receipt.batch_id)
    with lab.database.connect("helix_bootstrap") as connection:
        connection.execute(
            "create function helix.retire_v1_like(bigint) returns void language plpgsql "
            "security definer as $$ begin delete from helix.event where batch = $1; end $$"
        )
        connection.execute("alter function helix.retire_v1_like owner to helix_engine")
        with pytest.raises(psycopg.Error, match="append-only"):
            connection.execute("select helix.retire_v1_like(%s)", (number,))
        connection.execute("drop function helix.retire_v1_like")
