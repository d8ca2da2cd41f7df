"""Every step of a worker's life, and at each of them a kill, a freeze, an error and a cut link.

All points of one fault run side by side, a process and a queue each. Another worker rescues.
Always: one effect in the database, the honest number of effects outside, nothing stuck, a clean
replay.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from helixqueue import Queue, State
from helixqueue.failpoints import POINTS
from tests.support.faults import FaultProxy
from tests.support.lab import wait_until
from tests.support.shift import proven
from tests.worker import app
from tests.worker.conftest import Process, effects

LEASE = 2.0
# What it may take on a busy machine beside the leases themselves.
SLACK = 60.0
# A dozen workers start at once: one such crowd at a time.
pytestmark = [pytest.mark.xdist_group("failpoints"), pytest.mark.timeout(300)]
# When the process was killed there: how many attempts that makes, and how often the effect outside
# of the database happened. A release by hand costs none, but its handler had begun.
WHEN_KILLED = {
    "claim.before": (1, 1),
    "claim.after": (2, 1),
    "start": (2, 1),
    "effect.inside": (2, 2),
    "effect.settled": (2, 2),
    "effect.after": (1, 1),
    "settle.before": (2, 2),
    "settle.after": (1, 1),
    "renew.before": (1, 1),  # that killed the renewer, and the worker started another
    "renew.after": (1, 1),
    "release.before": (2, 2),
    "release.after": (2, 2),
}


class Victim:
    """A worker process with one failpoint armed, a queue of its own with one batch, and a link."""

    way = "transaction"  # how its handler ends, except where that is what is tried

    def __init__(self, helix, database, directory, point, action):
        self.point = point
        self.name = f"{action}.{point}"
        self.queue = Queue(self.name, lease=LEASE, backoff=0.01, max_attempts=5)
        self.queue.handler(app.do)
        self.directory = directory / point
        self.directory.mkdir()
        self.outside = self.directory / "outside"
        payload = {"file": str(self.outside), "way": self.way}
        if point.startswith("settle"):
            payload["way"] = "return"
        self.inside = {"s": 1} if payload["way"] == "transaction" else {}
        if point.startswith("renew"):
            payload["seconds"] = LEASE * 1.5
        if point.startswith("release"):
            payload["seconds"] = LEASE * 4
        self.receipt = helix.submit(self.queue, identity="s", payload=payload).receipt
        self.helix, self.database = helix, database
        self.mark = self.directory / "point"
        self.link, reached = self.linked()
        self.process = Process(
            database,
            self.name,
            options={"slots": 1, "grace_seconds": 0 if point.startswith("release") else 30},
            HELIX_FAILPOINTS=f"{point}={action}",
            HELIX_FAILPOINT_FILE=str(self.mark),
            **reached,
        )

    def linked(self):
        """A link that can be cut, and how the process finds it."""
        faults = FaultProxy(self.database.dsn("pool"), self.directory)
        faults.__enter__()
        return faults, {"dsn": faults.dsn}

    @property
    def fired(self):
        return self.mark.with_suffix(".fired").exists()

    @property
    def completed(self):
        return self.helix.state(self.receipt) is State.COMPLETED

    def lines(self):
        return self.outside.read_text().splitlines()

    def attempts(self):
        return sum(event.reason == "started" for event in self.helix.history(self.receipt))

    def story(self):
        events = self.helix.history(self.receipt)
        return [(event.reason, event.actor, event.detail) for event in events]

    def provoke(self):
        """A release happens when the worker is stopped in the middle of its work."""
        if self.point.startswith("release"):
            wait_until(self.outside.exists, seconds=SLACK)
            self.process.signal(signal.SIGTERM)

    def tree(self):
        """The worker and its renewer."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = [int(pid) for item in children for pid in item.read_text().split()]
        return [self.process.pid, *found]

    def close(self):
        for pid in self.tree():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.__exit__()
        self.link.__exit__()


@pytest.fixture
def victims(helix, database, tmp_path_factory, request):
    action = request.param
    directory = tmp_path_factory.mktemp("f")  # short: a socket's path has 107 bytes
    made = [Victim(helix, database, directory, point, action) for point in POINTS]
    yield made
    for item in made:
        item.close()


def struck(victims):
    """Until everybody was hurt."""
    for victim in victims:
        victim.provoke()
    for victim in victims:
        wait_until(lambda item=victim: item.fired, seconds=SLACK)


def rescued(helix, shift, victims):
    """Another worker serves all queues until everything is completed."""
    with shift(helix, [victim.queue for victim in victims], slots=4, poll_seconds=0.2) as rescuer:
        health = rescuer.worker.health
        wait_until(lambda at=health.answered_at: health.answered_at > at, seconds=SLACK)
        begun = datetime.now(UTC)
        heard = [health.answered_at]

        def all_completed():
            heard.append(health.answered_at)
            return all(victim.completed for victim in victims)

        try:
            wait_until(all_completed, seconds=SLACK + 2 * LEASE)
        except AssertionError:
            stuck = {victim.point: victim.story() for victim in victims if not victim.completed}
            raise AssertionError(f"stuck: {stuck}") from None
    # Whoever had it was gone by then: from here on nothing is stuck while anybody claims. What the
    # machine did instead of letting the rescuer claim is nobody's fault here.
    deaf = max(later - earlier for earlier, later in pairwise(heard))
    for victim in victims:
        lost = [event.at for event in helix.history(victim.receipt) if event.reason == "lost"]
        late = [(at - begun).total_seconds() - deaf for at in lost[:1]]
        assert all(seconds < 2 * LEASE for seconds in late), victim.story()


def settled_down(victims):
    """Whoever still runs is stopped; then everybody is judged."""
    for victim in victims:
        victim.process.signal(signal.SIGTERM)
    for victim in victims:
        victim.process.wait()
        assert "Traceback" not in victim.process.err or "failpoint" in victim.process.err, (
            victim.process.err
        )


def judge(database, victims):
    for victim in victims:
        inside = effects(database, victim.name)
        assert inside == victim.inside, victim.point
        # An effect outside of the database happens once an attempt that got so far, and no more.
        assert 1 <= len(victim.lines()) <= victim.attempts(), victim.point
    proven(database)


@pytest.mark.parametrize("victims", ["kill"], indirect=True)
def test_worker_killed_at_any_point_loses_and_doubles_nothing(helix, database, shift, victims):
    struck(victims)
    rescued(helix, shift, victims)
    settled_down(victims)
    judge(database, victims)
    for victim in victims:
        attempts, outside = WHEN_KILLED[victim.point]
        # A machine too busy to renew in time makes honest further attempts.
        further = victim.attempts() - attempts
        assert outside <= len(victim.lines()) <= outside + further, victim.point


@pytest.mark.parametrize("victims", ["stop"], indirect=True)
def test_worker_frozen_past_its_lease_cannot_write_after_it_wakes(helix, database, shift, victims):
    struck(victims)
    rescued(helix, shift, victims)
    for victim in victims:
        for pid in victim.tree():
            with suppress(ProcessLookupError):  # the renewer was not frozen, and may have ended
                os.kill(pid, signal.SIGCONT)
    settled_down(victims)
    judge(database, victims)


@pytest.mark.parametrize("victims", ["raise"], indirect=True)
def test_error_at_any_point_costs_at_most_one_attempt(helix, database, shift, victims):
    struck(victims)
    rescued(helix, shift, victims)
    settled_down(victims)
    judge(database, victims)


@pytest.mark.parametrize("victims", ["hold"], indirect=True)
def test_connection_cut_at_any_point_is_reopened(helix, database, shift, victims):
    for victim in victims:
        victim.provoke()
    held = list(victims)
    while held:  # each as soon as it is there: nobody is held past his lease
        victim = wait_until(
            lambda: next((item for item in held if item.mark.exists()), None), seconds=SLACK
        )
        victim.link.cut_all()
        victim.mark.unlink()
        held.remove(victim)
    rescued(helix, shift, victims)
    settled_down(victims)
    judge(database, victims)
