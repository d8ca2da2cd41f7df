"""Answers lost on the wire: the same claim finds itself, the same seal is answered as the first."""

from __future__ import annotations

import pytest

from helixqueue import HelixQueue
from helixqueue.engine import fences as calls
from helixqueue.engine.fences import FenceLease, FenceResult
from helixqueue.errors import InDoubt, Refused, Retryable, Unavailable
from helixqueue.fence import protocol
from helixqueue.fence.protocol import FenceSpec
from helixqueue.records.lease import Token
from tests.support.faults import FaultProxy
from tests.support.fence_time import expire
from tests.support.lab import POOLED

pytestmark = pytest.mark.skipif(POOLED, reason="the proxy speaks to PostgreSQL itself")


@pytest.fixture
def faults(database, tmp_path_factory):
    # A socket's path has a short bound; the test's own directory may be beyond it.
    with FaultProxy(database.dsn(), tmp_path_factory.mktemp("f")) as faults:
        yield faults


@pytest.fixture
def helix(faults):
    with HelixQueue(faults.dsn, tenant="a") as helix:
        yield helix


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("call", ["claim_fence_v1", "seal_fence_v1"])
def test_lost_call_is_retried_and_the_effect_happens_once(helix, faults, name, call, lost):
    ran = []

    @helix.fence(name, key=lambda k: k)
    def act(k: str) -> int:
        ran.append(k)
        return len(ran)

    assert act("before") == 1  # the connection is made, the statements are not yet prepared
    (faults.lose_reply if lost == "reply" else faults.lose_request)(call)
    assert act("k") == 2
    assert faults.fired == 1
    assert act("k") == 2
    assert ran == ["before", "k"]
    [row] = [r for r in helix.fences.run(calls.list_fences(name=name)).rows if r.identity == ("k",)]
    assert (row.state, row.attempt, row.version) == ("SEALED", 1, 2)


def test_function_without_a_database_is_not_executed(name):
    with HelixQueue("host=/nowhere dbname=none", tenant="a") as helix:
        act = helix.fence(name, key=lambda: "k")(lambda: pytest.fail("ran unguarded"))
        with pytest.raises(Unavailable):
            act()


def test_database_lost_before_the_seal_raises_in_doubt(database, name, monkeypatch):
    monkeypatch.setattr("helixqueue.fence.protocol.SEAL_SECONDS", 0.05)
    with HelixQueue(database.dsn(), tenant="a") as helix:

        @helix.fence(name, key=lambda: "k")
        def act() -> str:
            helix.close()  # nothing can be reached from here on
            return "done"

        with pytest.raises(InDoubt, match="the effect took place"):
            act()
    with HelixQueue(database.dsn(), tenant="a") as helix:
        [row] = helix.fences.run(calls.list_fences(name=name)).rows
        assert row.state == "EFFECT_STARTED"
        expire(database, row.key, deadline=True)
        act = helix.fence(name, key=lambda: "k")(lambda: pytest.fail("ran twice"))
        with pytest.raises(InDoubt, match="its outcome is unknown"):
            act()


@pytest.mark.parametrize(
    "fault", [Unavailable("away", outcome_unknown=True), Retryable("again"), Refused("a bound")]
)
def test_failed_seal_is_in_doubt_unless_the_effect_is_local(monkeypatch, fault):
    """Inside a caller's transaction the effect is undone: that is certain, and said as it is."""
    monkeypatch.setattr("helixqueue.fence.protocol.SEAL_SECONDS", 0)
    held = FenceLease(b"\x01" + bytes(32), Token(1, 2, 3))
    for alone, answer in ((True, InDoubt), (False, type(fault))):
        steps = protocol.seal(
            FenceSpec("a", "n", "me", alone=alone), held, FenceResult("json", b"1")
        )
        next(steps)
        with pytest.raises(answer):
            steps.throw(fault)
