"""Every word that a fence's story can have is there when it should be: steps, and decisions."""

from __future__ import annotations

import pytest

from helixqueue.engine import fences
from helixqueue.engine.fences import FenceLease, FenceResult
from helixqueue.records.lease import Token
from tests.support.fence_desk import TIMES, Desk


def doubted(desk):
    held = desk.hold()
    desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    return held


def repeated(desk):
    desk.seal(desk.hold())
    desk.claim()


def expired(desk):
    held = desk.hold()
    desk.seal(held)
    desk.pass_time(held, answer=True)
    desk.claim()


def in_progress(desk):
    desk.hold()
    desk.claim()


def mismatch(desk):
    desk.hold()
    desk.claim(request='{"amount":6}')


def in_doubt(desk):
    doubted(desk)
    desk.claim()


def probe_unknown(desk):
    doubted(desk)
    desk.run(fences.probe(desk.claim(), "unknown", TIMES, actor="p", nonce=1))


def unknown(desk):
    desk.claim(None)


def fenced_out(desk):
    held = desk.hold()
    stranger = FenceLease(
        held.key, Token(held.token.epoch, held.token.nonce + 1, held.token.number)
    )
    desk.seal(stranger)


def claimed(desk):
    desk.hold()


def started(desk):
    desk.run(fences.start(desk.hold(start=False), actor="w1"))


def reclaimed(desk):
    desk.pass_time(desk.hold(start=False), deadline=True)
    desk.claim()


def sealed(desk):
    desk.seal(desk.hold())


def released(desk):
    desk.run(fences.release(desk.hold(), TIMES, actor="w1", detail="refused"))


def failed(desk):
    doubted(desk)


def lapsed(desk):
    desk.pass_time(desk.hold(), deadline=True)
    desk.claim()


def probed(desk):
    """Both ways: not applied hands the fence on, applied seals it."""
    desk.pass_time(doubted(desk), quiet=True)
    told = desk.run(fences.probe(desk.claim(), "not_applied", TIMES, actor="p", nonce=7))
    held = FenceLease(told.key, Token(told.epoch, 7, told.number))
    desk.run(fences.doubt(held, actor="w1", detail="again"))
    found = FenceResult("json", b"1")
    desk.run(fences.probe(desk.claim(), "applied", TIMES, actor="p", nonce=8, answer=found))


def rerun(desk):
    doubted(desk)
    desk.claim(replayable=True)


def resolved(desk):
    held = desk.hold()
    seen = desk.run(fences.doubt(held, actor="w1", detail="timeout"))
    with Desk(desk.database, "operator") as operator:
        operator.run(
            fences.resolve(held.key, seen.version, TIMES, actor="ann", reason="saw", answer=None)
        )


def recovered(desk):
    desk.hold()
    desk.database.rows("select helix.recover_v1('ann', 'restored')", role="operator")


DECISIONS = [repeated, expired, in_progress, mismatch, in_doubt, probe_unknown, unknown, fenced_out]
STEPS = [claimed, started, reclaimed, sealed, released, failed, lapsed, probed, rerun, resolved,
         recovered]  # fmt: skip


def test_every_word_of_the_database_has_its_story(database):
    def words(kind):
        found = database.rows("select unnest(enum_range(null::helix.%s))::text" % kind)  # noqa: UP031
        return {word for (word,) in found}

    assert words("fence_decision_kind") == {story.__name__ for story in DECISIONS}
    assert words("fence_reason") == {story.__name__ for story in STEPS}


@pytest.mark.parametrize("happens", [*STEPS, *DECISIONS], ids=lambda story: story.__name__)
def test_every_decision_is_on_record_with_who_took_it(desk, happens):
    happens(desk)
    [row] = desk.run(fences.list_fences(name=desk.name)).rows
    told = [one for one in desk.run(fences.fence_history(row.key)) if one.what == happens.__name__]
    assert len(told) == (2 if happens is probed else 1)
    for one in told:
        assert one.actor
        assert (one.to_state is None) is (happens in DECISIONS)
    if happens is probed:
        assert [one.to_state for one in told] == ["EFFECT_STARTED", "SEALED"]
