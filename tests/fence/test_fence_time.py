"""The three clocks are the database's, and housekeeping only follows them."""

from __future__ import annotations

import time

import pytest

from helixqueue.engine import fences
from helixqueue.errors import InProgress, ResultGone
from helixqueue.states import FenceState
from tests.support.fence_looks import fence_of
from tests.support.fence_passing import let_time_pass


def test_the_body_goes_first_and_the_tombstone_stays(desk):
    held = desk.hold()
    sealed = desk.seal(held)
    desk.pass_time(held, answer=True)
    told = desk.claim()
    assert (told.decision, told.answer, told.receipt) == ("expired", None, sealed.receipt)
    assert desk.claim(request="{}").decision == "mismatch"
    tended = desk.run(fences.sweep())
    assert tended.emptied >= 1
    told = desk.claim()
    assert (told.decision, told.receipt) == ("expired", sealed.receipt)


@pytest.mark.parametrize("omitted", [False, True])
def test_the_request_is_forgotten_with_its_answer_kept_or_not(desk, omitted):
    held = desk.hold()
    desk.seal(held, omitted=omitted)
    assert desk.claim(request="{}").request == '{"amount":5}'
    desk.pass_time(held, answer=True)
    desk.run(fences.sweep())
    told = desk.claim(request="{}")
    assert (told.decision, told.request) == ("mismatch", None)


def test_after_the_tombstone_the_key_is_new_again(desk):
    held = desk.hold()
    desk.seal(held)
    desk.pass_time(held, answer=True, tombstone=True)
    assert desk.claim(request='{"amount":6}').decision == "granted"
    assert desk.story(held) == ["claimed"]


@pytest.mark.parametrize("state", ["CLAIMED", "EFFECT_STARTED", "IN_DOUBT"])
def test_what_has_not_ended_has_no_tombstone(desk, state):
    held = desk.hold(start=state != "CLAIMED")
    if state == "IN_DOUBT":
        desk.run(fences.doubt(held, actor="w1", detail="x"))
    desk.pass_time(held, deadline=True)
    desk.run(fences.sweep())
    assert desk.state(held) in {FenceState.IN_DOUBT, FenceState.RELEASED}
    assert desk.story(held)


def test_tending_forgets_what_is_past_its_tombstone(desk):
    held = desk.hold()
    desk.seal(held)
    desk.pass_time(held, tombstone=True)
    desk.run(fences.sweep())
    assert desk.run(fences.find_fence(held.key)) is None


def test_a_lease_that_ran_out_before_the_effect_is_claimed_again(desk):
    held = desk.hold(start=False)
    desk.pass_time(held, deadline=True)
    again = desk.claim()
    assert (again.decision, again.attempt) == ("granted", 2)
    assert desk.seal(held).decision == "fenced_out"


def test_a_lease_that_ran_out_after_the_marker_is_in_doubt_and_never_run_again(desk):
    held = desk.hold()
    desk.pass_time(held, deadline=True, quiet=True)
    for _ in range(3):
        assert desk.claim().decision == "in_doubt"
    assert desk.state(held) is FenceState.IN_DOUBT


def test_a_heartbeat_keeps_the_fence(desk):
    held = desk.hold()
    desk.pass_time(held, deadline=True)
    assert desk.run(fences.renew([held])) == []
    assert desk.claim().decision == "in_progress"


@pytest.mark.parametrize("days", [-10, 10])
def test_a_hosts_clock_that_is_wrong_changes_no_decision(helix, database, name, monkeypatch, days):
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
    let_time_pass(database, key, answer=True)
    with pytest.raises(ResultGone):
        ask()
    let_time_pass(database, key, tombstone=True)
    assert ask() == (True, "done")


def test_the_lag_of_housekeeping_is_told(desk):
    held, claimed = desk.hold("sealed"), desk.hold("claimed", start=False)
    desk.seal(held)
    desk.run(fences.sweep())
    desk.pass_time(held, answer=True, tombstone=True)
    desk.pass_time(claimed, deadline=True)
    behind = desk.run(fences.sweep_lag())
    assert behind.leases >= 10
    assert min(behind.answers, behind.tombstones) >= 1
    while desk.run(fences.sweep()).released:
        pass
    assert desk.run(fences.sweep_lag()) == fences.SweepLag(0, 0, 0)
