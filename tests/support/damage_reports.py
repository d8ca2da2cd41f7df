"""Damage to findings, metrics and the reports of intakes, as in `damage_ledger`."""

from __future__ import annotations

from tests.support.damage_ledger import MISSED

FINDING = """insert into helix.finding (kind, batch, number, queue, detail)
           select '{}', w.batch, w.number, w.queue, '{{}}'
           from helix.work w where w.batch = {{RUNNING}}"""

REPORTS = {
    "the tries of a message were edited": (
        MISSED | {"at worst its dead letter comes early, or some tries late"},
        """insert into helix.intake_failure (hash, tenant, tries, last_at)
           values (sha256('x'), 'a', 1000, now())""",
    ),
    "the report of an intake was edited": (
        MISSED | {"for display and metrics; the intake replaces it within seconds"},
        """insert into helix.intake
             (tenant, stream, group_name, consumer, started_at, seen_at, figures)
           values ('a', 's', 'g', 'c', now(), now(), '{}')""",
    ),
    "a second assignment was recorded as found": (
        {"assigned_twice"},
        FINDING.format("duplicate_assignment"),
    ),
    "an assignment without ledger entry was recorded as found": (
        {"assigned_without_event"},
        FINDING.format("audit_missing"),
    ),
    "an overdue lease was recorded as found": (
        {"lease_not_reaped"},
        FINDING.format("lease_overdue"),
    ),
    "a stalled queue was recorded as found": (
        {"pending_stalled"},
        FINDING.format("stalled_pending"),
    ),
    "a finding was deleted": (
        MISSED | {"the duties find what still holds again, and `check` reads the rows themselves"},
        FINDING.format("duplicate_assignment"),
        "delete from helix.finding",
    ),
    "a counter was edited": (
        MISSED | {"for alerts; no rule reads it, and the ledger has what it counts"},
        """insert into helix.metric (tenant, name, queue, value)
           values ('a', 'helix_lease_reaped_total', 'forged', 7)""",
    ),
    "a change of a counter was forged": (
        MISSED | {"for alerts; no rule reads it, and the ledger has what it counts"},
        """insert into helix.metric_change (tenant, name, queue, value)
           values ('a', 'helix_lease_reaped_total', 'forged', 7)""",
    ),
    "figures of a consumer group were edited": (
        MISSED | {"figures of Redis; the next look replaces them"},
        """insert into helix.stream_group (tenant, stream, group_name, first_at, looked_at, figures)
           values ('a', 'forged', 'g', now(), now(), '{}')""",
    ),
    "a run of the check was invented": (
        MISSED | {"what a check said; it can be run again"},
        """insert into helix.check_run (tenant, seconds, actor, results)
           values ('a', 1, 'forged', '[]')""",
    ),
    "what differed in a conflict was invented": (
        MISSED | {"the decision and the stored payload are the record"},
        """insert into helix.difference (batch, queue, actor, fingerprint, changes)
           values (1, 1, 'forged', sha256('x'), '[]')""",
    ),
    "what a worker did today was edited": (
        MISSED | {"figures for plots; the ledger has every step that they count"},
        """insert into helix.worker_day (tenant, day, worker, completed, failed)
           values ('a', current_date, 'forged', 7, 0)""",
    ),
    "figures of a minute were edited": (
        MISSED | {"figures for plots; the ledger has every step that they count"},
        """insert into helix.rollup (tenant, queue, seconds, at, submitted, repeated, completed,
                                     failed, cancelled, lost, refused, pending, waits, runs)
           values ('a', 'q', 60, now(), 7, 0, 0, 0, 0, 0, 0, 0, '{}', '{}')""",
    ),
    "a registered output file was edited": (
        {"manifest_edited"},
        "update helix.output set size = size + 1",
    ),
    "outputs were granted to another attempt": (
        {"manifest_edited", "output_not_granted"},
        "update helix.manifest set number = number + 1 where state = 'sealed'",
    ),
    "outputs were taken for unpublished": (
        {"output_not_sealed"},
        """update helix.manifest set state = 'granted', granted_at = now() - interval '1 day'
           where state = 'sealed'""",
    ),
    "outputs were kept from their removal": (
        {"output_not_removed"},
        """update helix.manifest set due_at = now(), sealed_at = now() - interval '1 day'
           where state = 'sealed'""",
    ),
    "the name of an output was given to another batch": (
        {"output_name_unbound"},
        "update helix.output_name set batch = batch + 1",
    ),
    "a run was added": (
        {"setting_edited"},
        """insert into helix.run (id, queue, datums, tries, priority, tenant, name, key, digest,
                                  egress, destination, received, spec, actor)
           select 7, min(q.id), 0, 1, 5, 'a', 'forged', 'k', sha256('x'), '', '', '{}', '{}', 'x'
           from helix.queue q""",
    ),
    "a count of a run was edited": (
        {"run_count_wrong"},
        "insert into helix.run_count (run, queue, what, value) values (7, 1, 'FAILED', 3)",
    ),
    "a change of a count of a run was forged": (
        {"run_count_wrong"},
        "insert into helix.run_change (run, queue, what, value) values (7, 1, 'FAILED', 3)",
    ),
    "a root of outputs was added": (
        {"setting_edited"},
        "insert into helix.output_root (tenant, uri, created_by) values ('a', 's3://forged', 'x')",
    ),
}
