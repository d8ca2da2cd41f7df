"""Runbooks, operating guide and dashboard: commands, links and metrics that they name exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from helixqueue.engine.fences import SweepLag
from helixqueue.fence.metrics import Counters, prometheus_text
from helixqueue.operate.alerts import ALERTS, RUNBOOKS
from helixqueue.service.metrics import Metrics, duties_text, stored_text
from helixqueue.service.tenant_limits import TenantLimits
from helixqueue.worker.health import WorkerHealth
from helixqueue.worker.in_flight import InFlight
from helixqueue.worker.metrics import worker_collector
from tests.support.cli import commands

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / RUNBOOKS).glob("*.md"))
GUIDE = ROOT / "docs" / "guides" / "operating.md"
TEMPLATES = sorted((ROOT / "src" / "helixqueue" / "dashboard" / "templates").glob("*.html"))
COMMANDS = commands()
HELIXQ = re.compile(
    r"^\s*(helixq .+?)(?:</pre>.*)?$|`(helixq [^`]+)`|<code>(helixq [^<]+)<", re.MULTILINE
)
# Words that stand for a value, in the places of numbers.
NUMBERS = {"BATCH": "01234567", "LETTER": "1"}


def command_lines():
    for page in [*PAGES, GUIDE, *TEMPLATES]:
        text = re.sub(r"{{.*?}}", "1", page.read_text(encoding="utf-8"))
        for found in HELIXQ.finditer(text):
            line = (found[1] or found[2] or found[3]).split("  #")[0].strip()
            yield pytest.param(line, id=f"{page.stem}: {line}")


def command_of(words):
    """The command that a line names, and the words behind it."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return COMMANDS[name], words[length:]
    return None, words


@pytest.mark.parametrize("line", list(command_lines()))
def test_command_of_a_runbook_or_page_exists_with_its_options(line):
    words = [NUMBERS.get(word, word) for word in shlex.split(line)[1:]]
    command, rest = command_of(words)
    if command is None:
        known = {name.split()[0] for name in COMMANDS} | set(COMMANDS)
        assert " ".join(words) in known, f"no such command: {line}"
        return
    if not rest and any(parameter.required for parameter in command.params):
        return  # the text only names the command
    context = command.make_context(line, rest, resilient_parsing=False)
    assert context.args == []


def exported_families():
    """The name of every metric that a service, an application with fences or a worker exports."""
    limits = TenantLimits(1, "x", kind="too-busy", retry_after=1)
    text = (
        Metrics(limits, limits).text()
        + duties_text([])
        + stored_text([], tenants=True)
        + prometheus_text(Counters().snapshot(), [], SweepLag(0, 0, 0))
    )
    text += generate_latest(worker_collector(WorkerHealth(1, InFlight("gpu-1")))).decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert len(names) > 50
    return names


def test_guide_lists_exactly_the_exported_metrics():
    rows = re.findall(r"^\| `(helix_\w+)(?:\{[^}]*\})?` \|", GUIDE.read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows)), "a metric is listed twice"
    assert set(rows) == exported_families()


def test_every_alert_links_to_its_page_and_the_index_lists_both():
    index = (ROOT / RUNBOOKS / "README.md").read_text(encoding="utf-8")
    for alert in ALERTS:
        assert (ROOT / RUNBOOKS / f"{alert.runbook}.md").is_file(), alert.name
        [row] = [line for line in index.splitlines() if alert.name in line]
        assert f"({alert.runbook}.md)" in row
        assert row.rstrip(" |").endswith(alert.severity), alert.name
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert linked == {page.name for page in PAGES} - {"README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_metrics_of_a_runbook_are_exported(page):
    named = set(re.findall(r"\bhelix_[a-z_]+\b", page.read_text(encoding="utf-8")))
    forms = {
        f"{name}{end}" for name in exported_families() for end in ("", "_bucket", "_count", "_sum")
    }
    roles = {"helix_operator", "helix_engine"}
    assert named - forms - roles == set()
