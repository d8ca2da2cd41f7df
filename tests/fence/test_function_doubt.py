"""Functions that fail, hang, die or are overtaken: a doubt, and never a second run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helixqueue import HelixQueue
from helixqueue.errors import (
    InDoubt,
    InProgress,
    LeaseLost,
)
from helixqueue.fence import NOT_APPLIED, UNKNOWN, Applied, NotApplied, Times, current
from tests.support.fence_reads import Refund, fence_of
from tests.support.fence_time import expire
from tests.support.lab import POOLED, wait_until


def test_exception_after_the_marker_is_in_doubt_with_its_cause_and_never_executed_again(
    helix, name, database
):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> None:
        ran.append(1)
        raise TimeoutError("the bank did not answer")

    with pytest.raises(TimeoutError):
        act()
    for _ in range(3):
        with pytest.raises(InDoubt, match=r"unknown \(TimeoutError: the bank did not answer\)"):
            act()
    assert ran == [1]
    row = fence_of(database, name)
    assert row.detail == "TimeoutError: the bank did not answer"


def test_not_applied_releases_the_fence(helix, name):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise NotApplied("connection refused")
        return len(ran)

    with pytest.raises(NotApplied):
        act()
    assert act() == act() == 2


@pytest.mark.parametrize(
    ("says", "runs"),
    [
        (Applied(Refund(id="re_9", cents=1), effect="re_9"), 1),
        (NOT_APPLIED, 2),
        (UNKNOWN, 1),
        (None, 1),  # a probe that forgot to return
        (RuntimeError("the bank is closed"), 1),
    ],
)
def test_probe_decides_applied_not_applied_or_unknown(helix, database, name, says, runs):
    ran = []

    def probe(order):
        assert order == "o1"
        if isinstance(says, Exception):
            raise says
        return says

    @helix.fence(name, key=lambda order: order, probe=probe)
    def refund(order: str) -> Refund:
        ran.append(order)
        if len(ran) == 1:
            raise TimeoutError
        return Refund(id="re_2", cents=1)

    with pytest.raises(TimeoutError):
        refund("o1")
    if says is NOT_APPLIED:
        with pytest.raises(InDoubt):  # too early to believe it
            refund("o1")
    expire(database, fence_of(database, name).key, quiet=True)
    if isinstance(says, Applied):
        answer = refund.outcome("o1")
        assert (answer.result.id, answer.effect, answer.repeated) == ("re_9", "re_9", True)
    elif says is NOT_APPLIED:
        assert refund("o1").id == "re_2"
    else:
        with pytest.raises(InDoubt):
            refund("o1")
    assert len(ran) == runs


def test_replayable_effect_is_executed_again_with_the_same_downstream_key(helix, name):
    bank = {}

    @helix.fence(name, key=lambda order: order, replayable=True)
    def refund(order: str) -> str:
        known = len(bank)
        effect = bank.setdefault(current().downstream_key, f"re_{known}")
        if current().attempt == 1:
            raise TimeoutError
        current().effect = effect
        return effect

    with pytest.raises(TimeoutError):
        refund("o1")
    assert refund.outcome("o1").effect == "re_0"
    assert len(bank) == 1


def test_result_of_a_replaced_holder_is_not_returned(helix, database, name):
    entered = helix.fence(name, key="k", replayable=True)
    with pytest.raises(LeaseLost) as lost, entered as zombie:
        expire(database, fence_of(database, name).key, deadline=True)
        with helix.fence(name, key="k", replayable=True) as owner:
            owner.seal("right")
        zombie.seal("from the grave")
    assert lost.value.owner == helix.fences.actor
    with helix.fence(name, key="k") as again:
        assert again.result == "right"


def test_heartbeats_keep_the_lease_of_a_slow_effect(helix, database, name):
    """Ten times longer than its lease, and nobody takes it for dead."""
    with helix.fence(name, key="k", ttl=Times(lease=0.15)) as fence:
        born = fence_of(database, name).deadline
        wait_until(lambda: (fence_of(database, name).deadline - born).total_seconds() > 1.0)
        assert not fence.lost
        fence.seal("slow")
    with helix.fence(name, key="k") as again:
        assert again.result == "slow"


def test_heartbeat_continues_after_a_failure(helix, database, name):
    run, failed = helix.fences.heartbeat._run, []

    def once(call):
        if not failed:
            failed.append(call)
            raise RuntimeError("nobody thought of this one")
        return run(call)

    helix.fences.heartbeat._run = once
    with helix.fence(name, key="k", ttl=Times(lease=0.3)):
        born = fence_of(database, name).deadline
        wait_until(lambda: fence_of(database, name).deadline > born)
        assert failed


def test_call_past_its_limit_is_in_doubt_and_its_late_seal_counts(helix, database, name):
    """Otherwise a hung call would be in progress for ever, and nobody could decide."""
    with helix.fence(name, key="k", ttl=Times(lease=0.2, limit=0.3)) as fence:

        def another():
            with helix.fence(name, key="k", wait=0):
                pytest.fail("ran twice")

        def doubted():
            try:
                another()
            except InProgress:
                return False
            except InDoubt:
                return True

        wait_until(doubted)
        fence.seal("late")
    with helix.fence(name, key="k") as again:
        assert again.result == "late"


def test_replaced_holder_is_informed_by_its_heartbeat(helix, database, name):
    with pytest.raises(LeaseLost), helix.fence(name, key="k", ttl=Times(lease=0.3)) as fence:
        with database.connect("operator") as connection:
            connection.execute("select helix.recover_v1('ann', 'restored')")
        wait_until(lambda: fence.lost)


FORKED = """
import os, sys, time
from helixqueue import HelixQueue
from helixqueue.fence import Times
from helixqueue.engine import fences
with HelixQueue(sys.argv[1], tenant="a") as helix:
    def beats(key):
        with helix.fence(sys.argv[2], key=key, ttl=Times(lease=0.3)):
            deadlines = set()
            for _ in range(200):
                rows = helix.fences.run(fences.list_fences(name=sys.argv[2])).rows
                deadlines |= {row.deadline for row in rows if row.identity == (key,)}
                if len(deadlines) > 2:
                    return True
                time.sleep(0.01)
        return False
    with helix.fence(sys.argv[2], key="parent", ttl=Times(lease=0.3)):
        child = os.fork()
        if child == 0:
            os._exit(0 if beats("child") else 1)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_has_its_own_heartbeat(database, name):
    done = subprocess.run(
        # Python 3.12 and later warn of any fork beside a thread; people do it all the same.
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            FORKED,
            database.dsn(direct=True),
            name,
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_error_of_the_caller_is_not_hidden_by_a_failing_database(database, name):
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:

        @helix.fence(name, key=lambda: "k")
        def act() -> None:
            helix.close()  # the doubt cannot be written
            raise TimeoutError("the bank did not answer")

        with pytest.raises(TimeoutError):
            act()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (OSError("no file \udcff"), "OSError: no file \\udcff"),
        (ValueError("a\0b"), "ValueError: a\\0b"),
        (ValueError("é" * 9_999), "ValueError: " + "é" * 2_000),
        (Unspeakable(), "Unspeakable: (no message)"),
    ],
)
def test_error_with_any_text_is_stored_and_raised_to_the_caller(helix, database, name, error, kept):
    @helix.fence(name, key=lambda: "k")
    def act() -> None:
        raise error

    with pytest.raises(type(error)):
        act()
    row = fence_of(database, name)
    assert (row.state, row.detail) == ("IN_DOUBT", kept)
