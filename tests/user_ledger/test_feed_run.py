"""`helixq feed run`: an effect outside of the database takes place once, or is in doubt."""

from __future__ import annotations

import os
import subprocess

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import fences
from helixqueue.failpoints import FEED_RUN_POINTS
from helixqueue.identity import key_text
from tests.support.cli import HELIXQ
from tests.support.lab import wait_until

pytestmark = pytest.mark.module_database
# Points of one event: those after which the effect certainly did not begin, may have, or is sealed.
BEFORE, DOUBT = ("fence.claim.before",), ("fence.claim.after", "fence.seal.before")
SEALED = ("fence.seal.after", *FEED_RUN_POINTS)
POINTS = ("fence.claim.after", "fence.seal.before", "feed.run.sealed")
if os.environ.get("HELIX_PROOF"):
    POINTS = (*BEFORE, *DOUBT, *SEALED)


class Runner:
    """Runs `helixq feed run` with a program that writes a line per event to a file."""

    def __init__(self, database, helix, dispatch, tmp_path):
        self.out = tmp_path / "effects"
        self.out.touch()
        self.feed = helix.feed(dispatch.name, ledger=dispatch.name)
        self.helix = helix
        self.database = database

    def command(self, program=None, *words):
        script = program or f'echo "$HELIX_ENTITY $HELIX_SEQ $HELIX_IDEMPOTENCY_KEY" >> {self.out}'
        return [
            *(HELIXQ, "feed", "run", self.feed.name, "--exec", f"sh -c '{script}'"),
            *("--until-idle", "--lease", "1", *words),
        ]

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
        return kept | {"HELIX_DSN": self.database.dsn("app_a"), "HELIX_TENANT": "a"} | more

    def __call__(self, program=None, *words, **environment):
        return subprocess.run(
            self.command(program, *words),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    @property
    def effects(self):
        return [tuple(line.split()) for line in self.out.read_text().splitlines()]


@pytest.fixture
def runner(database, helix, dispatch, tmp_path):
    dispatch.append_many([("e", 1, "REQUESTED"), ("e", 2, "CONFIRMED"), ("e", 3, "LAUNCHED")])
    return Runner(database, helix, dispatch, tmp_path)


def test_each_event_runs_once_in_order_with_a_key_of_its_own(runner):
    done = runner()
    assert done.returncode == 0, done.stderr
    assert [effect[:2] for effect in runner.effects] == [("e", "1"), ("e", "2"), ("e", "3")]
    assert len({key for _, _, key in runner.effects}) == 3
    assert runner.feed.status().lag == 0
    runner.feed.rewind("again")
    assert runner().returncode == 0
    assert len(runner.effects) == 3  # the fences are sealed


@pytest.mark.parametrize("point", POINTS)
def test_killed_runner_leaves_each_effect_once_or_in_doubt(runner, tmp_path, point):
    armed = {
        "HELIX_FAILPOINTS": f"{point}=kill@2",
        "HELIX_FAILPOINT_FILE": str(tmp_path / "point"),
    }
    assert runner(**armed).returncode == -9
    assert (tmp_path / "point.fired").exists()
    done = runner()
    if point in DOUBT:
        assert done.returncode == Exit.IN_DOUBT, done.stderr
        assert runner.feed.read(1)[0].seq == 2  # the feed waits there
        resolve(runner, "--applied" if len(runner.effects) == 2 else "--not-applied")
        done = runner()
    assert done.returncode == 0, done.stderr
    assert [effect[:2] for effect in runner.effects] == [("e", "1"), ("e", "2"), ("e", "3")]


def resolve(runner, outcome):
    """As an operator who looked into the other system."""
    rows = runner.helix.fences.run(fences.list_fences(name=runner.feed.name)).rows
    [fence] = [key_text(row.key) for row in rows if row.state == "IN_DOUBT"]
    done = subprocess.run(
        [HELIXQ, "fence", "resolve", fence, outcome, "--reason", "looked", "--actor", "ann"],
        env=runner.environment(HELIX_DSN=runner.database.dsn("operator")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_failed_program_stops_the_feed_in_doubt_and_75_runs_again(runner, tmp_path):
    failed = runner("exit 3")
    assert failed.returncode == Exit.IN_DOUBT
    assert "fence resolve v1:" in failed.stderr
    assert runner.feed.status().lag == 3
    resolve(runner, "--not-applied")
    flag = tmp_path / "tried"
    once = f"test -e {flag} || {{ touch {flag}; exit 75; }}; echo e $HELIX_SEQ x >> {runner.out}"
    done = runner(once)
    assert done.returncode == 0, done.stderr
    assert [effect[1] for effect in runner.effects] == ["1", "2", "3"]


def test_replayable_effect_runs_again_with_the_same_key_after_a_crash(runner, tmp_path):
    armed = {
        "HELIX_FAILPOINTS": "fence.seal.before=kill@1",
        "HELIX_FAILPOINT_FILE": str(tmp_path / "point"),
    }
    assert runner(None, "--replayable", **armed).returncode == -9
    assert runner(None, "--replayable").returncode == 0
    seqs = [effect[1] for effect in runner.effects]
    assert seqs == ["1", "1", "2", "3"]
    assert runner.effects[0][2] == runner.effects[1][2]


def test_one_process_runs_a_feed_at_a_time(runner, tmp_path):
    go = tmp_path / "go"
    slow = f"while ! test -e {go}; do sleep 0.05; done; echo e $HELIX_SEQ x >> {runner.out}"
    with subprocess.Popen(
        runner.command(slow), env=runner.environment(), stderr=subprocess.DEVNULL
    ) as first:
        wait_until(lambda: runner.feed.status().holder is not None)
        second = runner()
        assert second.returncode == Exit.BUSY, second.stderr
        assert runner.effects == []
        go.touch()
        assert first.wait(60) == 0
    assert [effect[1] for effect in runner.effects] == ["1", "2", "3"]
