"""Duties that no process runs are named: by `duty list`, by the doctor and by `check`."""

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.engine import duties
from tests.support.cli import Helixq
from tests.support.lab import Lab
from tests.support.ledger_damage import damage

OF_A_SERVICE = "archive, audit, fences, metrics, reconcile, retire"
OF_CLAIMS = {"reap", "promote", "expire", "sweep", "answers"}
LONG_AGO = "update helix.epoch set started_at = now() - interval '2 hours'"


@pytest.fixture
def lab(fresh_database):
    """A database that was migrated two hours ago, where no process ran."""
    with Lab(fresh_database) as lab:
        damage(fresh_database, LONG_AGO)
        yield lab


def say(fresh_database):
    """What three commands say about duties, with their exit codes."""
    helixq = Helixq(fresh_database)
    listed, doctor = helixq("duty", "list"), helixq("doctor", "--json")
    [finding] = [row for row in doctor.json["findings"] if row["name"] == "duties"]
    checked = helixq("check", HELIX_DSN=fresh_database.dsn("helix_migrator"))
    return (listed.code, listed.err), (doctor.code, finding), checked.err


@pytest.mark.usefixtures("durable")
def test_duties_that_only_a_service_runs_are_named_while_a_worker_claims(fresh_database, lab):
    lab.queue()
    # One call runs a few duties.
    while OF_CLAIMS & {d for (d,) in lab.rows("select duty from helix.duty where last_at is null")}:
        lab.claim()
    (code, message), (doctor_code, finding), warning = say(fresh_database)
    assert (code, doctor_code) == (Exit.NO, Exit.NO)
    empty = Helixq(fresh_database)("duty", "findings").err
    assert "no findings" in empty
    assert "never ran: audit, reconcile;" in empty
    for text in (message, finding["found"], warning):
        assert f"never ran: {OF_A_SERVICE}" in text
        assert not any(name in text for name in OF_CLAIMS)
    for text in (message, finding["remedy"], warning):
        assert "helixq serve" in text


@pytest.mark.usefixtures("durable")
def test_no_duty_is_named_after_a_service_ran_all(fresh_database, lab):
    while lab.run(duties.run_duty(actor="service", limit=1000)) is not None:
        pass
    (code, message), (doctor_code, finding), warning = say(fresh_database)
    assert (code, doctor_code, finding["verdict"]) == (Exit.OK, Exit.OK, "ok")
    assert "no process" not in message + warning


def test_duty_of_a_service_that_ended_is_overdue(fresh_database, lab):
    while lab.run(duties.run_duty(actor="service", limit=1000)) is not None:
        pass
    damage(fresh_database, "update helix.duty set next_at = now() - interval '1 hour'")
    (code, message), (doctor_code, finding), _ = say(fresh_database)
    assert (code, doctor_code) == (Exit.NO, Exit.NO)
    assert "overdue: answers (3600 s), archive (3600 s), audit" in message
    assert "overdue: answers (3600 s), archive (3600 s), audit" in finding["found"]
