"""The reconciliation finds seeded violations, counts each once, and is silent on healthy traffic.

Violations are what only a superuser with DDL can do: triggers off, an edit, triggers on again.
"""

from __future__ import annotations

import pytest

from helixqueue.engine import metrics
from helixqueue.operate.check import check
from tests.support.database import copy_of
from tests.support.duties import make_all_due, make_due, run_duty
from tests.support.lab import Lab, wait_until
from tests.support.ledger_damage import damage, with_batch_ids

# A ledger entry that claims a batch, and the claim call that leads to it.
CLAIM = """
    insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason, late,
                             hash, actor, batch, queue, version, attempt, before)
    select nextval('helix.entry_id'), 1, now(), {position}, 1, 'PENDING', 'RUNNING', 'started',
           false, sha256('x'), 'eve', array[w.batch], array[w.queue], array[w.version + 2],
           array[w.attempt + 1::smallint], array[{before}]
    from helix.work w where w.batch = {batch}"""
CALL = """
    insert into helix.request (id, number, due, unsettled, worker)
    select gen_random_uuid(), last_value, now() + interval '1 min', 1, 'eve' from helix.entry_id"""
NOW = "helix.current_position()"
LOST_ENTRY = "update helix.work set entry = nextval('helix.entry_id') where batch = {batch}"
LONG_AGO = "now() - interval '3 days'"


def claim(batch, before="w.entry", position=NOW):
    return CLAIM.format(batch=batch, before=before, position=position)


# What was seeded: the kind that the loop finds, and the statements.
SEEDS = {
    "a second claim of a running batch, in ledger and claim calls": (
        "duplicate_assignment", claim("{RUNNING}"), CALL),
    "a second claim of a running batch, in the ledger alone": (
        "duplicate_assignment", claim("{RUNNING}")),
    "a second claim of a running batch, which says that it is old": (
        "duplicate_assignment", claim("{RUNNING}", position="700"), CALL),
    "a second claim of an assigned batch": (
        "duplicate_assignment", claim("{ASSIGNED}"), CALL),
    "a second claim that continues the same step as the first": (
        "duplicate_assignment", claim("{RUNNING}", before="w.before"), CALL),
    "a second claim that took the row": (
        "duplicate_assignment", claim("{RUNNING}"), CALL,
        """update helix.work set number = (select last_value from helix.entry_id),
                                 entry = (select last_value from helix.entry_id),
                                 version = version + 2, actor = 'eve' where batch = {RUNNING}"""),
    "two claim calls of one lease": (
        "duplicate_assignment",
        """insert into helix.request (id, number, due, unsettled, worker)
           select gen_random_uuid(), w.number, now() + interval '1 min', 1, 'eve'
           from helix.work w where w.batch = {RUNNING}"""),
    "an assignment without its event": (
        "audit_missing",
        """delete from helix.entry where id = (select number from helix.work
                                               where batch = {ASSIGNED})"""),
    "an assignment that no entry names": (
        "audit_missing", LOST_ENTRY.replace("{batch}", "{ASSIGNED}")),
    "a claim call without its entry": (
        "audit_missing", "select nextval('helix.entry_id')", CALL),
    "a running batch that was made so by hand": (
        "audit_missing",
        """update helix.work set state = 'RUNNING', pending = false, number = entry, nonce = 1,
                  epoch = 1, deadline = now() + interval '1 h', lease_seconds = 60
           where batch = {PENDING}"""),
    "a completed batch whose last entry is gone": (
        "audit_missing",
        """delete from helix.entry where id = (select entry from helix.work
                                               where batch = {COMPLETED})"""),
    "a completed batch the entry of whose claim is gone": (
        "audit_missing",
        """delete from helix.entry where id = (select number from helix.work
                                               where batch = {COMPLETED})"""),
    "a claim that continues an entry that is gone": (
        "audit_missing",
        """delete from helix.entry where id = (select before from helix.work
                                               where batch = {RUNNING})"""),
    "a lease past twice its length": (
        "lease_overdue",
        f"update helix.work set deadline = {LONG_AGO} where batch = {{RUNNING}}"),
    "a lease past twice its length that no claim call leads to": (
        "lease_overdue",
        f"update helix.work set deadline = {LONG_AGO} where batch = {{ASSIGNED}}",
        """update helix.request set due = null
           where number = (select number from helix.work where batch = {ASSIGNED})"""),
    "claimable work that waits for too long": (
        "stalled_pending",
        f"update helix.work set changed_at = {LONG_AGO} where batch = {{PENDING}}",
        f"update helix.queue set updated_at = {LONG_AGO}, created_at = {LONG_AGO}"),
}  # fmt: skip
assert len(SEEDS) >= 15
# What `check` calls it.
INVARIANTS = {
    "duplicate_assignment": "assigned_twice",
    "audit_missing": "assigned_without_event",
    "lease_overdue": "lease_not_reaped",
    "stalled_pending": "pending_stalled",
}
RUN = ("metrics", "reconcile", "audit", "metrics")


def reconcile(database):
    """Run the duties once each, whether or not they are due; returns the open findings by kind."""
    with Lab(database) as lab:
        for name in RUN:
            assert run_duty(lab, name) is None
        return {finding.kind for finding in lab.run(metrics.list_findings())}


def series(database, name, role="operator"):
    with Lab(database, role) as lab:
        return [row for row in lab.run(metrics.read_metrics()) if row.name == name]


@pytest.fixture(scope="module")
def quiet_template(server, busy_template):
    """A database after real traffic in which the loop has run once, and found nothing."""
    with copy_of(busy_template, server, "helix_quiet") as database:
        assert reconcile(database) == set()
        yield database.name


@pytest.fixture
def quiet(server, quiet_template):
    with copy_of(quiet_template, server, "helix_reconciled") as database:
        yield database


@pytest.mark.parametrize("seed", SEEDS)
def test_loop_and_check_find_a_seeded_violation(quiet, seed):
    kind, *statements = SEEDS[seed]
    damage(quiet, *[with_batch_ids(quiet, statement) for statement in statements])
    assert kind in reconcile(quiet)
    with quiet.connect("helix_migrator") as connection:
        broken = {result.name for result in check(connection) if result.count}
    assert INVARIANTS[kind] in broken


def test_loop_finds_nothing_in_healthy_traffic_and_counts_its_batches(quiet):
    assert reconcile(quiet) == set()
    with Lab(quiet) as lab:
        make_all_due(lab)  # `reconcile` puts the others off, which `check` would report
    with quiet.connect("helix_migrator") as connection:
        assert [result.name for result in check(connection) if result.count] == []
    counted = {
        (row.tenant, row.queue, row.label): row.value
        for row in series(quiet, "helix_batches")
        if row.value
    }
    real = quiet.rows(
        "select q.tenant, q.name, w.state::text, count(*)::float8 from helix.work w "
        "join helix.queue q on q.id = w.queue group by 1, 2, 3"
    )
    assert counted == {(tenant, queue, state): number for tenant, queue, state, number in real}
    assert all(row.value == 0 for row in series(quiet, "helix_duplicate_active_assignments"))
    assert series(quiet, "helix_audit_missing_total")


def test_missing_event_is_counted_once_however_often_it_is_found(quiet):
    damage(quiet, with_batch_ids(quiet, LOST_ENTRY.replace("{batch}", "{ASSIGNED}")))
    for _ in range(3):
        assert "audit_missing" in reconcile(quiet)
        # The alert reads the gauge, which stays as long as the row is missing.
        assert sum(row.value for row in series(quiet, "helix_missing_audit_entries")) == 1
    assert sum(row.value for row in series(quiet, "helix_audit_missing_total")) == 1


def test_second_assignment_is_counted_until_the_batch_has_one(quiet):
    damage(quiet, with_batch_ids(quiet, claim("{RUNNING}")), CALL)
    reconcile(quiet)
    assert sum(row.value for row in series(quiet, "helix_duplicate_active_assignments")) == 1
    damage(
        quiet,
        "delete from helix.request where number = (select last_value from helix.entry_id)",
        "delete from helix.entry where id = (select last_value from helix.entry_id)",
    )
    assert reconcile(quiet) == set()
    assert sum(row.value for row in series(quiet, "helix_duplicate_active_assignments")) == 0


def test_reap_by_a_claim_is_counted(quiet):
    with Lab(quiet) as lab:
        before = sum(row.value for row in series(quiet, "helix_lease_reaped_total"))
        lab.queue()
        lab.submit("s")
        lab.claim(lease_seconds=0.05)
        make_due(lab, "reap")
        # The claim reaps first, and gets the batch again.
        wait_until(lambda: lab.claim(lease_seconds=60) or make_due(lab, "reap"))
        reconcile(quiet)
        assert sum(row.value for row in series(quiet, "helix_lease_reaped_total")) == before + 1


def test_failure_classes_of_a_queue_are_bounded(quiet):
    with Lab(quiet) as lab:
        lab.queue(max_attempts=1)
        lab.submit_many(60)
        leases = lab.claim(60)
        for n, lease in enumerate(leases):
            lab.fail(lease, failure=f"Error{chr(65 + n % 26)}{chr(97 + n // 26)}")
        reconcile(quiet)
        rows = [r for r in series(quiet, "helix_attempt_failures_total") if r.queue == lab.q]
        assert (len(rows), sum(row.value for row in rows)) == (21, 60)
        assert "other" in {row.label for row in rows}


def test_tenant_reads_its_own_series_and_findings_only(quiet):
    damage(quiet, with_batch_ids(quiet, LOST_ENTRY.replace("{batch}", "{ASSIGNED}")))
    reconcile(quiet)
    for role, tenant in (("app_a", "a"), ("app_b", "b")):
        with Lab(quiet, role) as lab:
            assert {row.tenant for row in lab.run(metrics.read_metrics())} == {tenant}
            assert {f.tenant for f in lab.run(metrics.list_findings())} <= {tenant}
