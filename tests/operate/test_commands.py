"""`helixq check`, `replay` and `recover` as a script sees them: output and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helixqueue.cli.exits import Exit
from tests.ledger.damage import damaged, one

HELIXQ = Path(sys.executable).with_name("helixq")


def helixq(database, *arguments, role="helix_migrator"):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIX_")}
    return subprocess.run(
        [HELIXQ, *arguments, "--dsn", database.dsn(role)],
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )


def test_check_of_a_sound_database(busy):
    done = helixq(busy, "check")
    assert (done.returncode, done.stdout) == (Exit.OK, "")
    assert "invariants hold" in done.stderr
    done = helixq(busy, "check", "--json")
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert answer["every_tenant"] is True
    assert all(result["holds"] for result in answer["results"])


def test_check_shows_what_is_broken_and_ends_with_one(busy):
    damaged(busy, one(busy, "delete from helix.outcome where batch = {COMPLETED}"))
    done = helixq(busy, "check")
    assert done.returncode == Exit.NO
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()[1:]] == [
        ["BROKEN", "no_place", "G5"],
        ["BROKEN", "event_without_place", "G4"],
    ]
    done = helixq(busy, "check", "--json")
    assert done.returncode == Exit.NO
    answer = json.loads(done.stdout)
    [broken] = [result for result in answer["results"] if result["name"] == "no_place"]
    assert broken["count"] == 1
    assert broken["witnesses"][0]["batch"] > 0


def test_an_operator_is_told_what_was_skipped(busy):
    done = helixq(busy, "check", role="operator")
    assert done.returncode == Exit.OK
    assert {line.split("\t")[0] for line in done.stdout.splitlines()[1:]} == {"skipped"}


def test_a_tenant_is_told_that_it_saw_its_own_rows_only(busy):
    for verb in ("check", "replay"):
        assert "own tenants only" in helixq(busy, verb, role="app_a").stderr


def test_replay_of_a_sound_ledger(busy):
    done = helixq(busy, "replay")
    assert (done.returncode, done.stdout) == (Exit.OK, "")
    assert "0 violations" in done.stderr
    answer = json.loads(helixq(busy, "replay", "--json").stdout)
    assert answer["ok"] is True
    assert answer["events"] > answer["batches"] > 0
    assert answer["retired"] == 2


def test_replay_shows_what_does_not_follow_and_ends_with_one(busy):
    """Also an event at the end of time, which no calendar of Python's reaches."""
    edit = "update helix.event set at = 'infinity' where (batch, version) = ({COMPLETED}, 4)"
    damaged(busy, one(busy, edit))
    done = helixq(busy, "replay")
    assert done.returncode == Exit.NO
    assert "the hash does not follow" in done.stdout
    answer = json.loads(helixq(busy, "replay", "--json").stdout)
    [violation] = answer["violations"]
    assert violation["kind"] == "hash"
    assert [event["version"] for event in violation["witnesses"]] == [3, 4]
    assert "microseconds" in violation["witnesses"][1]["at"]


def test_recover_ends_leases_for_a_reason(busy):
    done = helixq(busy, "recover", "--reason", "restored", "--actor", "ann", "--json")
    assert done.returncode == Exit.OK
    answer = json.loads(done.stdout)
    assert answer["ended"] > 0
    assert answer["epoch"] > 1
    assert busy.value("select count(*) from helix.active") == 0
    assert "0 leases ended" in helixq(busy, "recover", "--reason", "again").stdout


@pytest.mark.parametrize("arguments", [(), ("--reason", " ")])
def test_recover_demands_a_reason(busy, arguments):
    assert helixq(busy, "recover", *arguments).returncode == Exit.USAGE


def test_recover_is_not_for_clients(busy):
    done = helixq(busy, "recover", "--reason", "because", role="app_a")
    assert done.returncode == Exit.REFUSED
    assert "permission denied" in done.stderr
    assert "helix_operator (people)" in done.stderr
