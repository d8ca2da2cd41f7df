"""Background duties: run without claims, shared by replicas, reported."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.engine import duties
from tests.support.frozen_client import is_served, overdue_client
from tests.support.lab import Lab, engine_function, wait_until
from tests.support.service import Site, serving, settings_for

NAMES = {
    "reap", "promote", "expire", "fences", "retire", "archive", "sweep", "answers", "metrics",
    "reconcile", "audit", "runs",
}  # fmt: skip


def test_batch_of_a_dead_worker_is_reaped_without_claims(site, lab):
    del site
    [item] = lab.submit("s")
    lab.claim(lease_seconds=0.05)
    wait_until(lambda: lab.location(item.receipt.batch_id)[0] == "PENDING")
    assert lab.history(item.receipt.batch_id)[-1] == ("PENDING", "lost")
    actor = lab.value(
        "select e.actor from helix.event e where e.batch = %s order by e.version desc limit 1",
        lab.number(item.receipt.batch_id),
    )
    assert actor.startswith("service ")


def test_metrics_and_health_report_duties(http):
    wait_until(lambda: len(last_runs(http)) == len(NAMES))
    response = http.get("/health/ready").json()["duties"]
    assert {item["duty"] for item in response} == NAMES
    assert all(
        item["last_at"] and item["lag_seconds"] < 30 and not item["failed"] for item in response
    )
    text = http.get("/metrics").text
    for name in NAMES:
        assert f'helix_duty_lag_seconds{{duty="{name}"}}' in text
        assert f'helix_duty_rows_total{{duty="{name}"}}' in text


def test_service_ends_an_overdue_transaction_of_its_login(database, monkeypatch, caplog):
    """One of a replica that froze: no setting of the server ends it on a Unix socket."""
    monkeypatch.setattr("helixqueue.service.duties.OVERDUE_SECONDS", 0.1)
    with serving(settings_for(database)), overdue_client(database, "service") as process:
        wait_until(lambda: not is_served(database, process))
        wait_until(lambda: f"ended server process {process}" in caplog.text)


def last_runs(http):
    lines = http.get("/metrics").text.splitlines()
    return [item for item in lines if item.startswith("helix_duty_last_run_seconds{")]


def test_duties_continue_after_an_unexpected_error(http, caplog, monkeypatch):
    """A dead task would stop all duties without any message."""
    run_duty, faults = duties.run_duty, iter([ZeroDivisionError("somebody's data")])

    def faulty(**options):
        for fault in faults:
            raise fault
        return run_duty(**options)

    monkeypatch.setattr(duties, "run_duty", faulty)
    wait_until(lambda: "ZeroDivisionError" in caplog.text)
    assert "somebody's data" not in caplog.text
    before = last_runs(http)
    wait_until(lambda: last_runs(http) != before)


@pytest.mark.parametrize("role", ["app_a", "stranger"])
def test_login_bound_to_some_tenants_runs_no_duties(database, role):
    with database.connect(role) as connection, pytest.raises(
        psycopg.errors.InsufficientPrivilege, match="expected a role that acts for all tenants"
    ):  # fmt: skip
        connection.execute("select helix.run_duty_v1('eve')")


@pytest.fixture
def scratch(server, template):
    """A database for one test, whose functions may be replaced."""
    from tests.support.lab import new_database  # noqa: PLC0415 - the module's fixture has its name

    yield from new_database(server, template, None)


def test_failing_duty_is_reported_and_does_not_block_others(scratch):
    broken = """create or replace function helix.retire_due(p_limit integer) returns integer
        language plpgsql as $$ begin raise exception 'zebra' using errcode = 'QH999'; end $$"""
    scratch_owner = scratch.connect("helix_bootstrap")
    with scratch_owner as connection:
        connection.execute(broken)
    with Lab(scratch) as lab:
        done = [lab.run(duties.run_duty(actor="me", limit=10)) for _ in range(len(NAMES))]
        assert {item.duty for item in done} == NAMES
        [failed] = [item for item in done if item.error]
        assert (failed.duty, failed.did, failed.error) == ("retire", None, "zebra")
        rows = {row.duty: row for row in lab.run(duties.list_duties())}
        assert (rows["retire"].failed, rows["retire"].failures) == ("QH999", 1)
        assert rows["retire"].last_at is None
        # The message may contain user data, and every tenant may read the table.
        assert "zebra" not in repr(lab.rows("select d::text from helix.duty d"))
        assert rows["reap"].failed is None


AGE = """
create function helix.test_age(p_name text) returns void language sql security definer as $$
  select helix.enter();
  update helix.worker set last_seen = last_seen - interval '31 days'
  where role = session_user and name = p_name
$$;
alter function helix.test_age owner to helix_engine;
"""


def test_old_workers_are_forgotten_for_every_login(scratch):
    """Workers with a new name per start would accumulate."""
    with scratch.connect("helix_bootstrap") as connection:
        connection.execute(AGE)
    for role in ("pool", "app_a"):
        for name in ("gone", "here"):
            scratch.rows("select helix.hello_v1(%s)", name, role=role)
        scratch.rows("select helix.test_age('gone')", role=role)
    with Lab(scratch, "service") as service:  # which sees no tenant by itself
        done = [service.run(duties.run_duty(actor="me", limit=10)) for _ in range(len(NAMES))]
    assert [item.did for item in done if item.duty == "sweep"] == [2]
    left = scratch.rows("select role::text, name from helix.worker order by role")
    assert left == [("app_a", "here"), ("pool", "here")]


def test_duty_runs_once_at_a_time_without_waiting(scratch):
    with Lab(scratch) as lab, scratch.connect("pool", autocommit=False) as busy:
        held = busy.execute("select duty from helix.run_duty_v1('busy')").fetchone()
        others = []
        while (done := lab.run(duties.run_duty(actor="other", limit=10))) is not None:
            others.append(done.duty)
        assert {*held, *others} == NAMES
        assert held[0] not in others
        # It dies midway: its transaction is rolled back, and the next replica runs the duty.
        busy.rollback()
        assert lab.run(duties.run_duty(actor="heir", limit=10)).duty == held[0]


def test_duty_run_is_limited_and_continues_at_once(scratch):
    with Lab(scratch) as lab:
        lab.queue()
        lab.submit_many(25)
        leases = lab.claim(25)
        lab.pass_time(*[item.batch for item in leases])
        with engine_function(scratch) as execute:  # as in the first run of every two seconds
            execute("update helix.duty set mark = 0 where duty = 'reap'")
        did = []
        while (done := lab.run(duties.run_duty(actor="me", limit=10))) is not None:
            if done.duty == "reap":
                did.append(done.did)
        assert did == [10, 10, 5]


def test_service_can_run_without_duties(database):
    with serving(settings_for(database, duties=False)) as url, Site(database, url).client() as http:
        assert http.get("/health/ready").status_code == 200
