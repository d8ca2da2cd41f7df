"""Metrics that the database keeps: their names, types, labels and meaning.

The names are a contract: alerts, dashboards and docs/guides/operating.md use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple


class MetricRow(NamedTuple):
    """The value of one series; the tenant `*` means that it belongs to no tenant."""

    tenant: str
    name: str
    queue: str
    label: str
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric: `queue` and `label` are the names of its labels, empty where it has none.

    `label` may name two, separated by a comma; LABEL_SEPARATOR separates their values.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "untyped"]
    help: str
    queue: str = "queue"
    label: str = ""


# In the order of /metrics. `helix_xack_after_commit_failures` is a counter in everything but its
# name: Prometheus' clients add `_total` to the name of a counter, and this one has none.
FAMILIES: Final = (
    MetricFamily("helix_assign_conflict_total", "counter",
                 "Second assignments prevented: duplicate submissions, repeated claim requests.",
                 label="operation"),
    MetricFamily("helix_stale_writes_total", "counter",
                 "Writes refused because another worker owns the batch, or another batch the name "
                 "of an output.", label="operation"),
    MetricFamily("helix_duplicate_active_assignments", "gauge",
                 "Batches with more than one live assignment."),
    MetricFamily("helix_missing_audit_entries", "gauge",
                 "Assignments and steps without their ledger entry."),
    MetricFamily("helix_audit_missing_total", "counter",
                 "Assignments and steps found without their ledger entry, each counted once."),
    MetricFamily("helix_stream_pending", "gauge",
                 "Stream entries delivered and not acknowledged.", "stream", "group,consumer"),
    MetricFamily("helix_lease_reaped_total", "counter",
                 "Leases taken back from workers that stopped renewing."),
    MetricFamily("helix_process_latency_seconds", "histogram",
                 "Seconds from the start of an attempt until its worker settled it.", label="le"),
    MetricFamily("helix_id_normalization_changed_total", "counter",
                 "Submissions whose identity was not in its canonical form."),
    MetricFamily("helix_xack_after_commit_failures", "untyped",
                 "Failed acknowledgements of stream entries whose work was committed.",
                 "stream", "group"),
    MetricFamily("helix_stream_lag", "gauge",
                 "Stream entries that the consumer group has not read.", "stream", "group"),
    MetricFamily("helix_stream_oldest_seconds", "gauge",
                 "Age of the oldest stream entry without acknowledgement.", "stream", "group"),
    MetricFamily("helix_stream_deliveries_total", "counter",
                 "Deliveries of stream entries that an intake decided about.", "stream", "group"),
    MetricFamily("helix_stream_vanished_total", "counter",
                 "Stream entries deleted before they were processed.", "stream", "group"),
    MetricFamily("helix_stream_readers", "gauge",
                 "Consumers of the group that have read lately.", "stream", "group"),
    MetricFamily("helix_stream_looked_seconds", "gauge",
                 "Unix time of the last look at the consumer group in Redis.", "stream", "group"),
    MetricFamily("helix_intake_reported_seconds", "gauge",
                 "Unix time of the last report of an intake that was not stopped.",
                 "stream", "group,consumer"),
    MetricFamily("helix_batches", "gauge", "Batches by state.", label="state"),
    MetricFamily("helix_oldest_pending_seconds", "gauge",
                 "Age of the oldest claimable batch."),
    MetricFamily("helix_stalled_pending", "gauge",
                 "Claimable batches that wait for longer than the queue's stalled_after."),
    MetricFamily("helix_leases_overdue", "gauge",
                 "Leases that ended more than their own length ago and were not reaped."),
    MetricFamily("helix_submissions_total", "counter", "Submissions by decision.",
                 label="decision"),
    MetricFamily("helix_identity_refused_total", "counter",
                 "Submissions refused because their identity violates the profile."),
    MetricFamily("helix_attempt_failures_total", "counter",
                 "Failed attempts by failure class.", label="failure"),
    MetricFamily("helix_fences_in_doubt", "gauge",
                 "Effects whose outcome is unknown.", ""),
    MetricFamily("helix_fence_oldest_doubt_seconds", "gauge",
                 "Age of the oldest effect whose outcome is unknown.", ""),
    MetricFamily("helix_fence_calls_total", "counter",
                 "Calls of fences by decision.", "fence", "decision"),
    MetricFamily("helix_fence_conflict_differences_total", "counter",
                 "Values that differed in calls with the key of another request.", "fence"),
    MetricFamily("helix_fence_seal_seconds", "histogram",
                 "Seconds from the first call until the effect was sealed.", "fence", "le"),
    MetricFamily("helix_dead_letters", "gauge",
                 "Open dead letters by reason.", "source", "reason"),
    MetricFamily("helix_no_worker_matches", "gauge",
                 "Different requirements of claimable work that no worker of the last day has."),
    MetricFamily("helix_manifests", "gauge",
                 "Outputs of completed batches that are not published: granted or blocked.",
                 label="state"),
    MetricFamily("helix_output_lag_seconds", "gauge",
                 "Longest time that a completed batch waits for its files to be published."),
    MetricFamily("helix_output_orphaned_bytes", "gauge",
                 "Bytes that lost attempts staged and no publisher has removed."),
    MetricFamily("helix_outputs_published_total", "counter", "Published output files."),
    MetricFamily("helix_webhook_deliveries_total", "counter",
                 "Authentic deliveries of webhooks by decision.", "source", "decision"),
    MetricFamily("helix_feed_lag_seconds", "gauge",
                 "Age of the oldest event that a feed has not delivered.", "feed"),
    MetricFamily("helix_workers_alive", "gauge",
                 "Workers that are alive: neither ended nor silent for 30 seconds.", ""),
    MetricFamily("helix_backend_xmin_age", "gauge",
                 "Age of the oldest snapshot in transactions.", ""),
)  # fmt: skip
LABEL_SEPARATOR: Final = "\x1f"
BY_NAME: Final = {family.name: family for family in FAMILIES}
# Upper bounds of the histograms (engine/sql/78_metrics.sql:latency_bucket).
LATENCY_BUCKETS: Final = (
    "0.01", "0.1", "0.5", "1", "5", "15", "60", "300", "900", "3600", "14400", "+Inf",
)  # fmt: skip
