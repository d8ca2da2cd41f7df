"""The three clocks are the database's, and housekeeping only follows them."""

from __future__ import annotations

import time

import pytest

from helixqueue.engine import fences
from helixqueue.errors import InProgress, ResultGone
from helixqueue.states import FenceState
from tests.support.fence_reads import fence_of
from tests.support.fence_sweep import sweep_fences
from tests.support.fence_time import expire


def test_answer_expires_before_the_tombstone(caller):
    held = caller.hold()
    sealed = caller.seal(held)
    caller.expire(held, answer=True)
    claimed = caller.claim()
    assert (claimed.decision, claimed.answer, claimed.receipt) == ("expired", None, sealed.receipt)
    assert caller.claim(request="{}").decision == "mismatch"
    tended = caller.run(sweep_fences())
    assert tended.emptied >= 1
    claimed = caller.claim()
    assert (claimed.decision, claimed.receipt) == ("expired", sealed.receipt)


@pytest.mark.parametrize("omitted", [False, True])
def test_request_is_deleted_with_its_answer_or_at_its_expiry(caller, omitted):
    held = caller.hold()
    caller.seal(held, omitted=omitted)
    assert caller.claim(request="{}").request == '{"amount":5}'
    caller.expire(held, answer=True)
    caller.run(sweep_fences())
    claimed = caller.claim(request="{}")
    assert (claimed.decision, claimed.request) == ("mismatch", None)


def test_key_is_new_after_its_tombstone_expires(caller):
    held = caller.hold()
    caller.seal(held)
    caller.expire(held, answer=True, tombstone=True)
    assert caller.claim(request='{"amount":6}').decision == "granted"
    assert caller.story(held) == ["claimed"]


@pytest.mark.parametrize("state", ["CLAIMED", "EFFECT_STARTED", "IN_DOUBT"])
def test_open_fence_has_no_tombstone(caller, state):
    held = caller.hold(start=state != "CLAIMED")
    if state == "IN_DOUBT":
        caller.run(fences.doubt(held, actor="w1", detail="x"))
    caller.expire(held, deadline=True)
    caller.run(sweep_fences())
    assert caller.state(held) in {FenceState.IN_DOUBT, FenceState.RELEASED}
    assert caller.story(held)


def test_sweep_deletes_expired_tombstones(caller):
    held = caller.hold()
    caller.seal(held)
    caller.expire(held, tombstone=True)
    caller.run(sweep_fences())
    assert caller.run(fences.find_fence(held.key)) is None


def test_lease_expired_before_the_effect_is_claimed_again(caller):
    held = caller.hold(start=False)
    caller.expire(held, deadline=True)
    again = caller.claim()
    assert (again.decision, again.attempt) == ("granted", 2)
    assert caller.seal(held).decision == "fenced_out"


def test_lease_expired_after_the_marker_is_in_doubt_and_never_executed_again(caller):
    held = caller.hold()
    caller.expire(held, deadline=True, quiet=True)
    for _ in range(3):
        assert caller.claim().decision == "in_doubt"
    assert caller.state(held) is FenceState.IN_DOUBT


def test_heartbeat_keeps_the_fence(caller):
    held = caller.hold()
    caller.expire(held, deadline=True)
    assert caller.run(fences.renew([held])) == []
    assert caller.claim().decision == "in_progress"


@pytest.mark.parametrize("days", [-10, 10])
def test_wrong_host_clock_changes_no_decision(helix, database, name, monkeypatch, days):
    """Lease, answer and tombstone are judged by the database's clock alone."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + days * 86_400)

    def ask(key="k"):
        with helix.fence(name, key=key, wait=0) as fence:
            if fence.first:
                with pytest.raises(InProgress), helix.fence(name, key=key, wait=0):
                    pytest.fail("ran twice")
                fence.seal("done")
        return fence.first, fence.result

    assert [ask(), ask()] == [(True, "done"), (False, "done")]
    key = fence_of(database, name).key
    expire(database, key, answer=True)
    with pytest.raises(ResultGone):
        ask()
    expire(database, key, tombstone=True)
    assert ask() == (True, "done")


def test_housekeeping_lag_is_reported(caller):
    held, claimed = caller.hold("sealed"), caller.hold("claimed", start=False)
    caller.seal(held)
    caller.run(sweep_fences())
    caller.expire(held, answer=True, tombstone=True)
    caller.expire(claimed, deadline=True)
    behind = caller.run(fences.sweep_lag())
    assert behind.leases >= 10
    assert min(behind.answers, behind.tombstones) >= 1
    while caller.run(sweep_fences()).released:
        pass
    assert caller.run(fences.sweep_lag()) == fences.SweepLag(0, 0, 0)
