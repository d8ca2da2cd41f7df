"""A client that repeats itself without end fills no disk: equal answers of a minute are one row."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg import IsolationLevel

from helixqueue.engine import calls
from helixqueue.engine.identities import refused
from helixqueue.engine.reads import batch_detail
from helixqueue.records.submission import SubmissionRow
from tests.support.duties import run_duty
from tests.support.engine_traffic import proven
from tests.support.fence_caller import FenceCaller
from tests.support.lab import Lab, end_minute, engine_function, wait_until

COUNTED = "select count(*), sum(times)::int from helix.answer_count where queue = %s"
DECIDED = (
    "select kind, times, last_at > at from helix.decision where queue = %s"
    " and kind in ('duplicate', 'conflict', 'refused') order by id"
)
METRIC = (
    "select m.label, m.value::int from helix.metric m"
    " where m.name = 'helix_submissions_total' and m.queue = %s and m.value > 0 order by 1"
)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        yield lab


def refuse(lab, *raw, why="not UTF-8", queue=None):
    lab.run(
        calls.note_refused(
            tenant="a", queue=queue or lab.q, refused=[(text, why) for text in raw], actor="eve"
        )
    )


def keep_metrics(database):
    with engine_function(database) as execute:
        assert execute("select helix.keep_metrics(100000)") is None


def kept_metrics(lab, expected):
    """Keep metrics until those of the queue are as expected: a run reads a part of the ledger."""

    def kept():
        keep_metrics(lab.database)
        return lab.rows(METRIC, lab.q) == expected

    return wait_until(kept)


def test_client_repeating_one_submission_adds_one_decision_per_minute(lab):
    lab.queue()
    lab.submit("s")
    for _ in range(40):
        lab.submit("s")
    lab.submit("s", payload={"n": 2})
    rows, times = lab.rows(COUNTED, lab.q)[0]
    assert times == 41
    assert rows <= 4, "duplicates and conflicts, of at most two minutes"
    end_minute(lab.database)
    assert sum(row[1] for row in lab.rows(DECIDED, lab.q)) == 41
    assert len(lab.rows(DECIDED, lab.q)) == rows
    assert lab.rows(COUNTED, lab.q) == [(0, None)]
    assert kept_metrics(lab, [("conflict", 1), ("duplicate", 40), ("new", 1)])
    rollup = "select sum(repeated)::int from helix.rollup where queue = %s and seconds = 60"
    assert lab.value(rollup, lab.q) == 40
    proven(lab.database)


def test_repeats_are_seen_before_and_after_their_minute_ends(lab):
    lab.queue()
    [new] = lab.submit("s")
    lab.submit_rows(*[SubmissionRow("s", '{"n":1}') for _ in range(7)])
    refuse(lab, b"\xff", b"\xff", b"\xfe")

    def read():
        detail = lab.run(batch_detail(new.receipt.batch_id))
        page = lab.run(refused(tenant="a", queue=lab.q, limit=10, after=None))
        return (
            [(row.kind, row.times) for row in detail.decisions],
            sorted((row.raw_hex, row.times) for row in page.rows),
        )

    before = read()
    assert before[1] == [("fe", 1), ("ff", 2)]
    assert sum(times for _, times in before[0]) == 7
    end_minute(lab.database)
    assert read() == before


def test_open_transaction_with_a_duplicate_blocks_no_other_duplicate(lab):
    lab.queue()
    lab.submit("s")
    lab.submit("s")
    with Lab(lab.database) as other, lab.store.connection.transaction():
        lab.submit("s")
        other.store.connection.execute("set statement_timeout = '2s'")
        for _ in range(3):
            assert [row.decision for row in other.submit("s", queue=lab.q)] == ["duplicate"]
    end_minute(lab.database)
    assert sum(row[1] for row in lab.rows(DECIDED, lab.q)) == 5


def test_duplicate_inside_a_repeatable_read_transaction_is_answered_after_another(lab):
    lab.queue()
    lab.submit("s")
    lab.submit("s")
    lab.store.connection.isolation_level = IsolationLevel.REPEATABLE_READ
    with Lab(lab.database) as other, lab.store.connection.transaction():
        lab.store.connection.execute("select 1 from helix.read_tenants_v1()")
        other.submit("s", queue=lab.q)
        assert [row.decision for row in lab.submit("s")] == ["duplicate"]
    assert lab.rows(COUNTED, lab.q)[0][1] == 3


def test_flood_of_different_refused_identities_is_only_counted_above_the_rate(lab):
    lab.queue()
    rate = lab.value("select helix.answer_rate()")
    for number in range(3):
        refuse(lab, *[f"{number}-{n}".encode() for n in range(rate)])
    minutes = lab.value("select count(distinct minute) from helix.answer_count")
    rows, times = lab.rows(COUNTED, lab.q)[0]
    assert times == 3 * rate
    assert rows <= (rate + 1) * minutes
    end_minute(lab.database)
    assert kept_metrics(lab, [("refused", 3 * rate)])
    name = "helix_identity_refused_total"
    counted = "select value::int from helix.metric where name = %s and queue = %s"
    assert lab.value(counted, name, lab.q) == 3 * rate
    proven(lab.database)


def test_long_refused_identities_use_up_the_rate_of_many_short_ones(lab):
    lab.queue()
    for number in range(3):
        refuse(lab, *[f"{number}-{n}-".encode() * 600 for n in range(200)])
    size = "select sum(octet_length(detail)) from helix.answer_count where queue = %s"
    minutes = lab.value("select count(distinct minute) from helix.answer_count")
    assert lab.value(size, lab.q) <= 1024 * lab.value("select helix.answer_rate()") * minutes
    assert lab.rows(COUNTED, lab.q)[0][1] == 600


def test_refused_submissions_to_invented_queues_make_no_series_of_their_names(lab):
    for number in range(5):
        lab.submit("s", queue=f"invented-{number}")
        refuse(lab, b"\xff", queue=f"invented-{number}")
    end_minute(lab.database)
    keep_metrics(lab.database)
    invented = "select count(*) from helix.{} where queue like 'invented%%'"
    assert lab.value(invented.format("metric")) == 0
    assert lab.value(invented.format("decision")) == 0
    assert lab.value("select sum(times)::int from helix.decision where queue = ''") == 10


def test_decisions_without_a_queue_setting_are_deleted_after_ninety_days(lab):
    lab.queue()
    assert lab.queue().keep_decisions_seconds == timedelta(days=90).total_seconds()
    lab.submit("s")
    lab.submit("s")
    lab.submit("s", queue="invented")
    end_minute(lab.database)
    with engine_function(lab.database) as execute:
        old = "update helix.decision set at = at - interval '91 days' where {}"
        assert execute(old.format("kind in ('duplicate', 'refused', 'setting')")) is None
        assert execute("select helix.delete_old_decisions(1000)") is None
    kinds = lab.rows(
        "select distinct kind from helix.decision where tenant = 'a' and kind <> 'audit'"
    )
    assert kinds == [("setting",)]


def test_erasures_retirements_settings_and_audit_rows_stay_for_ever(lab):
    lab.queue(keep_completed_seconds=0.001, keep_decisions_seconds=0.001)
    [new] = lab.submit("s")
    lab.submit("s")
    lab.complete(*lab.claim(1))
    lab.run(calls.erase(ids=[new.receipt.batch_id], reason="consent", identity=True))
    end_minute(lab.database)
    for _ in range(3):
        assert run_duty(lab, "retire") is None
    kinds = "select kind from helix.decision where queue = %s or kind = 'audit' group by 1"
    lasting = {(kind,) for kind in ("audit", "erased", "identity_erased", "retired", "setting")}
    assert set(lab.rows(kinds, lab.q)) == lasting, "the duplicate is gone"
    with engine_function(lab.database) as execute:
        assert execute("update helix.decision set at = at - interval '20 years'") is None
    for duty in ("retire", "sweep", "archive", "answers"):
        assert run_duty(lab, duty) is None
    assert set(lab.rows(kinds, lab.q)) == lasting


def test_client_repeating_a_sealed_fence_adds_one_decision_per_minute(database):
    with FenceCaller(database) as caller:
        caller.seal(caller.hold())
        for _ in range(30):
            assert caller.claim().decision == "repeated"
        assert caller.claim(request="{}").decision == "mismatch"
        rows, times = database.rows(COUNTED, caller.name)[0]
        assert times == 31
        assert rows <= 4
        end_minute(database)
        decided = "select sum(times)::int, count(*) from helix.fence_decision where name = %s"
        assert database.rows(decided, caller.name) == [(31, rows)]
    calls_total = (
        "select m.label, m.value::int from helix.metric m where m.name = %s and m.queue = %s"
    )

    def kept():
        keep_metrics(database)
        return sorted(database.rows(calls_total, "helix_fence_calls_total", caller.name))

    expected = [("conflict", 1), ("duplicate", 30), ("new", 1)]
    assert wait_until(lambda: kept() == expected)


def test_deleted_fence_takes_its_counted_calls_with_it(database):
    with FenceCaller(database) as caller:
        held = caller.hold()
        caller.seal(held)
        caller.claim()
        with engine_function(database) as execute:
            past = f"update helix.fence set until = now() where key = '\\x{held.key.hex()}'"
            assert execute(past) is None
        assert caller.claim().decision == "granted"
    assert database.rows(COUNTED, caller.name) == [(0, None)]
    left = "select count(*) from helix.fence_decision where name = %s"
    assert database.value(left, caller.name) == 0


def test_count_that_a_transaction_holds_becomes_a_decision_later(lab):
    lab.queue()
    lab.submit("s")
    lab.submit("s")
    with engine_function(lab.database) as execute:
        assert execute("update helix.answer_count set minute = minute - interval '1 min'") is None
        with lab.superuser.transaction(force_rollback=True):
            lab.superuser.execute("select * from helix.answer_count for update")
            assert execute("select helix.fold_answers(1000)") is None
            assert lab.rows(COUNTED, lab.q)[0][1] == 1, "held by another transaction"
        assert execute("select helix.fold_answers(1000)") is None
    assert [row[:2] for row in lab.rows(DECIDED, lab.q)] == [("duplicate", 1)]
