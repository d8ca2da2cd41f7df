"""A process killed at each failpoint of a call, on each surface: sealed, released or in doubt.

Never a second effect: what the next call does follows from what is on record, and an effect that
may have happened is not made again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helixqueue.engine import fences as calls
from helixqueue.failpoints import FENCE_POINTS
from tests.support.fence_crash_process import DOUBTED, RAN, REPEATED
from tests.support.fence_reads import effects
from tests.support.fence_sessions import open_sessions
from tests.support.fence_time import expire

# One such process serves all; elsewhere each worker of the tests would start its own.
pytestmark = pytest.mark.xdist_group("fence crashes")
FOREIGN = ("function", "async_function", "http")
LOCAL = ("same_transaction", "async_same_transaction")
# Where it is killed, what its effect does, then: the state that is left, how often the effect took
# place so far, and what the next call meets.
PHASES = {
    "fence.claim.before": ("done", None, 0, RAN),
    "fence.claim.after": ("done", "EFFECT_STARTED", 0, DOUBTED),
    "in the effect": ("dies", "EFFECT_STARTED", 1, DOUBTED),
    "fence.seal.before": ("done", "EFFECT_STARTED", 1, DOUBTED),
    "fence.seal.after": ("done", "SEALED", 1, REPEATED),
    "fence.doubt.before": ("failed", "EFFECT_STARTED", 1, DOUBTED),
    "fence.doubt.after": ("failed", "IN_DOUBT", 1, DOUBTED),
    "fence.release.before": ("refused", "EFFECT_STARTED", 0, DOUBTED),
    "fence.release.after": ("refused", "RELEASED", 0, RAN),
}
# In the caller's transaction nothing is on record before the commit, and everything after it.
LOCAL_PHASES = {
    "fence.claim.before": ("done", None, 0, RAN),
    "fence.claim.after": ("done", None, 0, RAN),
    "in the effect": ("dies", None, 0, RAN),
    "fence.seal.before": ("done", None, 0, RAN),
    "fence.seal.after": ("done", None, 0, RAN),
    "fence.release.before": ("failed", None, 0, RAN),
    "fence.release.after": ("failed", None, 0, RAN),
    "after its commit": ("dies after its commit", "SEALED", 1, REPEATED),
}
# The endpoint marks where its effect starts: before that the key is free when the lease ends.
MARKED_PHASES = PHASES | {
    "fence.claim.after": ("done", "CLAIMED", 0, RAN),
    "before the effect": ("dies before its effect", "CLAIMED", 0, RAN),
    "fence.start.before": ("done", "CLAIMED", 0, RAN),
    "fence.start.after": ("done", "EFFECT_STARTED", 0, DOUBTED),
    "fence.release.before": ("refused", "CLAIMED", 0, RAN),
}
# A session that is not sealed is rolled back: it has no call that releases.
SESSION_PHASES = {
    point: phase for point, phase in LOCAL_PHASES.items() if not point.startswith("fence.release")
} | {"fence.seal.after": ("done", "SEALED", 1, REPEATED)}  # sealed and committed in one call
SURFACES = {
    **dict.fromkeys(FOREIGN, PHASES),
    **dict.fromkeys(LOCAL, LOCAL_PHASES),
    "http_marked": MARKED_PHASES,
    "http_session": SESSION_PHASES,
}
CASES = [(surface, point) for surface, phases in SURFACES.items() for point in phases]


class Victims:
    def __init__(self, database):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fence_crash_process", database.dsn(direct=True)],
            cwd=Path(__file__).parents[2],
            env=os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, surface, failpoint, **details):
        """The exit code of one call."""
        armed = f"{failpoint}=kill" if failpoint in FENCE_POINTS else ""
        line = json.dumps({"surface": surface, "failpoint": armed, **details})
        print(line, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def call(database):
    victims = Victims(database)
    yield victims
    victims.close()


def test_every_failpoint_of_a_fence_is_in_the_matrix():
    assert set(FENCE_POINTS) <= set(MARKED_PHASES)
    doubts = {"fence.doubt.before", "fence.doubt.after"}
    starts = {"fence.start.before", "fence.start.after"}
    assert set(FENCE_POINTS) - set(PHASES) == starts
    assert set(FENCE_POINTS) - set(LOCAL_PHASES) == doubts | starts


class Shop:
    """Where the effects of one case take place, and the fence that guards them."""

    def __init__(self, caller, database, table, directory):
        self._desk, self._database, self._table = caller, database, table
        self._file = directory / "effects"
        self.details = {"name": caller.name, "file": str(self._file), "table": table}

    def happened(self):
        outside = self._file.read_text().splitlines() if self._file.exists() else []
        return len(outside) + effects(self._database, self._table)

    def stands(self):
        """State and key."""
        names = (self._desk.name, f"http /{self._desk.name}")
        rows = [row for name in names for row in self._desk.run(calls.list_fences(name=name)).rows]
        return (rows[0].state, rows[0].key) if rows else (None, None)


@pytest.fixture
def shop(caller, database, table, tmp_path):
    return Shop(caller, database, table, tmp_path)


@pytest.mark.parametrize(("surface", "point"), CASES)
def test_crash_at_each_failpoint_leaves_a_known_state_and_no_second_effect(
    call, shop, database, surface, point
):
    how, state, so_far, then = SURFACES[surface][point]
    assert call(surface, point, how=how, **shop.details) == -signal.SIGKILL
    left, key = shop.stands()
    assert (left, shop.happened()) == (state, so_far)
    if left in {"CLAIMED", "EFFECT_STARTED"}:
        expire(database, key, deadline=True, quiet=True)
    assert call(surface, None, how="done", **shop.details) == then
    assert shop.stands()[0] == ("IN_DOUBT" if then == DOUBTED else "SEALED")
    once = so_far + (then == RAN)
    assert shop.happened() == once <= 1
    # And whoever comes after that.
    assert call(surface, None, how="done", **shop.details) == (
        DOUBTED if then == DOUBTED else REPEATED
    )
    assert shop.happened() == once


def test_hundred_kills_of_keyed_requests_with_a_session_leave_no_doubt_and_no_second_effect(
    call, database, name, table
):
    """Killed at any moment: in the endpoint, after its commit, and at random times."""
    details = {"name": name, "file": "", "table": table}
    for number in range(100):
        how = {0: "dies", 1: "dies after its commit"}.get(number % 4, "done")
        moment = {"kill_after": random.uniform(0, 0.05)} if how == "done" else {}
        call("http_session", None, how=how, key=f"k{number}", **details, **moment)
    assert 25 <= effects(database, table) <= 75

    async def repeat_all():
        async with open_sessions(database, "async psycopg", name, table) as (_, post):
            return [(await post(f"k{number}")).status_code for number in range(100)]

    assert set(asyncio.run(repeat_all())) == {201}
    assert effects(database, table) == 100
