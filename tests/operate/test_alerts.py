"""Every alert fires in the case it is for and in no other, and every query names a real metric."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helixqueue.operate.alerts import ALERTS, PANELS, RUNBOOKS, alert_rules, grafana_dashboard
from helixqueue.records.metric import FAMILIES
from helixqueue.service.metrics import Metrics, duties_text
from helixqueue.service.tenant_limits import TenantLimits
from helixqueue.worker import metrics as worker_metrics

ROOT = Path(__file__).parents[2]
QUEUE = '{tenant="lab", queue="basecall"}'
STREAM = '{tenant="lab", stream="samples", group="g"}'
CONSUMER = '{tenant="lab", stream="samples", group="g", consumer="c1"}'
TENANT = '{tenant="lab"}'

# Alert: series in steps of a minute, when it has fired, its labels and its value; and series of
# which it must not fire.
CASES = {
    "HelixDuplicateAssignments": (
        {f"helix_duplicate_active_assignments{QUEUE}": "0 0 1x10"}, "3m", QUEUE, 1,
        {f"helix_duplicate_active_assignments{QUEUE}": "0x20"}),
    "HelixAuditMissing": (
        {f"helix_missing_audit_entries{QUEUE}": "0x3 1x200"}, "3h", QUEUE, 1,
        {f"helix_missing_audit_entries{QUEUE}": "0x60"}),
    "HelixStreamPendingGrows": (
        {f"helix_stream_pending{CONSUMER}": "0+10x60"}, "30m", STREAM, 0,
        {f"helix_stream_pending{CONSUMER}": "600-10x60"}),
    "HelixStreamLagGrows": (
        {f"helix_stream_lag{STREAM}": "0+10x60"}, "30m", STREAM, 0,
        {f"helix_stream_lag{STREAM}": "600-10x60"}),
    "HelixStreamOldMessage": (
        {f"helix_stream_oldest_seconds{STREAM}": "0+60x60"}, "30m", STREAM, 1800,
        {f"helix_stream_oldest_seconds{STREAM}": "200x60"}),
    "HelixStreamNotRead": (
        {f"helix_stream_readers{STREAM}": "1x5 0x30"}, "15m", STREAM, 0,
        {f"helix_stream_readers{STREAM}": "1x60",
         f"helix_stream_looked_seconds{STREAM}": "0+60x60"}),
    "HelixIntakeSilent": (
        {f"helix_intake_reported_seconds{CONSUMER}": "0x30"}, "15m", CONSUMER, 900,
        {f"helix_intake_reported_seconds{CONSUMER}": "0+60x60"}),
    "HelixLeasesReaped": (
        {f"helix_lease_reaped_total{QUEUE}": "0+5x60"}, "30m", QUEUE, 50,
        {f"helix_lease_reaped_total{QUEUE}": "0x30 5x30"}),
    "HelixLeasesOverdue": (
        {f"helix_leases_overdue{QUEUE}": "2x30"}, "10m", QUEUE, 2,
        {f"helix_leases_overdue{QUEUE}": "0x9 1 0x30"}),
    "HelixMalformedIdentities": (
        {f"helix_identity_refused_total{QUEUE}": "0+2x60"}, "30m", QUEUE, 20,
        {f"helix_identity_refused_total{QUEUE}": "3x60"}),
    "HelixStalledPending": (
        {f"helix_stalled_pending{QUEUE}": "7x30"}, "10m", QUEUE, 7,
        {f"helix_stalled_pending{QUEUE}": "0x5 7 7 0x30"}),
    "HelixNoWorkerMatches": (
        {f"helix_no_worker_matches{QUEUE}": "2x60"}, "30m", QUEUE, 2,
        {f"helix_no_worker_matches{QUEUE}": "0x60"}),
    "HelixInDoubtAge": (
        {f"helix_fence_oldest_doubt_seconds{TENANT}": "0+60x60"}, "30m", TENANT, 1800,
        {f"helix_fence_oldest_doubt_seconds{TENANT}": "600x60"}),
    "HelixRefusalBurst": (
        {'helix_stale_writes_total{tenant="lab", queue="basecall", operation="settle"}':
         "0+10x30"}, "20m", QUEUE, 50,
        {'helix_stale_writes_total{tenant="lab", queue="basecall", operation="settle"}':
         "0+1x60"}),
    "HelixAcknowledgementsFail": (
        {f"helix_xack_after_commit_failures{STREAM}": "0+1x60"}, "30m", STREAM, 10,
        {f"helix_xack_after_commit_failures{STREAM}": "9x60"}),
    "HelixDeadLetters": (
        {'helix_dead_letters{tenant="lab", source="samples", reason="json"}': "0 3x60"}, "30m",
        '{tenant="lab", source="samples"}', 3,
        {'helix_dead_letters{tenant="lab", source="samples", reason="json"}': "0x60"}),
    "HelixOutputsBlocked": (
        {'helix_manifests{tenant="lab", queue="basecall", state="blocked"}': "0 2x60"}, "30m",
        QUEUE, 2,
        {'helix_manifests{tenant="lab", queue="basecall", state="granted"}': "2x60"}),
    "HelixOutputsUnpublished": (
        {'helix_output_lag_seconds{tenant="lab", queue="basecall"}': "2000x60"}, "50m",
        QUEUE, 2000,
        {'helix_output_lag_seconds{tenant="lab", queue="basecall"}': "60x60"}),
    "HelixDutyBehind": (
        {'helix_duty_lag_seconds{duty="reap"}': "600x30"}, "10m", '{duty="reap"}', 600,
        {'helix_duty_lag_seconds{duty="reap"}': "2x30"}),
    "HelixServiceDown": (
        {'up{job="helixqueue", instance="a"}': "0x30"}, "10m",
        '{job="helixqueue", instance="a"}', 0,
        {'up{job="helixqueue", instance="a"}': "1x60"}),
    "HelixOldSnapshot": (
        {"helix_backend_xmin_age": "2000000x30"}, "20m", "{}", 2000000,
        {"helix_backend_xmin_age": "10x60"}),
}  # fmt: skip


def promtool(*arguments):
    program = shutil.which("promtool")
    if program is None:
        assert not os.environ.get("CI"), "CI installs prometheus"
        pytest.skip("apt-get install -y prometheus")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def labels_of(text):
    return dict(re.findall(r'(\w+)="([^"]*)"', text))


def filled(text, labels, value):
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return text.replace("VALUE", str(value))


def rule_tests(alert):
    """The case in which the alert fires, and the one in which it does not."""
    series, at, labels, value, quiet = CASES[alert.name]
    labels = labels_of(labels)
    fired = {
        "exp_labels": labels | {"severity": alert.severity},
        "exp_annotations": {
            "summary": filled(alert.summary, labels, value),
            "runbook_url": f"{RUNBOOKS}/{alert.runbook}.md",
        },
    }
    return [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": text} for name, text in inputs.items()],
            "alert_rule_test": [
                {"eval_time": when, "alertname": alert.name, "exp_alerts": expected}
            ],
        }
        for inputs, when, expected in ((series, at, [fired]), (quiet, "45m", []))
    ]


def test_every_alert_fires_in_its_case_and_not_otherwise(tmp_path):
    assert {alert.name for alert in ALERTS} == set(CASES)
    (tmp_path / "rules.yml").write_text(alert_rules())
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(tmp_path / "rules.yml"))
    tests = [test for alert in ALERTS for test in rule_tests(alert)]
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    promtool("test", "rules", str(path))


def exported_names():
    """Every metric of service, database, fences and worker."""
    limits = TenantLimits(1, "x", kind="too-busy", retry_after=1)
    service = Metrics(limits, limits).text() + duties_text([])
    names = {family.name for family in FAMILIES} | set(
        re.findall(r"^# TYPE (\w+)", service, re.MULTILINE)
    )
    for module in (worker_metrics.__file__, ROOT / "src/helixqueue/fence/metrics.py"):
        text = Path(module).read_text()
        names |= set(re.findall(r'"(helix_\w+)"', text))
        names |= {f"helix_worker_{name}" for name in re.findall(r'\("(\w+)", "[A-Z]', text)}
    return names


@pytest.mark.parametrize(
    "query", [*(a.expression for a in ALERTS), *(p.expression for p in PANELS)]
)
def test_every_query_names_exported_metrics(query):
    used = set(re.findall(r"\bhelix_\w+", query))
    known = exported_names()
    forms = {
        f"{name}{end}" for name in known for end in ("", "_total", "_bucket", "_count", "_sum")
    }
    assert used <= forms
    assert used or "up{" in query


def test_every_panel_query_parses(tmp_path):
    rules = [
        {"record": f"panel{number}", "expr": panel.expression}
        for number, panel in enumerate(PANELS)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(PANELS)} rules found" in promtool("check", "rules", str(path))
    shown = json.loads(grafana_dashboard())["panels"]
    assert [panel["targets"][0]["expr"] for panel in shown] == [p.expression for p in PANELS]


def test_every_alert_has_a_runbook_with_all_steps():
    pages = {path.stem for path in (ROOT / RUNBOOKS).glob("*.md")} - {"README"}
    assert pages == {alert.runbook for alert in ALERTS}
    for alert in ALERTS:
        text = (ROOT / RUNBOOKS / f"{alert.runbook}.md").read_text()
        headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert headings == ["Symptom", "What it means", "Look", "Fix", "Verify"], alert.runbook
        assert alert.name in text


def test_group_that_nobody_looks_at_counts_as_not_read(tmp_path):
    """With the last service and the last intake gone there are no figures, only their time."""
    (tmp_path / "rules.yml").write_text(alert_rules())
    [alert] = [alert for alert in ALERTS if alert.name == "HelixStreamNotRead"]
    test = rule_tests(alert)[0] | {
        "input_series": [{"series": f"helix_stream_looked_seconds{STREAM}", "values": "0x30"}]
    }
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": ["rules.yml"], "tests": [test]}))
    promtool("test", "rules", str(path))
