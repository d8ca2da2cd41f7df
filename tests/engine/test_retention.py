"""Retention: finished batches go, by queue and state, and their keys go on answering."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.engine import calls, duties
from helixqueue.states import State
from tests.support.engine_traffic import proven
from tests.support.lab import Lab, completion, end_minute, engine_function

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


def tended(lab, duty, limit=1_000):
    """Let a duty be due, and done until there is no more to do; the rows of each run."""
    with engine_function(lab.database) as execute:
        due = f"update helix.duty set next_at = '-infinity' where duty = '{duty}'"
        assert execute(due) is None
    did = []
    while (done := lab.run(duties.run_duty(actor="duty", limit=limit))) is not None:
        assert done.error is None, done
        if done.duty == duty:
            did.append(done.did)
    return did


def retired(lab, limit=1_000):
    return tended(lab, "retire", limit)


def finished(lab, count=4, prefix="s", **options):
    submitted = lab.submit_many(count, prefix, **options)
    lab.complete(*lab.claim(count))
    return submitted


def test_resubmission_after_retention_is_a_duplicate_with_an_equal_receipt(lab):
    lab.queue(keep_completed_seconds=0.001)
    answer = finished(lab)
    assert sum(retired(lab)) == 4
    assert lab.rows(
        "select count(*), count(b.retired_at), count(b.payload), count(b.identity), count(w.batch)"
        " from helix.batch b join helix.queue q on q.id = b.queue"
        " left join helix.work w on w.batch = b.id where q.name = %s",
        lab.q,
    ) == [(4, 4, 0, 0, 0)]
    again = lab.submit_many(4)
    assert [item.decision for item in again] == ["duplicate"] * 4
    assert [item.receipt for item in again] == [item.receipt for item in answer]
    assert {item.state.value for item in again} == {"COMPLETED"}
    [other] = lab.submit("s00000", payload={"n": 2})
    assert other.decision == "conflict"
    proven(lab.database)


def test_retention_deletes_nothing_without_a_queue_setting(lab):
    lab.queue()
    answer = finished(lab)
    assert sum(retired(lab)) == 0
    assert lab.location(answer[0].receipt.batch_id)[0] == "COMPLETED"


def test_retention_applies_per_state(lab):
    lab.queue(keep_completed_seconds=0.001, keep_cancelled_seconds=0.001, max_attempts=1)
    done, failed, cancelled, pending = lab.submit_many(4)
    first, second = lab.claim(2)
    lab.complete(first)
    lab.fail(second, permanent=True)
    lab.decide("cancel", cancelled.receipt.batch_id)
    assert sum(retired(lab)) == 2
    assert lab.location(failed.receipt.batch_id)[0] == "FAILED"
    assert lab.location(pending.receipt.batch_id)[0] == "PENDING"
    # What failed may be retried, and goes when it is done.
    lab.decide("retry", failed.receipt.batch_id)
    lab.complete(*lab.claim(2))
    assert sum(retired(lab)) == 2
    assert {word for (word,) in lab.rows(
        "select b.state::text from helix.batch b join helix.locate(%s) l on l.batch = b.id"
        " where b.retired_at is not null",
        [item.receipt.batch_id for item in (done, failed, cancelled, pending)],
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
        assert other.location(kept.receipt.batch_id)[0] == "COMPLETED"


def test_retention_goes_in_bounded_steps(lab):
    lab.queue(keep_completed_seconds=0.001)
    finished(lab, 25)
    assert retired(lab, limit=10) == [10, 10, 5]


def test_batch_locked_by_a_retry_is_kept_without_waiting(lab):
    lab.queue(keep_failed_seconds=0.001)
    [submitted] = lab.submit("s")
    lab.fail(*lab.claim(), permanent=True)
    with Lab(lab.database, q=lab.q) as other, other.store.connection.transaction():
        other.decide("retry", submitted.receipt.batch_id)
        assert sum(retired(lab)) == 0
    assert lab.location(submitted.receipt.batch_id)[0] == "PENDING"
    assert sum(retired(lab)) == 0


def test_stale_write_after_retention_is_refused_and_kept(lab):
    lab.queue(keep_completed_seconds=0.001, lease_seconds=60)
    lab.submit("s")
    [lease] = lab.claim()
    lab.pass_time(lease.batch)
    lab.run(calls.reap(actor="x"))
    lab.settle(*map(completion, lab.claim(worker="w2")), worker="w2")
    assert sum(retired(lab)) == 1
    for _ in range(2):
        for answers in (
            lab.complete(lease),
            lab.renew(lease),
            lab.start(lease),
            lab.release(lease),
        ):
            [answer] = answers
            assert (answer.answer, answer.state) == ("refused", State.COMPLETED)
    assert lab.rows(
        "select operation, worker, tenant, number, state::text, times from helix.refusal"
        " where batch = %s order by operation",
        lease.batch,
    ) == [
        (operation, "w1", "a", lease.token.number, "COMPLETED", 2)
        for operation in ("release", "renew", "settle", "start")
    ]
    proven(lab.database)


def test_owner_repeating_a_write_after_retention_is_refused_before_and_after_archiving(lab):
    """Retention takes the memory of what a token did, at once and for ever."""
    lab.queue(keep_completed_seconds=0.001)
    lab.submit("s")
    [lease] = lab.claim()
    assert [item.answer for item in lab.complete(lease)] == ["ok"]
    assert [item.answer for item in lab.complete(lease)] == ["repeat"]
    assert sum(retired(lab)) == 1
    assert [item.answer for item in lab.complete(lease)] == ["refused"]
    tended(lab, "archive")
    assert [item.answer for item in lab.complete(lease)] == ["refused"]
    times = "select times from helix.refusal where batch = %s"
    assert lab.value(times, lease.batch) == 2


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e11])
def test_invalid_retention_time_is_refused(lab, seconds):
    with pytest.raises(Exception, match="keep_completed_seconds"):
        lab.queue(keep_completed_seconds=seconds)


def decisions(lab):
    return lab.rows(
        "select kind, sum(times) from helix.decision where queue = %s group by 1 order by 1",
        lab.q,
    )


def test_endless_repeats_of_a_submission_do_not_grow_the_table(lab):
    lab.queue(keep_decisions_seconds=1e6)
    answer = finished(lab, 1)
    for _ in range(5):
        lab.submit("s00000")
    lab.submit("s00000", payload={"n": 2})
    lab.run(
        calls.note_refused(tenant="a", queue=lab.q, refused=[(b"\xff", "not Unicode")], actor="ann")
    )
    lab.decide("erase", answer[0].receipt.batch_id)
    end_minute(lab.database)
    retired(lab)
    before = [("conflict", 1), ("duplicate", 5), ("erased", 1), ("refused", 1), ("setting", 1)]
    assert decisions(lab) == before, "their time has not come"
    lab.queue(keep_decisions_seconds=0.001)
    assert max(retired(lab, limit=2)) <= 2, "in bounded steps"
    # What explains why a payload is gone, and what the queue was told, stays.
    assert decisions(lab) == [("erased", 1), ("setting", 2)]
    lab.queue(keep_decisions_seconds=0)  # for ever: other tests count what goes
    assert [submitted.decision for submitted in lab.submit("s00000")] == ["duplicate"]
    proven(lab.database)


def test_one_queues_decisions_are_not_anothers(lab):
    lab.queue()
    lab.submit("a")
    lab.submit("a")
    with Lab(lab.database) as other:
        other.queue(keep_decisions_seconds=0.001)
        other.submit("a")
        other.submit("a")
        end_minute(lab.database)
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
    assert [item.answer for item in lab.complete(zombie)] == ["refused"]
    refusals = "select count(*) from helix.refusal r where r.batch = %s"
    assert lab.value(refusals, zombie.batch) == 1
    lab.queue(keep_completed_seconds=0.001)
    retired(lab)
    assert lab.value(refusals, zombie.batch) == 0
    proven(lab.database)


# --- archive -----------------------------------------------------------------------------------

ENTRIES = "select to_jsonb(e) from helix.entry e where e.id = any (%s) order by e.id, e.part"
ARRAYS = ("batch", "queue", "version", "attempt", "before", "content")


def archived(lab):
    """Walk the ledger from its beginning; how many entries were emptied."""
    with engine_function(lab.database) as execute:
        assert execute("update helix.duty set mark = 0 where duty = 'archive'") is None
    return sum(tended(lab, "archive"))


def entries_of(lab, *leases):
    """The ids of all entries of these batches."""
    return [
        entry
        for (entry,) in lab.rows(
            "select distinct entry from helix.event where batch = any (%s) order by 1",
            [lease.batch for lease in leases],
        )
    ]


def test_entries_whose_batches_are_all_retired_lose_their_arrays_and_keep_header_and_hash(lab):
    retired(lab)
    archived(lab)  # what other tests have left
    lab.queue(keep_completed_seconds=0.001)
    # Together in the entries of their submission and their claim; they end apart.
    lab.submit("gone-1", "gone-2", "kept")
    first, second, kept = sorted(lab.claim(3), key=lambda lease: lease.batch)
    lab.complete(first, second)
    shared = entries_of(lab, kept)
    alone = [entry for entry in entries_of(lab, first, second) if entry not in shared]
    assert (len(shared), len(alone)) == (2, 1)
    before = lab.rows(ENTRIES, [*shared, *alone])
    assert sum(retired(lab)) == 2
    assert lab.rows(ENTRIES, [*shared, *alone]) == before, "retiring does not touch the ledger"
    assert archived(lab) == 1
    assert lab.rows(ENTRIES, shared) == before[:2], "others keep theirs"
    [(emptied,)] = lab.rows(ENTRIES, alone)
    assert emptied == before[2][0] | dict.fromkeys(ARRAYS)
    proven(lab.database)
    # When the last batch has gone, the rest follows.
    lab.complete(kept)
    every = entries_of(lab, kept)
    assert sum(retired(lab)) == 1
    assert archived(lab) == len(every) == 3
    headers = lab.rows(ENTRIES, every)
    assert [header["batch"] for (header,) in headers] == [None] * 3
    assert [header["hash"] for (header,) in headers[:2]] == [row["hash"] for (row,) in before[:2]]
    assert archived(lab) == 0
    proven(lab.database)


def test_archiving_goes_in_bounded_steps_and_starts_over(lab):
    end = lab.value("select coalesce(max(id), 0) from helix.entry")  # of other tests
    with engine_function(lab.database) as execute:
        later = f"update helix.duty set next_at = 'infinity', mark = {end} where duty = 'archive'"
        assert execute(later) is None
    lab.queue(keep_completed_seconds=0.001)
    for number in range(6):
        lab.submit(f"s{number}")
        lab.complete(*lab.claim())
    assert sum(retired(lab)) == 6
    # A run looks at ten entries for each row it may do; at the end of the ledger it starts over.
    assert tended(lab, "archive", limit=1) == [10, 8, 0]
    assert lab.value("select mark from helix.duty where duty = 'archive'") == 0
    assert (
        lab.value(
            "select count(*) from helix.event e join helix.queue q on q.id = e.queue"
            " where q.name = %s",
            lab.q,
        )
        == 0
    )


def test_no_function_but_archive_empties_entries(lab):
    lab.queue()
    finished(lab, 1)
    before = lab.rows("select to_jsonb(e) from helix.entry e order by e.id, e.part")
    with lab.database.connect("helix_bootstrap") as connection:
        for change in ("update helix.entry set batch = null", "delete from helix.entry"):
            connection.execute(
                "create function helix.archive_like(bigint) returns void language plpgsql "
                f"security definer as $$ begin {change}; end $$".encode()
            )
            connection.execute("alter function helix.archive_like owner to helix_engine")
            with pytest.raises(psycopg.Error, match="append-only"):
                connection.execute("select helix.archive_like(1)")
            connection.execute("drop function helix.archive_like")
    assert lab.rows("select to_jsonb(e) from helix.entry e order by e.id, e.part") == before
