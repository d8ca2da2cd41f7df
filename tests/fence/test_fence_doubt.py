"""The start and the end of a doubt: probes, operators, retries and a restore."""

from __future__ import annotations

import pytest

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceLease, FenceResult
from helixqueue.errors import NotPermitted, Refused
from helixqueue.fence.receipt import downstream_key
from helixqueue.operate.recover import recover
from helixqueue.records.lease import Token
from helixqueue.states import FenceState
from tests.support.fence_caller import TIMES, FenceCaller


def test_replayable_effect_is_retried_until_max_attempts(caller):
    options = {"replayable": True, "max_attempts": 3}
    for attempt in (1, 2, 3):
        claimed = caller.claim(**options)
        assert (claimed.decision, claimed.attempt) == ("granted", attempt)
        held = FenceLease(claimed.key, Token(claimed.epoch, caller.nonce, claimed.number))
        caller.run(fences.doubt(held, actor="w1", detail="timeout"))
        if attempt == 2:  # the first retry is immediate, the second delayed
            early = caller.claim(**options)
            assert early.decision == "in_doubt"
            assert 0 < early.retry_after <= 2
        caller.expire(held, deadline=True)
    spent = caller.claim(**options)
    assert spent.decision == "in_doubt"
    assert spent.note == "timeout; no attempts left after 3"


def test_probe_that_finds_the_effect_seals_its_result(caller):
    held = caller.hold()
    caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    doubted = caller.claim()
    found = FenceResult("json", b'{"id":9}', effect="re_9")
    answer = caller.run(fences.probe(doubted, "applied", TIMES, actor="p", nonce=1, result=found))
    assert (answer.decision, answer.effect) == ("sealed", "re_9")
    assert caller.claim().answer == b'{"id":9}'
    # The holder is too late, even with the same result.
    assert caller.seal(held, b'{"id":9}', effect="re_9").decision == "fenced_out"


def test_not_applied_counts_only_after_the_quiet_period(caller):
    held = caller.hold()
    caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    doubted = caller.claim()
    answer = caller.run(fences.probe(doubted, "not_applied", TIMES, actor="p", nonce=1))
    assert answer.decision == "in_doubt"
    assert 0 < answer.retry_after <= TIMES.quiet
    caller.expire(held, deadline=True, quiet=True)
    answer = caller.run(fences.probe(doubted, "not_applied", TIMES, actor="p", nonce=1))
    assert (answer.decision, answer.attempt) == ("granted", 2)
    assert caller.seal(held).decision == "fenced_out"
    assert caller.story(held)[:4] == ["claimed", "failed", "in_doubt", "probe_unknown"]


def test_unknown_probe_keeps_the_doubt(caller):
    held = caller.hold()
    caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    caller.expire(held, deadline=True, quiet=True)
    claimed = caller.run(fences.probe(caller.claim(), "unknown", TIMES, actor="p", nonce=1))
    assert claimed.decision == "in_doubt"
    assert caller.state(held) is FenceState.IN_DOUBT


def test_stale_probe_changes_nothing(caller):
    """The effect was executed again and failed again: the probe looked at the first attempt."""
    caller.run(fences.doubt(caller.hold(replayable=True), actor="w1", detail="timeout"))
    doubted = caller.claim()
    again = caller.hold(replayable=True)
    found = FenceResult("json", b"2")
    for _ in range(2):
        for finding in ("applied", "not_applied", "unknown"):
            answer = found if finding == "applied" else None
            call = fences.probe(doubted, finding, TIMES, actor="p", nonce=1, result=answer)
            assert caller.run(call).decision == "stale"
        caller.run(fences.doubt(again, actor="w1", detail="timeout"))
        caller.expire(again, quiet=True)
    assert caller.seal(again, b"1").decision == "sealed"
    assert caller.claim().answer == b"1"


@pytest.mark.parametrize("answer", [None, FenceResult("json", b'"found it"', effect="e1")])
def test_operator_resolves_a_doubt_with_name_and_reason(database, caller, answer):
    held = caller.hold()
    doubted = caller.run(fences.doubt(held, actor="w1", detail="timeout"))

    def resolve(run, **options):
        options = {"actor": "ann", "reason": "looked into the ledger"} | options
        return run(fences.resolve(held.key, doubted.version, TIMES, result=answer, **options))

    with FenceCaller(database, "operator") as operator:
        for missing in ({"actor": " "}, {"reason": ""}):
            with pytest.raises(Refused, match="the name of the operator and a reason"):
                resolve(operator.run, **missing)
        with pytest.raises(NotPermitted):
            resolve(caller.run)
        found = resolve(operator.run)
        assert found.state is (FenceState.RELEASED if answer is None else FenceState.SEALED)
        assert resolve(operator.run).decision == "stale"
    assert caller.seal(held).decision == "fenced_out"
    assert caller.claim().decision == ("granted" if answer is None else "repeated")


def test_second_operator_with_a_stale_version_decides_nothing(database, caller):
    held = caller.hold(replayable=True)
    found = caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    again = caller.hold(replayable=True)
    caller.run(fences.doubt(again, actor="w1", detail="timeout"))
    with FenceCaller(database, "operator") as operator:
        late = fences.resolve(
            held.key, found.version, TIMES, actor="ann", reason="old news", result=None
        )
        assert operator.run(late).decision == "stale"
    assert caller.state(again) is FenceState.IN_DOUBT


def resolve(caller, lease, result, **options):
    row = caller.run(fences.find_fence(lease.key))
    with FenceCaller(caller.database, "operator") as operator:
        return operator.run(
            fences.resolve(lease.key, row.version, TIMES, result=result, actor="ann", **options)
        )


def test_wrong_resolution_can_be_corrected_and_both_are_on_record(database, caller):
    """An operator resolves the wrong way: without a correction the key would stay wrong."""
    lease = caller.hold()
    caller.run(fences.doubt(lease, actor="w1", detail="timeout"))
    wrong, right = FenceResult("json", b'"wrong"', effect="e1"), FenceResult("json", b'"right"')
    resolve(caller, lease, wrong, reason="mixed up two orders")
    assert caller.claim().answer == b'"wrong"'
    assert resolve(caller, lease, None, reason="not found", correct=True).decision == "done"
    assert caller.state(lease) is FenceState.RELEASED
    assert resolve(caller, lease, right, reason="found", correct=True).decision == "sealed"
    assert resolve(caller, lease, right, reason="with its id", correct=True).decision == "sealed"
    reply = caller.claim()
    unnamed = downstream_key(lease.key)
    assert (reply.answer, reply.effect, reply.note) == (b'"right"', unnamed, "corrected")
    history = caller.run(fences.fence_history(lease.key))
    assert [(event.to_state, event.detail) for event in history if event.what == "corrected"] == [
        ("RELEASED", "not found"),
        ("SEALED", "found"),
        ("SEALED", "with its id"),
    ]
    assert {event.actor for event in history if event.what == "corrected"} == {"ann"}


def test_correction_needs_a_resolution_as_the_last_step(caller):
    """A result that the holder sealed, or a key that was claimed again, is not corrected."""
    sealed = caller.hold("sealed")
    caller.seal(sealed)
    doubted = caller.hold("doubted")
    caller.run(fences.doubt(doubted, actor="w1", detail="timeout"))
    for lease in (sealed, doubted):
        assert resolve(caller, lease, None, reason="x", correct=True).decision == "stale"
    resolve(caller, doubted, None, reason="not found")
    again = caller.hold("doubted")
    result = FenceResult("json", b"1")
    assert resolve(caller, again, result, reason="x", correct=True).decision == "stale"
    assert caller.state(again) is FenceState.EFFECT_STARTED


def test_recover_puts_started_fences_in_doubt_and_ends_their_tokens(database, caller):
    started, claimed = caller.hold("started"), caller.hold("claimed", start=False)
    doubted = caller.hold("doubted")
    caller.run(fences.doubt(doubted, actor="w1", detail="x"))
    with database.connect("operator") as connection:
        assert recover(connection, reason="restored", actor="ann").doubted >= 1
    assert caller.state(started) is FenceState.IN_DOUBT
    assert caller.state(claimed) is FenceState.RELEASED
    for held in (started, claimed, doubted):
        assert caller.seal(held).decision == "fenced_out"
    assert caller.claim("started").decision == "in_doubt"
    assert caller.claim("claimed").decision == "granted"
