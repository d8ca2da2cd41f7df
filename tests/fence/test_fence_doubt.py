"""Ways into a doubt, and out of it: probes, people, drives and a restore."""

from __future__ import annotations

import pytest

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceLease, FenceResult
from helixqueue.errors import NotPermitted, Refused
from helixqueue.operate.recover import recover
from helixqueue.records.lease import Token
from helixqueue.states import FenceState
from tests.support.fence_desk import TIMES, Desk


def test_replayable_effects_are_driven_again_until_their_budget_is_spent(desk):
    options = {"replayable": True, "max_attempts": 3}
    for attempt in (1, 2, 3):
        told = desk.claim(**options)
        assert (told.decision, told.attempt) == ("granted", attempt)
        held = FenceLease(told.key, Token(told.epoch, desk.nonce, told.number))
        desk.run(fences.doubt(held, actor="w1", detail="timeout"))
        if attempt == 2:  # the first comes at once, then there is a pause
            early = desk.claim(**options)
            assert early.decision == "in_doubt"
            assert 0 < early.retry_after <= 2
        desk.pass_time(held, deadline=True)
    spent = desk.claim(**options)
    assert spent.decision == "in_doubt"
    assert "a person must look" in spent.note


def test_a_probe_that_finds_it_seals_what_it_found(desk):
    held = desk.hold()
    desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    doubted = desk.claim()
    found = FenceResult("json", b'{"id":9}', effect="re_9")
    told = desk.run(fences.probe(doubted, "applied", TIMES, actor="p", nonce=1, answer=found))
    assert (told.decision, told.effect) == ("sealed", "re_9")
    assert desk.claim().answer == b'{"id":9}'
    # The holder that comes back now is too late, even with the same words.
    assert desk.seal(held, b'{"id":9}', effect="re_9").decision == "fenced_out"


def test_a_probe_that_finds_nothing_is_believed_after_the_quiet_period_only(desk):
    held = desk.hold()
    desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    doubted = desk.claim()
    told = desk.run(fences.probe(doubted, "not_applied", TIMES, actor="p", nonce=1))
    assert told.decision == "in_doubt"
    assert 0 < told.retry_after <= TIMES.quiet
    desk.pass_time(held, deadline=True, quiet=True)
    told = desk.run(fences.probe(doubted, "not_applied", TIMES, actor="p", nonce=1))
    assert (told.decision, told.attempt) == ("granted", 2)
    assert desk.seal(held).decision == "fenced_out"
    assert desk.story(held)[:4] == ["claimed", "failed", "in_doubt", "probe_unknown"]


def test_a_probe_that_cannot_tell_leaves_the_doubt(desk):
    held = desk.hold()
    desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    desk.pass_time(held, deadline=True, quiet=True)
    told = desk.run(fences.probe(desk.claim(), "unknown", TIMES, actor="p", nonce=1))
    assert told.decision == "in_doubt"
    assert desk.state(held) is FenceState.IN_DOUBT


def test_a_probe_of_a_fence_that_moved_on_meanwhile_changes_nothing(desk):
    """It was driven again and failed again: what the probe saw was the first try."""
    desk.run(fences.doubt(desk.hold(replayable=True), actor="w1", detail="timeout"))
    doubted = desk.claim()
    again = desk.hold(replayable=True)
    found = FenceResult("json", b"2")
    for _ in range(2):
        for finding in ("applied", "not_applied", "unknown"):
            answer = found if finding == "applied" else None
            call = fences.probe(doubted, finding, TIMES, actor="p", nonce=1, answer=answer)
            assert desk.run(call).decision == "stale"
        desk.run(fences.doubt(again, actor="w1", detail="timeout"))
        desk.pass_time(again, quiet=True)
    assert desk.seal(again, b"1").decision == "sealed"
    assert desk.claim().answer == b"1"


@pytest.mark.parametrize("answer", [None, FenceResult("json", b'"found it"', effect="e1")])
def test_a_person_resolves_a_doubt_by_name_and_reason(database, desk, answer):
    held = desk.hold()
    doubted = desk.run(fences.doubt(held, actor="w1", detail="timeout"))

    def resolve(run, **options):
        options = {"actor": "ann", "reason": "looked into the ledger"} | options
        return run(fences.resolve(held.key, doubted.version, TIMES, answer=answer, **options))

    with Desk(database, "operator") as operator:
        for missing in ({"actor": " "}, {"reason": ""}):
            with pytest.raises(Refused, match="who decides and why"):
                resolve(operator.run, **missing)
        with pytest.raises(NotPermitted):
            resolve(desk.run)
        told = resolve(operator.run)
        assert told.state is (FenceState.RELEASED if answer is None else FenceState.SEALED)
        assert resolve(operator.run).decision == "stale"
    assert desk.seal(held).decision == "fenced_out"
    assert desk.claim().decision == ("granted" if answer is None else "repeated")


def test_two_people_cannot_decide_past_each_other(database, desk):
    held = desk.hold(replayable=True)
    seen = desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    again = desk.hold(replayable=True)
    desk.run(fences.doubt(again, actor="w1", detail="timeout"))
    with Desk(database, "operator") as operator:
        late = fences.resolve(
            held.key, seen.version, TIMES, actor="ann", reason="old news", answer=None
        )
        assert operator.run(late).decision == "stale"
    assert desk.state(again) is FenceState.IN_DOUBT


def test_recover_puts_started_fences_in_doubt_and_their_holders_out(database, desk):
    started, claimed = desk.hold("started"), desk.hold("claimed", start=False)
    doubted = desk.hold("doubted")
    desk.run(fences.doubt(doubted, actor="w1", detail="x"))
    with database.connect("operator") as connection:
        assert recover(connection, reason="restored", actor="ann").doubted >= 1
    assert desk.state(started) is FenceState.IN_DOUBT
    assert desk.state(claimed) is FenceState.RELEASED
    for held in (started, claimed, doubted):
        assert desk.seal(held).decision == "fenced_out"
    assert desk.claim("started").decision == "in_doubt"
    assert desk.claim("claimed").decision == "granted"
