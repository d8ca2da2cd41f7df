"""`helixq check`, `replay` and `recover` as a script sees them: output and exit codes."""

from __future__ import annotations

import json

import pytest

from helixqueue.cli.exits import Exit
from tests.support.cli import Helixq
from tests.support.ledger_damage import damage, with_batch_ids


def helixq(database, *arguments, role="helix_migrator"):
    return Helixq(database)(*arguments, "--dsn", database.dsn(role))


def test_check_of_a_sound_database(busy):
    done = helixq(busy, "check")
    assert (done.code, done.out) == (Exit.OK, "")
    assert "invariants hold" in done.err
    done = helixq(busy, "check", "--json")
    answer = json.loads(done.out)
    assert answer["ok"] is True
    assert answer["every_tenant"] is True
    assert all(result["holds"] for result in answer["results"])


def test_check_shows_what_is_broken_and_ends_with_one(busy):
    damage(busy, with_batch_ids(busy, "delete from helix.work where batch = {COMPLETED}"))
    done = helixq(busy, "check")
    assert done.code == Exit.NO
    assert [line.split("\t")[:3] for line in done.out.splitlines()[1:]] == [
        ["BROKEN", "step_without_batch", "G4"],
        ["BROKEN", "batch_without_work", "G5"],
        ["BROKEN", "ended_unknown", "G4"],
    ]
    done = helixq(busy, "check", "--json")
    assert done.code == Exit.NO
    answer = json.loads(done.out)
    [broken] = [result for result in answer["results"] if result["name"] == "batch_without_work"]
    assert broken["count"] == 1
    assert broken["witnesses"][0]["batch"] > 0


def test_operator_sees_which_invariants_were_skipped(busy):
    done = helixq(busy, "check", role="operator")
    assert done.code == Exit.OK
    assert {line.split("\t")[0] for line in done.out.splitlines()[1:]} == {"skipped"}


def test_tenant_is_informed_that_only_its_rows_were_checked(busy):
    for verb in ("check", "replay"):
        assert "own tenants only" in helixq(busy, verb, role="app_a").err


def test_replay_of_a_sound_ledger(busy):
    done = helixq(busy, "replay")
    assert (done.code, done.out) == (Exit.OK, "")
    assert "0 violations" in done.err
    answer = json.loads(helixq(busy, "replay", "--json").out)
    assert answer["ok"] is True
    assert answer["events"] > answer["batches"] > 0
    assert answer["retired"] == 2


def test_replay_shows_what_does_not_follow_and_ends_with_one(busy):
    """Also an entry at the end of time, which no calendar of Python's reaches."""
    edit = """update helix.entry set at = 'infinity'
              where id = (select entry from helix.work where batch = {COMPLETED})"""
    damage(busy, with_batch_ids(busy, edit))
    done = helixq(busy, "replay")
    assert done.code == Exit.NO
    assert "the hash of its ledger entry does not follow" in done.out
    answer = json.loads(helixq(busy, "replay", "--json").out)
    [violation] = answer["violations"]
    assert violation["kind"] == "hash"
    [witness] = violation["witnesses"]
    assert witness["version"] == 4
    assert "microseconds" in witness["at"]


def test_recover_ends_leases_for_a_reason(busy):
    done = helixq(busy, "recover", "--reason", "restored", "--actor", "ann", "--json")
    assert done.code == Exit.OK
    answer = json.loads(done.out)
    assert answer["ended"] > 0
    assert answer["epoch"] > 1
    leased = "select count(*) from helix.work where state in ('ASSIGNED', 'RUNNING')"
    assert busy.value(leased) == 0
    assert "0 leases ended" in helixq(busy, "recover", "--reason", "again").out


@pytest.mark.parametrize("arguments", [(), ("--reason", " ")])
def test_recover_demands_a_reason(busy, arguments):
    assert helixq(busy, "recover", *arguments).code == Exit.USAGE


def test_recover_is_not_for_clients(busy):
    done = helixq(busy, "recover", "--reason", "because", role="app_a")
    assert done.code == Exit.REFUSED
    assert "permission denied" in done.err
    assert "helix_operator (administration)" in done.err


def test_rotated_secret_still_compares_old_fingerprints(database):
    """A new secret is for new work: repeats of old work are neither new nor conflicts."""
    helixq_for_a = Helixq(database)
    submit = ("submit", "q", "S-1", "--create", "--json")
    before = helixq_for_a(*submit, '{"n": 1}').json
    done = helixq(database, "secret", "rotate", "--json", role="operator")
    assert (done.code, done.json) == (Exit.OK, {"secret": 2})
    again = helixq_for_a(*submit, '{"n": 1}').json
    assert (again["decision"], again["fingerprint"]) == ("duplicate", before["fingerprint"])
    assert helixq_for_a(*submit, '{"n": 2}').code == Exit.REFUSED
    other = helixq_for_a("submit", "q", "S-2", "--json", '{"n": 1}').json
    assert other["fingerprint"] != before["fingerprint"]
    assert database.rows("select secret from helix.batch order by id") == [(1,), (2,)]
    assert helixq(database, "check").code == Exit.OK
    assert helixq(database, "secret", "rotate", role="pool").code == Exit.REFUSED
