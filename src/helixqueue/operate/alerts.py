"""Alerts and dashboard as code: rules for Prometheus and a dashboard for Grafana.

Both use the metrics of `records/metric.py` and service/metrics.py. Each alert has a page in
docs/runbooks/, and a case in tests/operate/test_alerts.py in which it fires.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

RUNBOOKS: Final = "docs/runbooks"
VALUE: Final = "{{ $value | printf `%.0f` }}"  # VALUE in a summary


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expression: str
    lasting: str  # how long it must hold before the alert fires
    severity: Literal["page", "warn"]
    summary: str
    runbook: str  # the page in docs/runbooks, without suffix


ALERTS: Final = (
    Alert(
        "HelixDuplicateAssignments",
        "max by (tenant, queue) (helix_duplicate_active_assignments) > 0",
        "0m", "page",
        "VALUE batches of queue {{ $labels.queue }} have more than one live assignment.",
        "duplicate-assignments",
    ),
    Alert(
        "HelixAuditMissing",
        "max by (tenant, queue) (helix_missing_audit_entries) > 0",
        "5m", "page",
        "VALUE assignments or steps of queue {{ $labels.queue }} have no ledger entry.",
        "audit-missing",
    ),
    Alert(
        "HelixStreamPendingGrows",
        "sum by (tenant, stream, group) (max by (tenant, stream, group, consumer) "
        "(deriv(helix_stream_pending[10m]))) > 0",
        "10m", "warn",
        "Unacknowledged entries of stream {{ $labels.stream }} have grown for 10 minutes.",
        "stream-pending",
    ),
    Alert(
        "HelixStreamLagGrows",
        "max by (tenant, stream, group) (deriv(helix_stream_lag[10m])) > 0",
        "10m", "warn",
        "Unread entries of stream {{ $labels.stream }} have grown for 10 minutes.",
        "stream-unread",
    ),
    Alert(
        "HelixStreamOldMessage",
        "max by (tenant, stream, group) (helix_stream_oldest_seconds) > 300",
        "5m", "warn",
        "A message of stream {{ $labels.stream }} has waited for VALUE s.",
        "stream-unread",
    ),
    Alert(
        "HelixStreamNotRead",
        "max by (tenant, stream, group) (helix_stream_readers) == 0 "
        "or time() - max by (tenant, stream, group) (helix_stream_looked_seconds) > 120",
        "2m", "page",
        "No intake reads stream {{ $labels.stream }} for group {{ $labels.group }}.",
        "stream-unread",
    ),
    Alert(
        "HelixIntakeSilent",
        "time() - max by (tenant, stream, group, consumer) (helix_intake_reported_seconds) > 60",
        "2m", "warn",
        "Intake {{ $labels.consumer }} of {{ $labels.stream }} has not reported for VALUE s.",
        "intake-silent",
    ),
    Alert(
        "HelixLeasesReaped",
        "max by (tenant, queue) (rate(helix_lease_reaped_total[10m])) * 600 > 10",
        "5m", "warn",
        "VALUE leases of queue {{ $labels.queue }} were lost in 10 minutes.",
        "leases-reaped",
    ),
    Alert(
        "HelixLeasesOverdue",
        "max by (tenant, queue) (helix_leases_overdue) > 0",
        "5m", "page",
        "VALUE leases of queue {{ $labels.queue }} expired and were not reaped.",
        "leases-overdue",
    ),
    Alert(
        "HelixMalformedIdentities",
        "max by (tenant, queue) (rate(helix_identity_refused_total[10m])) * 600 > 5",
        "5m", "warn",
        "VALUE submissions to queue {{ $labels.queue }} had a malformed identity.",
        "malformed-identities",
    ),
    Alert(
        "HelixStalledPending",
        "max by (tenant, queue) (helix_stalled_pending) > 0",
        "5m", "warn",
        "VALUE batches of queue {{ $labels.queue }} wait for longer than stalled_after.",
        "stalled-pending",
    ),
    Alert(
        "HelixNoWorkerMatches",
        "max by (tenant, queue) (helix_no_worker_matches) > 0",
        "15m", "warn",
        "Work of queue {{ $labels.queue }} has VALUE requirements that no worker has.",
        "stalled-pending",
    ),
    Alert(
        "HelixInDoubtAge",
        "max by (tenant) (helix_fence_oldest_doubt_seconds) > 900",
        "5m", "warn",
        "The outcome of an effect of tenant {{ $labels.tenant }} is unknown for VALUE s.",
        "in-doubt",
    ),
    Alert(
        "HelixRefusalBurst",
        "sum by (tenant, queue) (max by (tenant, queue, operation) "
        "(rate(helix_stale_writes_total[5m]))) * 300 > 20",
        "0m", "warn",
        "VALUE stale writes to queue {{ $labels.queue }} were refused in 5 minutes.",
        "refusal-burst",
    ),
    Alert(
        "HelixAcknowledgementsFail",
        "max by (tenant, stream, group) (increase(helix_xack_after_commit_failures[10m])) > 0",
        "10m", "warn",
        "Acknowledgements of stream {{ $labels.stream }} fail after the commit.",
        "stream-pending",
    ),
    Alert(
        "HelixDeadLetters",
        "sum by (tenant, source) (max by (tenant, source, reason) (helix_dead_letters)) > 0",
        "15m", "warn",
        "VALUE messages of {{ $labels.source }} could not become batches.",
        "dead-letters",
    ),
    Alert(
        "HelixOutputsBlocked",
        'max by (tenant, queue) (helix_manifests{state="blocked"}) > 0',
        "5m", "page",
        "Output files of VALUE batches of {{ $labels.queue }} cannot get their names.",
        "outputs",
    ),
    Alert(
        "HelixOutputsUnpublished",
        "max by (tenant, queue) (helix_output_lag_seconds) > 1800",
        "5m", "warn",
        "Output files of a completed batch of {{ $labels.queue }} are unpublished for VALUE s.",
        "outputs",
    ),
    Alert(
        "HelixDutyBehind",
        "max by (duty) (helix_duty_lag_seconds) > 300",
        "5m", "page",
        "The duty {{ $labels.duty }} is VALUE s behind.",
        "duty-behind",
    ),
    Alert(
        "HelixServiceDown",
        'up{job="helixqueue"} == 0 or absent(up{job="helixqueue"})',
        "2m", "page",
        "Prometheus cannot scrape the service.",
        "service-down",
    ),
    Alert(
        "HelixOldSnapshot",
        "max(helix_backend_xmin_age) > 1000000",
        "10m", "warn",
        "A snapshot is VALUE transactions old: claims become slow.",
        "old-snapshot",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    expression: str
    unit: str = "short"
    legend: str = "{{tenant}} {{queue}}"


PANELS: Final = (
    Panel("Duplicate assignments", "max by (tenant, queue) (helix_duplicate_active_assignments)"),
    Panel("Missing audit entries", "max by (tenant, queue) (helix_missing_audit_entries)"),
    Panel("Claimable and waiting batches",
          'max by (tenant, queue) (helix_batches{state="PENDING"})'),
    Panel("Running batches", 'max by (tenant, queue) (helix_batches{state="RUNNING"})'),
    Panel("Failed batches", 'max by (tenant, queue) (helix_batches{state="FAILED"})'),
    Panel("Oldest claimable batch", "max by (tenant, queue) (helix_oldest_pending_seconds)", "s"),
    Panel("Stalled batches", "max by (tenant, queue) (helix_stalled_pending)"),
    Panel("Submissions per second",
          "sum by (decision) (max by (tenant, queue, decision) "
          "(rate(helix_submissions_total[5m])))", "ops", "{{decision}}"),
    Panel("Processing time, 95th percentile",
          "histogram_quantile(0.95, sum by (queue, le) (max by (tenant, queue, le) "
          "(rate(helix_process_latency_seconds_bucket[5m]))))", "s", "{{queue}}"),
    Panel("Reaped leases per minute",
          "max by (tenant, queue) (rate(helix_lease_reaped_total[5m])) * 60"),
    Panel("Overdue leases", "max by (tenant, queue) (helix_leases_overdue)"),
    Panel("Prevented second assignments per minute",
          "max by (tenant, queue, operation) (rate(helix_assign_conflict_total[5m])) * 60",
          legend="{{tenant}} {{queue}} {{operation}}"),
    Panel("Refused stale writes per minute",
          "max by (tenant, queue, operation) (rate(helix_stale_writes_total[5m])) * 60",
          legend="{{tenant}} {{queue}} {{operation}}"),
    Panel("Failed attempts by class",
          "max by (tenant, queue, failure) (rate(helix_attempt_failures_total[5m]))", "ops",
          "{{queue}} {{failure}}"),
    Panel("Identities changed by normalization per minute",
          "max by (tenant, queue) (rate(helix_id_normalization_changed_total[5m])) * 60"),
    Panel("Malformed identities per minute",
          "max by (tenant, queue) (rate(helix_identity_refused_total[5m])) * 60"),
    Panel("Unacknowledged stream entries",
          "max by (tenant, stream, group, consumer) (helix_stream_pending)",
          legend="{{stream}} {{group}} {{consumer}}"),
    Panel("Unread stream entries", "max by (tenant, stream, group) (helix_stream_lag)",
          legend="{{tenant}} {{stream}} {{group}}"),
    Panel("Oldest stream entry", "max by (tenant, stream, group) (helix_stream_oldest_seconds)",
          "s", "{{tenant}} {{stream}} {{group}}"),
    Panel("Failed acknowledgements",
          "max by (tenant, stream, group) (increase(helix_xack_after_commit_failures[10m]))",
          legend="{{tenant}} {{stream}} {{group}}"),
    Panel("Effects in doubt", "max by (tenant) (helix_fences_in_doubt)", legend="{{tenant}}"),
    Panel("Oldest doubt", "max by (tenant) (helix_fence_oldest_doubt_seconds)", "s", "{{tenant}}"),
    Panel("Fence calls per second",
          "max by (tenant, fence, decision) (rate(helix_fence_calls_total[5m]))", "ops",
          "{{tenant}} {{fence}} {{decision}}"),
    Panel("Differences per fence conflict",
          "max by (tenant, fence) (rate(helix_fence_conflict_differences_total[1h])) / "
          'max by (tenant, fence) (rate(helix_fence_calls_total{decision="conflict"}[1h]))',
          legend="{{tenant}} {{fence}}"),
    Panel("First call to seal, 95th percentile",
          "histogram_quantile(0.95, max by (tenant, fence, le) "
          "(rate(helix_fence_seal_seconds_bucket[5m])))", "s", "{{tenant}} {{fence}}"),
    Panel("Fence decisions of each process per second",
          "sum by (fence, decision) (rate(helix_fence_decisions_total[5m]))", "ops",
          "{{fence}} {{decision}}"),
    Panel("Open dead letters", "max by (tenant, source, reason) (helix_dead_letters)",
          legend="{{tenant}} {{source}} {{reason}}"),
    Panel("Lag of feeds", "max by (tenant, feed) (helix_feed_lag_seconds)", "s",
          "{{tenant}} {{feed}}"),
    Panel("Workers alive", "max by (tenant) (helix_workers_alive)", legend="{{tenant}}"),
    Panel("Busy slots", "sum(helix_worker_busy) / sum(helix_worker_slots)", "percentunit", "busy"),
    Panel("Claim call, 95th percentile",
          "histogram_quantile(0.95, sum by (le) (rate(helix_worker_claim_seconds_bucket[5m])))",
          "s", "claim"),
    Panel("HTTP requests per second",
          "sum by (route, status) (rate(helix_http_requests_total[5m]))", "reqps",
          "{{route}} {{status}}"),
    Panel("HTTP response time, 95th percentile",
          "histogram_quantile(0.95, sum by (route, le) "
          "(rate(helix_http_request_seconds_bucket[5m])))", "s", "{{route}}"),
    Panel("Duties behind", "max by (duty) (helix_duty_lag_seconds)", "s", "{{duty}}"),
    Panel("Oldest snapshot", "max(helix_backend_xmin_age)", legend="transactions"),
)  # fmt: skip


def alert_rules(runbooks: str = RUNBOOKS) -> str:
    """Rules in the format of Prometheus: YAML, written as JSON, which is YAML."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasting,
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary.replace("VALUE", VALUE),
                "runbook_url": f"{runbooks.rstrip('/')}/{alert.runbook}.md",
            },
        }
        for alert in ALERTS
    ]
    return json.dumps({"groups": [{"name": "helixqueue", "rules": rules}]}, indent=2) + "\n"


def grafana_dashboard() -> str:
    """A dashboard to import into Grafana; it asks for the Prometheus data source."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels: list[dict[str, Any]] = [
        {
            "id": number + 1,
            "title": panel.title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "targets": [
                {
                    "refId": "A",
                    "datasource": source,
                    "expr": panel.expression,
                    "legendFormat": panel.legend,
                }
            ],
        }
        for number, panel in enumerate(PANELS)
    ]
    dashboard = {
        "title": "HelixQueue",
        "uid": "helixqueue",
        "schemaVersion": 39,
        "tags": ["helixqueue"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}
            ]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=2) + "\n"
