"""Every step and every decision of a fence is recorded in its history."""

from __future__ import annotations

import pytest

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceLease, FenceResult
from helixqueue.records.lease import Token
from tests.support.fence_caller import TIMES, FenceCaller


def doubted(caller):
    held = caller.hold()
    caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    return held


def repeated(caller):
    caller.seal(caller.hold())
    caller.claim()


def expired(caller):
    held = caller.hold()
    caller.seal(held)
    caller.expire(held, answer=True)
    caller.claim()


def in_progress(caller):
    caller.hold()
    caller.claim()


def mismatch(caller):
    caller.hold()
    caller.claim(request='{"amount":6}')


def in_doubt(caller):
    doubted(caller)
    caller.claim()


def probe_unknown(caller):
    doubted(caller)
    caller.run(fences.probe(caller.claim(), "unknown", TIMES, actor="p", nonce=1))


def unknown(caller):
    caller.claim(None)


def fenced_out(caller):
    held = caller.hold()
    stranger = FenceLease(
        held.key, Token(held.token.epoch, held.token.nonce + 1, held.token.number)
    )
    caller.seal(stranger)


def claimed(caller):
    caller.hold()


def started(caller):
    caller.run(fences.start(caller.hold(start=False), actor="w1"))


def reclaimed(caller):
    caller.expire(caller.hold(start=False), deadline=True)
    caller.claim()


def sealed(caller):
    caller.seal(caller.hold())


def released(caller):
    caller.run(fences.release(caller.hold(), TIMES, actor="w1", detail="refused"))


def failed(caller):
    doubted(caller)


def lapsed(caller):
    caller.expire(caller.hold(), deadline=True)
    caller.claim()


def probed(caller):
    """Both findings: not applied gives the fence to the prober, applied seals it."""
    caller.expire(doubted(caller), quiet=True)
    answer = caller.run(fences.probe(caller.claim(), "not_applied", TIMES, actor="p", nonce=7))
    held = FenceLease(answer.key, Token(answer.epoch, 7, answer.number))
    caller.run(fences.doubt(held, actor="w1", detail="again"))
    found = FenceResult("json", b"1")
    caller.run(fences.probe(caller.claim(), "applied", TIMES, actor="p", nonce=8, result=found))


def rerun(caller):
    doubted(caller)
    caller.claim(replayable=True)


def resolved(caller):
    held = caller.hold()
    found = caller.run(fences.doubt(held, actor="w1", detail="timeout"))
    with FenceCaller(caller.database, "operator") as operator:
        operator.run(
            fences.resolve(held.key, found.version, TIMES, actor="ann", reason="saw", result=None)
        )


def corrected(caller):
    resolved(caller)
    [row] = caller.run(fences.list_fences(name=caller.name)).rows
    with FenceCaller(caller.database, "operator") as operator:
        operator.run(
            fences.resolve(
                row.key, row.version, TIMES, actor="ann", reason="found it", correct=True,
                result=FenceResult("json", b"1"),
            )
        )  # fmt: skip


def recovered(caller):
    caller.hold()
    caller.database.rows("select helix.recover_v1('ann', 'restored')", role="operator")


DECISIONS = [repeated, expired, in_progress, mismatch, in_doubt, probe_unknown, unknown, fenced_out]
STEPS = [claimed, started, reclaimed, sealed, released, failed, lapsed, probed, rerun, resolved,
         corrected, recovered]  # fmt: skip


def test_every_reason_and_decision_of_the_database_has_a_case(database):
    def words(kind):
        found = database.rows("select unnest(enum_range(null::helix.%s))::text" % kind)  # noqa: UP031
        return {word for (word,) in found}

    assert words("fence_decision_kind") == {case.__name__ for case in DECISIONS}
    assert words("fence_reason") == {case.__name__ for case in STEPS}


@pytest.mark.parametrize("case", [*STEPS, *DECISIONS], ids=lambda case: case.__name__)
def test_every_decision_is_recorded_with_its_actor(caller, case):
    case(caller)
    [row] = caller.run(fences.list_fences(name=caller.name)).rows
    history = caller.run(fences.fence_history(row.key))
    events = [event for event in history if event.what == case.__name__]
    assert len(events) == (2 if case is probed else 1)
    for event in events:
        assert event.actor
        assert (event.to_state is None) is (case in DECISIONS)
    if case is probed:
        assert [event.to_state for event in events] == ["EFFECT_STARTED", "SEALED"]
