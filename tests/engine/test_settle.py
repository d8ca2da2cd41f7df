"""Start, renew, settle, release: what the owner of a lease may do with it, and what it costs."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helixqueue.engine import calls
from helixqueue.errors import InvalidPayload, Refused
from helixqueue.states import State
from tests.support.lab import Lab, completion, failure

pytestmark = pytest.mark.module_database


@pytest.fixture
def lab(database):
    with Lab(database) as lab:
        lab.queue(backoff_seconds=0)
        lab.submit("s1")
        yield lab


def verdicts(answers):
    return [(answer.answer, answer.state) for answer in answers]


def due_in(lab, lease):
    """How long the batch has to wait yet."""
    [(cause, due)] = lab.rows(
        "select cause::text, due - clock_timestamp() from helix.work"
        " where batch = %s and not pending and state = 'PENDING'",
        lease.batch,
    )
    assert cause == "delay"
    return due


def outcome(lab, lease):
    [row] = lab.rows(
        "select w.state::text, w.reason::text, r.failure, r.detail, r.result::text"
        " from helix.work w join helix.ended e on e.queue = w.queue"
        " and e.ending = helix.ending(w.state) and e.at = w.changed_at and e.batch = w.batch"
        " left join helix.result r on r.batch = w.batch and r.version = w.version"
        " where w.batch = %s",
        lease.batch,
    )
    return row


# --- start -------------------------------------------------------------------------------------


def test_start_happens_once(lab):
    [lease] = lab.claim(start=False)
    assert verdicts(lab.start(lease)) == [("ok", State.RUNNING)]
    assert verdicts(lab.start(lease)) == [("repeat", State.RUNNING)]
    assert lab.location(lease.batch_id) == ("RUNNING", 3, 1, "active")
    assert len(lab.history(lease.batch_id)) == 3


def test_start_of_a_batch_claimed_as_started_is_a_repeat(lab):
    [lease] = lab.claim(start=True)
    assert verdicts(lab.start(lease)) == [("repeat", State.RUNNING)]


def test_nothing_starts_after_its_end(lab):
    [lease] = lab.claim()
    lab.complete(lease)
    assert verdicts(lab.start(lease)) == [("refused", State.COMPLETED)]


# --- renew -------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [True, False])
def test_renewal_moves_the_deadline_and_nothing_else(lab, start):
    [lease] = lab.claim(start=start)
    before = (lab.location(lease.batch_id), lab.history(lease.batch_id))
    lab.pass_time(lease.batch)
    [answer] = lab.renew(lease)
    assert (answer.answer, answer.state, answer.late) == ("ok", lease.state, True)
    assert lab.renew(lease)[0].late is False
    assert (lab.location(lease.batch_id), lab.history(lease.batch_id)) == before
    left = lab.value(
        "select deadline - clock_timestamp() from helix.work where batch = %s", lease.batch
    )
    assert timedelta(seconds=100) < left <= timedelta(seconds=120)


def test_renewals_of_many_are_answered_one_by_one(lab):
    lab.submit_many(4)
    leases = lab.claim(5)
    lab.complete(leases[0])
    lab.decide("cancel", leases[1].batch_id)
    answers = {answer.batch: answer.answer for answer in lab.renew(*leases)}
    assert [answers[lease.batch] for lease in leases] == ["refused", "refused", "ok", "ok", "ok"]


# --- complete ----------------------------------------------------------------------------------


def test_completion_keeps_the_result_and_ends_the_lease(lab):
    [lease] = lab.claim()
    assert verdicts(lab.complete(lease, result='{"reads": 7,"x":1.50}')) == [
        ("ok", State.COMPLETED)
    ]
    assert lab.location(lease.batch_id) == ("COMPLETED", 4, 1, "outcome")
    # The very text, as it came.
    assert outcome(lab, lease) == ("COMPLETED", "completed", None, None, '{"reads": 7,"x":1.50}')
    assert lab.history(lease.batch_id)[-1] == ("COMPLETED", "completed")


def test_result_is_not_needed(lab):
    [lease] = lab.claim()
    lab.complete(lease, result=None)
    assert outcome(lab, lease)[-1] is None


def test_unstarted_batch_cannot_be_completed(lab):
    [lease] = lab.claim(start=False)
    assert verdicts(lab.complete(lease)) == [("illegal", State.ASSIGNED)]
    assert lab.location(lease.batch_id) == ("ASSIGNED", 2, 1, "active")
    # It is no stale write, so it leaves no refusal, and the lease still stands.
    assert lab.rows("select 1 from helix.refusal where batch = %s", lease.batch) == []
    assert verdicts(lab.start(lease)) == [("ok", State.RUNNING)]
    assert verdicts(lab.complete(lease)) == [("ok", State.COMPLETED)]


def test_repeated_completion_is_a_repeat_and_another_outcome_is_refused(lab):
    [lease] = lab.claim()
    lab.complete(lease, result='{"reads":7}')
    assert verdicts(lab.complete(lease, result='{"reads":8}')) == [("repeat", State.COMPLETED)]
    assert verdicts(lab.fail(lease)) == [("refused", State.COMPLETED)]
    assert verdicts(lab.release(lease)) == [("refused", State.COMPLETED)]
    assert outcome(lab, lease)[-1] == '{"reads":7}'


@pytest.mark.parametrize("stored", [None, "{}", '{"reads":7}'])
@pytest.mark.parametrize("again", [None, "{}", '{"reads":7}', '{"reads":8}', '{"reads": 7}'])
def test_repeat_with_another_result_is_reported_as_a_mismatch(lab, stored, again):
    """A worker that computed something else must not believe that this is what was kept."""
    lab.submit("s2")
    first, second = lab.claim(2)
    assert [answer.mismatch for answer in lab.complete(first, second, result=stored)] == [False] * 2
    differs = again != stored
    for lease in (first, second._replace(token=second.own_token)):
        [answer] = lab.complete(lease, result=again)
        assert (answer.answer, answer.mismatch) == ("repeat", differs)
    # The same for many, and beside a claim.
    assert [answer.mismatch for answer in lab.complete(first, second, result=again)] == [
        differs
    ] * 2
    claimed = lab.claim_result(1, settle=[completion(first, again), completion(second, again)])
    assert [(answer.answer, answer.mismatch) for answer in claimed.settled] == [
        ("repeat", differs)
    ] * 2
    assert [outcome(lab, lease)[-1] for lease in (first, second)] == [stored] * 2
    assert (
        lab.rows("select 1 from helix.refusal where batch = any (%s)", [first.batch, second.batch])
        == []
    )


def test_repeat_of_a_failure_is_no_mismatch(lab):
    [lease] = lab.claim()
    lab.fail(lease, permanent=True, detail="this")
    [answer] = lab.fail(lease, permanent=True, detail="that")
    assert (answer.answer, answer.mismatch) == ("repeat", False)


def test_late_completion_of_an_unreaped_lease_counts_and_is_marked(lab):
    """The token decides, not the deadline."""
    [lease] = lab.claim()
    lab.pass_time(lease.batch)
    [answer] = lab.complete(lease)
    assert (answer.answer, answer.late) == ("ok", True)
    assert lab.value(
        "select late from helix.event where batch = %s and to_state = 'COMPLETED'", lease.batch
    )


@pytest.mark.parametrize("result", ["{", "", "{'a':1}", "nothing"])
def test_result_that_is_not_json_settles_nothing(lab, result):
    lab.submit("s2")
    first, second = lab.claim(2)
    with pytest.raises(InvalidPayload, match="json"):
        lab.settle(completion(first), completion(second, result))
    assert [lab.location(lease.batch_id)[0] for lease in (first, second)] == ["RUNNING"] * 2
    assert verdicts(lab.complete(first, second)) == [("ok", State.COMPLETED)] * 2


def test_result_may_be_one_mebibyte_and_no_more(lab):
    lab.submit("s2")
    first, second = lab.claim(2)
    largest = '"' + "x" * (2**20 - 2) + '"'
    assert verdicts(lab.complete(first, result=largest)) == [("ok", State.COMPLETED)]
    with pytest.raises(Refused):
        lab.complete(second, result=largest[:-1] + 'x"')
    assert lab.location(second.batch_id)[0] == "RUNNING"


# --- fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [True, False])
def test_failure_with_attempts_left_is_retried(lab, start):
    [lease] = lab.claim(start=start)
    assert verdicts(lab.fail(lease, detail="pipette 🧪 broke")) == [("ok", State.PENDING)]
    assert lab.history(lease.batch_id)[-1] == ("PENDING", "failed")
    [again] = lab.claim()
    assert (again.batch, again.attempt) == (lease.batch, 2)
    assert again.token != lease.token
    assert verdicts(lab.fail(lease)) == [("repeat", State.RUNNING)]
    assert verdicts(lab.complete(lease)) == [("refused", State.RUNNING)]


@pytest.mark.parametrize(
    ("attempt", "least", "most"), [(1, 50, 100), (2, 100, 200), (3, 200, 400), (4, 300, 600)]
)
def test_backoff_doubles_with_jitter_up_to_its_maximum(lab, attempt, least, most):
    for _ in range(attempt - 1):
        lab.fail(*lab.claim())
    lab.queue(backoff_seconds=100, backoff_max_seconds=600)
    [lease] = lab.claim()
    lab.fail(lease)
    wait = due_in(lab, lease)
    assert timedelta(seconds=least - 5) < wait <= timedelta(seconds=most)
    assert lab.claim() == []
    lab.pass_time(lease.batch)
    lab.run(calls.promote())
    assert lab.claim()[0].attempt == attempt + 1


def test_jitter_spreads_batches_that_failed_together(lab):
    lab.queue(backoff_seconds=1000, backoff_max_seconds=1000)
    lab.submit_many(20)
    lab.fail(*lab.claim(21))
    waits = lab.rows(
        "select w.due from helix.work w join helix.queue q on q.id = w.queue"
        " where q.name = %s and w.cause = 'delay' order by 1",
        lab.q,
    )
    assert len(waits) == 21
    assert timedelta(seconds=50) < waits[-1][0] - waits[0][0] <= timedelta(seconds=500)


def test_worker_can_set_the_retry_delay(lab):
    lab.queue(backoff_seconds=1)
    [lease] = lab.claim()
    lab.fail(lease, after_seconds=3600)
    assert timedelta(seconds=3590) < due_in(lab, lease) <= timedelta(seconds=3600)
    lab.pass_time(lease.batch)
    lab.run(calls.promote())
    lab.fail(*lab.claim(), after_seconds=0)
    assert lab.claim()[0].attempt == 3


def test_failure_of_the_last_attempt_ends_as_failed(lab):
    lab.queue(max_attempts=3)
    for attempt in (1, 2, 3):
        [lease] = lab.claim()
        assert lease.attempt == attempt
        [answer] = lab.fail(lease, failure="OutOfMemory", detail="24 GB")
    assert answer.state is State.FAILED
    assert outcome(lab, lease) == ("FAILED", "failed", "OutOfMemory", "24 GB", None)
    assert lab.claim() == []


@pytest.mark.parametrize("start", [True, False])
def test_permanent_failure_is_not_retried(lab, start):
    [lease] = lab.claim(start=start)
    assert verdicts(lab.fail(lease, permanent=True)) == [("ok", State.FAILED)]
    assert lab.location(lease.batch_id)[2:] == (1, "outcome")
    assert verdicts(lab.fail(lease, permanent=True)) == [("repeat", State.FAILED)]


def test_failure_without_a_class_is_still_a_failure(lab):
    [lease] = lab.claim()
    lab.fail(lease, failure=None, permanent=True)
    assert outcome(lab, lease)[2:4] == ("failed", None)


def test_any_text_without_nul_comes_back_from_a_failure(lab):
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            min_size=1,
            max_size=5,
        )
    )
    def come_back(details):
        lab.queue(unknown="accept")
        lab.submit(*[None] * len(details))
        leases = lab.claim(len(details))
        lab.settle(
            *[
                failure(lease, permanent=True, detail=detail)
                for lease, detail in zip(leases, details, strict=True)
            ]
        )
        assert [outcome(lab, lease)[3] for lease in leases] == details

    lab.claim()
    come_back()


def test_nul_is_refused_and_settles_nothing(lab):
    [lease] = lab.claim()
    with pytest.raises(Refused) as refused:
        lab.fail(lease, permanent=True, detail="a\0b")
    assert type(refused.value) is Refused
    assert lab.location(lease.batch_id) == ("RUNNING", 3, 1, "active")


def test_oversized_failure_report_is_truncated_and_accepted(lab):
    [lease] = lab.claim()
    lab.fail(lease, permanent=True, detail="\N{DNA DOUBLE HELIX}" * 70_000, failure="x" * 300)
    assert lab.location(lease.batch_id)[0] == "FAILED"
    [(detail, failure)] = lab.rows(
        "select length(detail), length(failure) from helix.result where batch = %s", lease.batch
    )
    assert (detail, failure) == (16_000, 60)


def test_unknown_outcome_settles_nothing(lab):
    [lease] = lab.claim()
    with pytest.raises(Exception, match="done"):
        lab.settle(type(completion(lease))(lease.batch, lease.token, "done"))
    assert lab.location(lease.batch_id)[0] == "RUNNING"


@pytest.mark.parametrize("outcome", ["lost", "released", None])
def test_stale_settlement_with_an_outcome_that_is_none_is_an_error(lab, outcome):
    """These words are reasons of other steps, so the answer to a stale token accepted them."""
    [lease] = lab.claim()
    lab.complete(lease)
    with pytest.raises(Refused, match="expected the outcome completed or failed"):
        lab.settle(type(completion(lease))(lease.batch, lease.token, outcome))


@pytest.mark.parametrize("order", [1, -1])
def test_one_token_twice_in_a_call_ends_its_lease_once_and_gets_two_answers(lab, order):
    lab.submit_many(3)
    twice, other, both, failing = lab.claim(4)
    settlements = [
        *(completion(twice, '{"n":1}'), completion(twice, '{"n":2}'), completion(other)),
        *(completion(both), failure(both), failure(failing), failure(failing)),
    ][::order]
    answers = lab.settle(*settlements)
    answered = [
        sorted((item.answer, item.mismatch) for item in answers if item.batch == lease.batch)
        for lease in (twice, other, both, failing)
    ]
    assert answered == [
        [("ok", False), ("repeat", True)],
        [("ok", False)],
        [("ok", False), ("refused", False)],
        [("ok", False), ("repeat", False)],
    ]
    assert [lab.location(lease.batch_id)[0] for lease in (twice, both, failing)] == [
        *("COMPLETED", "COMPLETED", "PENDING")
    ]


@pytest.mark.parametrize("write", ["start", "renew", "complete", "fail", "release"])
def test_token_under_the_name_of_another_worker_is_refused(lab, write):
    [lease] = lab.claim(start=write != "start")
    with Lab(lab.database, worker="thief", q=lab.q) as thief:
        settle = {"complete": completion, "fail": failure}.get(write)
        call = getattr(thief, write) if settle is None else lambda item: thief.settle(settle(item))
        [answer] = call(lease)
        assert (answer.answer, answer.owner) == ("refused", "w1")
        assert lab.rows("select why from helix.refusal where batch = %s", lease.batch) == [
            ("the token is that of w1",)
        ]
    if write == "start":
        lab.start(lease)
    assert verdicts(lab.complete(lease)) == [("ok", State.COMPLETED)]


@pytest.mark.parametrize(("claimer", "writer"), [("pool", "app_a"), ("app_a", "pool")])
def test_worker_settles_on_a_connection_of_another_login(database, lab, claimer, writer):
    """A handler's own transaction may use the login of the application."""
    lab.submit("s")
    with Lab(database, claimer, q=lab.q) as claims, Lab(database, writer, q=lab.q) as settles:
        [lease] = claims.claim(worker="gpu-1")
        [answer] = settles.settle(completion(lease), worker="gpu-2")
        assert answer.answer == "refused"
        [answer] = settles.settle(completion(lease), worker="gpu-1")
        assert answer.answer == "ok"


def test_name_of_a_worker_is_bounded(lab):
    """The ledger, the queue and the refusals all carry it: a megabyte would be written for each."""
    for write in (
        lambda: lab.claim(worker="w" * 256),
        lambda: lab.run(calls.hello(worker="w" * 256)),
    ):
        with pytest.raises(Refused):
            write()
    lab.submit("s2")
    [*_, lease] = lab.claim(2, worker="w" * 255)
    assert verdicts(lab.settle(completion(lease), worker="w" * 255)) == [("ok", State.COMPLETED)]


# --- release -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [True, False])
def test_release_costs_no_attempt(lab, start):
    lab.queue(max_attempts=1)
    for _ in range(4):
        [lease] = lab.claim(start=start)
        assert lease.attempt == 1
        assert verdicts(lab.release(lease, detail="draining")) == [("ok", State.PENDING)]
    assert lab.location(lease.batch_id)[2:] == (0, "ready")
    assert lab.history(lease.batch_id)[-1] == ("PENDING", "released")
    assert verdicts(lab.release(lease)) == [("repeat", State.PENDING)]
    assert verdicts(lab.complete(lease)) == [("refused", State.PENDING)]


def test_release_does_not_wait(lab):
    lab.queue(backoff_seconds=1000)
    [lease] = lab.claim()
    lab.release(lease)
    assert lab.claim()[0].batch == lease.batch


# --- crash -------------------------------------------------------------------------------------


def test_crash_counts_as_an_attempt_and_poison_ends(lab):
    lab.queue(max_attempts=3, backoff_seconds=1000)
    for attempt in (1, 2, 3):
        [lease] = lab.claim()
        assert lease.attempt == attempt
        assert lab.run(calls.reap(actor="reaper")) == 0
        lab.pass_time(lease.batch)
        assert lab.run(calls.reap(actor="reaper")) == 1
    state, reason, failure, detail, _ = outcome(lab, lease)
    assert (state, reason, failure) == ("FAILED", "lost", "lost")
    assert detail.startswith("w1 did not renew before ")
    assert verdicts(lab.complete(lease)) == [("refused", State.FAILED)]
    assert lab.claim() == []


def test_claim_reaps_what_its_tenants_lost(database, lab):
    """Nobody need run a reaper (G6)."""
    [lease] = lab.claim()
    lab.pass_time(lease.batch)
    with Lab(database, "app_a", worker="w2", q=lab.q) as other:
        [again] = other.claim()
    assert (again.batch, again.attempt) == (lease.batch, 2)
    assert lab.history(lease.batch_id)[-3:] == [
        ("PENDING", "lost"),
        ("ASSIGNED", "claimed"),
        ("RUNNING", "started"),
    ]
    [answer] = lab.complete(lease)
    assert (answer.answer, answer.owner) == ("refused", "w2")
    [(worker, owner, times)] = lab.rows(
        "select worker, owner, times from helix.refusal where batch = %s", lease.batch
    )
    assert (worker, owner, times) == ("w1", "w2", 1)


def test_reaper_respects_its_limit(lab):
    lab.submit_many(4)
    leases = lab.claim(5)
    lab.pass_time(*[lease.batch for lease in leases])
    assert [lab.run(calls.reap(actor="r", limit=2)) for _ in range(3)] == [2, 2, 1]


def test_mixed_settlement_is_answered_row_by_row(lab):
    lab.submit_many(3)
    first, second, third, four = lab.claim(4)
    lab.release(four)
    answers = lab.settle(
        completion(first), failure(second, permanent=True), failure(third), completion(four)
    )
    assert {(answer.batch, answer.answer, answer.state) for answer in answers} == {
        (first.batch, "ok", State.COMPLETED),
        (second.batch, "ok", State.FAILED),
        (third.batch, "ok", State.PENDING),
        (four.batch, "refused", State.PENDING),
    }


def test_whole_settlement_is_undone_with_its_transaction(lab):
    [lease] = lab.claim()
    with lab.store.connection.transaction(force_rollback=True):
        assert verdicts(lab.complete(lease)) == [("ok", State.COMPLETED)]
    assert lab.location(lease.batch_id)[0] == "RUNNING"
    assert verdicts(lab.complete(lease)) == [("ok", State.COMPLETED)]


def test_events_carry_no_payload_and_no_secret(lab):
    [lease] = lab.claim()
    lab.complete(lease, result=json.dumps({"patient": "secret"}))
    text = lab.value(
        "select string_agg(e::text, ' ') from helix.event e where batch = %s", lease.batch
    )
    assert "secret" not in text
    assert str(lease.token.nonce) not in text
