"""Background duties: done though nobody claims, shared by replicas, in the open."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.engine import duties
from tests.support.lab import Lab, until
from tests.support.service import Site, serving, settings_for

NAMES = {"reap", "promote", "expire", "fences", "retire", "archive", "sweep"}


def test_a_dead_workers_batch_comes_back_though_nobody_claims(site, lab):
    del site
    [one] = lab.submit("s")
    lab.claim(lease_seconds=0.05)
    until(lambda: lab.standing(one.receipt.batch_id)[0] == "PENDING")
    assert lab.history(one.receipt.batch_id)[-1] == ("PENDING", "lost")
    actor = lab.value(
        "select e.actor from helix.event e where e.batch = %s order by e.version desc limit 1",
        lab.number(one.receipt.batch_id),
    )
    assert actor.startswith("service ")


def test_metrics_and_health_tell_how_duties_stand(http):
    until(lambda: len(last_runs(http)) == len(NAMES))
    told = http.get("/health/ready").json()["duties"]
    assert {one["duty"] for one in told} == NAMES
    assert all(one["last_at"] and one["lag_seconds"] < 30 and not one["failed"] for one in told)
    text = http.get("/metrics").text
    for name in NAMES:
        assert f'helix_duty_lag_seconds{{duty="{name}"}}' in text
        assert f'helix_duty_rows_total{{duty="{name}"}}' in text


def last_runs(http):
    lines = http.get("/metrics").text.splitlines()
    return [one for one in lines if one.startswith("helix_duty_last_run_seconds{")]


def test_a_fault_of_the_service_ends_no_duties(http, caplog, monkeypatch):
    """A task that dies says nothing until the process ends, and nothing would come back by time."""
    tend, faults = duties.run_duty, iter([ZeroDivisionError("somebody's data")])

    def faulty(**options):
        for fault in faults:
            raise fault
        return tend(**options)

    monkeypatch.setattr(duties, "tend", faulty)
    until(lambda: "ZeroDivisionError" in caplog.text)
    assert "somebody's data" not in caplog.text
    before = last_runs(http)
    until(lambda: last_runs(http) != before)


@pytest.mark.parametrize("role", ["app_a", "stranger"])
def test_who_acts_for_some_tenants_takes_no_turn_that_is_everybodys(database, role):
    with database.connect(role) as connection, pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="expected a role that acts for all tenants"
    ):  # fmt: skip
        connection.execute("select helix.run_duty_v1('eve')")


@pytest.fixture
def scratch(server, template):
    """A database of one test, where functions may be broken."""
    from tests.support.lab import one_database  # noqa: PLC0415 - the module's fixture has its name

    yield from one_database(server, template, None)


def test_a_duty_that_fails_leaves_the_others_their_turn_and_is_told(scratch):
    broken = """create or replace function helix.retire_due(p_limit integer) returns integer
        language plpgsql as $$ begin raise exception 'zebra' using errcode = 'QH999'; end $$"""
    scratch_owner = scratch.connect("helix_bootstrap")
    with scratch_owner as connection:
        connection.execute(broken)
    with Lab(scratch) as lab:
        done = [lab.run(duties.run_duty(actor="me", limit=10)) for _ in range(len(NAMES))]
        assert {one.duty for one in done} == NAMES
        [failed] = [one for one in done if one.error]
        assert (failed.duty, failed.did, failed.error) == ("retire", None, "zebra")
        rows = {row.duty: row for row in lab.run(duties.list_duties())}
        assert (rows["retire"].failed, rows["retire"].failures) == ("QH999", 1)
        assert rows["retire"].last_at is None
        # The words may be about somebody's data, and everybody may read the table.
        assert "zebra" not in repr(lab.rows("select d::text from helix.duty d"))
        assert rows["reap"].failed is None


AGE = """
create function helix.test_age(p_name text) returns void language sql security definer as $$
  update helix.worker set last_seen = last_seen - interval '31 days'
  where role = session_user and name = p_name
$$;
alter function helix.test_age owner to helix_engine;
"""


def test_workers_that_are_long_gone_are_forgotten_whoever_they_logged_in_as(scratch):
    """Where every start has a name of its own, they would pile up for ever."""
    with scratch.connect("helix_bootstrap") as connection:
        connection.execute(AGE)
    for role in ("pool", "app_a"):
        for name in ("gone", "here"):
            scratch.rows("select helix.hello_v1(%s)", name, role=role)
        scratch.rows("select helix.test_age('gone')", role=role)
    with Lab(scratch, "service") as service:  # which by itself sees nobody's
        done = [service.run(duties.run_duty(actor="me", limit=10)) for _ in range(len(NAMES))]
    assert [one.did for one in done if one.duty == "sweep"] == [2]
    left = scratch.rows("select role::text, name from helix.worker order by role")
    assert left == [("app_a", "here"), ("pool", "here")]


def test_one_at_a_time_and_nobody_waits(scratch):
    with Lab(scratch) as lab, scratch.connect("pool", autocommit=False) as busy:
        held = busy.execute("select duty from helix.run_duty_v1('busy')").fetchone()
        others = []
        while (done := lab.run(duties.run_duty(actor="other", limit=10))) is not None:
            others.append(done.duty)
        assert sorted([*held, *others]) == sorted(NAMES)
        # It dies in the middle: what it did is undone, and the next to ask does it.
        busy.rollback()
        assert lab.run(duties.run_duty(actor="heir", limit=10)).duty == held[0]


def test_a_run_is_bounded_and_goes_on_at_once(scratch):
    with Lab(scratch) as lab:
        lab.queue()
        lab.submit_many(25)
        leases = lab.claim(25)
        lab.pass_time(*[one.batch for one in leases])
        did = []
        while (done := lab.run(duties.run_duty(actor="me", limit=10))) is not None:
            if done.duty == "reap":
                did.append(done.did)
        assert did == [10, 10, 5]


def test_a_service_can_leave_the_duties_to_others(database):
    with serving(settings_for(database, duties=False)) as url, Site(database, url).client() as http:
        assert http.get("/health/ready").status_code == 200
