"""Names of metrics follow the conventions of Prometheus, except the eight that users asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

# Their names are a requirement of users.
REQUIRED = {
    "helix_assign_conflict_total", "helix_duplicate_active_assignments",
    "helix_audit_missing_total", "helix_stream_pending", "helix_lease_reaped_total",
    "helix_process_latency_seconds", "helix_id_normalization_changed_total",
    "helix_xack_after_commit_failures",
}  # fmt: skip


def test_promtool_finds_no_fault_in_the_names_of_metrics(site, lab):
    program = shutil.which("promtool")
    if program is None:
        assert not os.environ.get("CI"), "CI installs prometheus"
        pytest.skip("apt-get install -y prometheus")
    lab.submit("s1")
    with site.client("operate") as http:
        exposition = http.get("/metrics").text
    families = re.split(r"(?=^# HELP )", exposition, flags=re.MULTILINE)
    kept = [text for text in families if not REQUIRED & set(text.split()[2:3])]
    assert len(kept) > 10
    done = subprocess.run(
        [program, "check", "metrics"],
        input="".join(kept),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
