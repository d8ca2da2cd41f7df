"""Calls by batch id: cancel, retry, release, erase; and retention."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from helixqueue.engine import calls
from helixqueue.states import State
from tests.support.lab import Lab

pytestmark = pytest.mark.module_database

LATER = timedelta(hours=1)


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        yield lab


def answers_and_states(results):
    return [(result.answer, result.state) for result in results]


def retire(lab, state, before=None, **options):
    return lab.run(
        calls.retire(
            tenant="a",
            queue=lab.q,
            state=state,
            before=before or datetime.now(UTC) + LATER,
            **options,
        )
    )


def submit_batch(lab, **options):
    [answer] = lab.submit("s1", **options)
    return answer.receipt.batch_id


def finished(lab, state):
    batch_id = submit_batch(lab, payload={"patient": 7})
    if state is State.CANCELLED:
        lab.decide("cancel", batch_id)
    elif state is State.FAILED:
        lab.fail(*lab.claim(), permanent=True, detail="broke")
    else:
        lab.complete(*lab.claim())
    return batch_id


FINISHED = [State.COMPLETED, State.FAILED, State.CANCELLED]


# --- cancel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["ready", "delayed", "paused"])
def test_waiting_work_can_be_cancelled(lab, place):
    if place == "paused":
        lab.queue(paused=True)
    batch_id = submit_batch(lab, run_at=datetime.now(UTC) + LATER if place == "delayed" else None)
    [verdict] = lab.decide("cancel", batch_id, reason="wrong tube")
    assert (verdict.answer, verdict.state, verdict.batch_id) == ("ok", State.CANCELLED, batch_id)
    assert answers_and_states(lab.decide("cancel", batch_id)) == [("repeat", State.CANCELLED)]
    assert lab.location(batch_id) == ("CANCELLED", 2, 0, "outcome")
    assert lab.rows(
        "select actor, detail from helix.history_of(array[%s::bigint]) where version = 2",
        lab.number(batch_id),
    ) == [("ann", "wrong tube")]
    lab.queue(paused=False)
    lab.run(calls.promote())
    assert lab.claim() == []


@pytest.mark.parametrize("start", [True, False])
def test_token_of_a_cancelled_batch_becomes_invalid(lab, start):
    batch_id = submit_batch(lab)
    [lease] = lab.claim(start=start)
    assert answers_and_states(lab.decide("cancel", batch_id)) == [("ok", State.CANCELLED)]
    for answers in (lab.renew(lease), lab.complete(lease), lab.fail(lease), lab.release(lease)):
        assert answers_and_states(answers) == [("refused", State.CANCELLED)]
    assert answers_and_states(lab.decide("cancel", batch_id)) == [("repeat", State.CANCELLED)]
    assert lab.location(batch_id)[0] == "CANCELLED"


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_finished_work_cannot_be_cancelled(lab, state):
    batch_id = finished(lab, state)
    before = lab.location(batch_id)
    assert answers_and_states(lab.decide("cancel", batch_id)) == [("illegal", state)]
    assert lab.location(batch_id) == before


def test_cancel_of_many_batches_answers_each(lab):
    ids = [answer.receipt.batch_id for answer in lab.submit("s1", "s2", "s3")]
    lab.complete(*lab.claim(1))
    lab.claim(1)
    unknown = uuid.uuid4()
    verdicts = {v.batch_id: v for v in lab.decide("cancel", *ids, unknown)}
    assert sorted(v.answer for v in verdicts.values()) == ["illegal", "ok", "ok", "refused"]
    assert verdicts[unknown].note == "no such batch"
    assert len(verdicts) == 4


# --- retry -------------------------------------------------------------------------------------


def test_retry_of_a_failed_batch_restores_all_attempts(lab):
    lab.queue(max_attempts=2)
    batch_id = submit_batch(lab)
    for _ in range(2):
        lab.fail(*lab.claim())
    assert lab.location(batch_id)[:3] == ("FAILED", 7, 2)
    assert answers_and_states(lab.decide("retry", batch_id)) == [("ok", State.PENDING)]
    assert answers_and_states(lab.decide("retry", batch_id)) == [("repeat", State.PENDING)]
    assert lab.history(batch_id)[-1] == ("PENDING", "retried")
    for attempt in (1, 2):
        [lease] = lab.claim()
        assert lease.attempt == attempt
        lab.fail(lease)
    assert lab.location(batch_id)[0] == "FAILED"


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELLED])
def test_final_batch_cannot_be_retried(lab, state):
    batch_id = finished(lab, state)
    assert answers_and_states(lab.decide("retry", batch_id)) == [("illegal", state)]


@pytest.mark.parametrize("start", [None, True, False])
def test_batch_that_has_not_failed_cannot_be_retried(lab, start):
    batch_id = submit_batch(lab)
    if start is not None:
        lab.claim(start=start)
    [verdict] = lab.decide("retry", batch_id)
    assert verdict.answer == "illegal"
    assert lab.location(batch_id)[0] == verdict.state


def test_old_token_stays_invalid_after_a_retry(lab):
    batch_id = submit_batch(lab)
    [lease] = lab.claim()
    lab.fail(lease, permanent=True)
    lab.decide("retry", batch_id)
    assert lab.complete(lease)[0].answer == "refused"
    [again] = lab.claim()
    assert lab.complete(lease)[0].answer == "refused"
    assert lab.complete(again)[0].answer == "ok"


# --- erase -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", FINISHED)
def test_erasing_takes_payload_and_result_and_leaves_fingerprint_and_ledger(lab, state):
    batch_id = finished(lab, state)
    number = lab.number(batch_id)
    kept = (
        "select b.fingerprint, (select string_agg(e::text, ' ' order by version) "
        "from helix.event e where e.batch = b.id) from helix.batch b where b.id = %s"
    )
    before = lab.rows(kept, number)
    assert answers_and_states(lab.decide("erase", batch_id, reason="article 17")) == [("ok", state)]
    assert answers_and_states(lab.decide("erase", batch_id)) == [("repeat", state)]
    assert lab.rows(kept, number) == before
    assert lab.value("select payload::text from helix.batch where id = %s", number) is None
    results = "select result::text from helix.result where batch = %s and result is not null"
    assert lab.rows(results, number) == []
    assert lab.rows(
        "select kind, actor, detail from helix.decision where batch = %s order by id", number
    ) == [("erased", "ann", "article 17")]


@pytest.mark.parametrize("start", [None, True, False])
def test_unfinished_batch_cannot_be_erased(lab, start):
    batch_id = submit_batch(lab, payload={"patient": 7})
    if start is not None:
        lab.claim(start=start)
    assert lab.decide("erase", batch_id)[0].answer == "illegal"
    number = lab.number(batch_id)
    assert lab.value("select payload is not null from helix.batch where id = %s", number)


def test_erased_batch_cannot_be_retried(lab):
    """A worker would be handed work without its payload."""
    batch_id = finished(lab, State.FAILED)
    lab.decide("erase", batch_id)
    [verdict] = lab.decide("retry", batch_id)
    assert (verdict.answer, verdict.state) == ("illegal", State.FAILED)
    assert verdict.note == "its payload was erased"
    assert lab.claim() == []


# --- retire ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", FINISHED)
def test_retired_key_still_answers_duplicates(lab, state):
    batch_id = finished(lab, state)
    [before] = lab.submit("s1", payload={"patient": 7})
    number = lab.number(batch_id)
    head = lab.rows(
        "select entry, version, state::text, attempt, changed_at from helix.work where batch = %s",
        number,
    )
    assert retire(lab, state) == 1
    [after] = lab.submit("s1", payload={"patient": 7})
    assert (after.decision, after.state) == ("duplicate", state)
    assert after.receipt == before.receipt
    assert (
        lab.rows(
            "select entry, version, state::text, attempt, ended_at from helix.batch where id = %s",
            number,
        )
        == head
    )
    assert lab.rows(
        "select identity, raw, payload, limit_key, retired_at is not null,"
        " tombstone = helix.tombstone_hash(key, fingerprint, queue, entry, version, state, attempt,"
        " ended_at, retired_at, revision) from helix.batch where id = %s",
        number,
    ) == [(None, None, None, None, True, True)]
    for table in ("work", "result", "ended", "refusal"):
        query = f"select 1 from helix.{table} where batch = %s"
        assert lab.rows(query, number) == []
    assert answers_and_states(lab.decide("retry", batch_id)) == [("illegal", state)]
    assert answers_and_states(lab.decide("erase", batch_id)) == [("illegal", state)]
    assert answers_and_states(lab.decide("cancel", batch_id)) == [
        ("repeat" if state is State.CANCELLED else "illegal", state)
    ]


def test_zombie_is_refused_after_its_batch_was_retired(lab):
    submit_batch(lab)
    [lease] = lab.claim()
    lab.complete(lease)
    retire(lab, State.COMPLETED)
    for answers in (lab.complete(lease), lab.renew(lease), lab.fail(lease), lab.start(lease)):
        assert [answer.answer for answer in answers] == ["refused"]


def test_retention_takes_only_what_is_old_enough_oldest_first(lab):
    lab.submit_many(6)
    lab.complete(*lab.claim(3))
    [(between,)] = lab.rows("select clock_timestamp()")
    lab.complete(*lab.claim(3))
    assert retire(lab, State.FAILED) == 0
    assert retire(lab, State.COMPLETED, between, limit=2) == 2
    assert retire(lab, State.COMPLETED, between) == 1
    assert retire(lab, State.COMPLETED, between) == 0
    for table in ("work", "ended"):
        query = (
            f"select count(*) from helix.{table} f join helix.queue q on q.id = f.queue"
            " where q.name = %s"
        )
        assert lab.value(query, lab.q) == 3


def test_retention_takes_nothing_that_is_not_finished(lab):
    lab.submit_many(3)
    lab.claim(1)
    for state in State:
        assert retire(lab, state) == 0
    assert (
        lab.value(
            "select count(*) from helix.batch b join helix.work w on w.batch = b.id"
            " join helix.queue q on q.id = b.queue where q.name = %s and b.retired_at is null",
            lab.q,
        )
        == 3
    )


# --- who may -----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "retry", "erase"])
def test_unknown_batch_is_refused(lab, verb):
    [verdict] = lab.decide(verb, uuid.uuid4())
    assert (verdict.answer, verdict.state, verdict.note) == ("refused", None, "no such batch")


@pytest.mark.parametrize("verb", ["cancel", "retry", "erase"])
def test_foreign_batch_is_refused_like_an_unknown_one(lab, database, verb):
    batch_id = submit_batch(lab)
    with Lab(database, "app_b") as other:
        [verdict] = other.decide(verb, batch_id)
    assert (verdict.answer, verdict.state, verdict.note) == ("refused", None, "no such batch")
    assert lab.location(batch_id)[0] == "PENDING"


@pytest.mark.parametrize("call", ["cancel_v1", "retry_v1", "release_by_id_v1", "erase_v1"])
def test_calls_by_id_answer_in_the_order_of_the_ids(lab, call):
    leases = [lab.submit(f"s{number}") and lab.claim()[0] for number in range(8)]
    lab.fail(*leases, permanent=True)
    ids = [lease.batch_id for lease in leases]
    for order in (sorted(ids), sorted(ids, reverse=True), [uuid.UUID(int=1), *ids]):
        answers = lab.rows_as_client(
            f"select public_id from helix.{call}(%s::uuid[], 'ann', 'because')", order
        )
        assert [batch_id for (batch_id,) in answers] == order
