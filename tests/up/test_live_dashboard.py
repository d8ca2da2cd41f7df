"""The dashboard of a running demo: every page, and the story of a sample beside its ledger."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
from datetime import UTC, datetime

import pytest

from helixqueue.cli.exits import Exit
from helixqueue.dashboard.navigation import SECTIONS
from tests.dashboard.browser import FITS, chromium, needs_chromium, open_link
from tests.support.cli import HELIXQ
from tests.support.up import environment, up

pytestmark = [needs_chromium, pytest.mark.timeout(240), pytest.mark.xdist_group("up")]
PATHS = [entry.path for section in SECTIONS for entry in section.entries]
WIDTHS = (390, 1440)


def test_pages_of_the_live_demo_agree_with_its_ledger_and_end_with_it(tmp_path):
    with up(tmp_path, "--demo") as running, chromium() as browser:
        expected = ("ERR_", "Failed to load")  # the page that is open when the service ends
        with open_link(browser, running.facts["login"], expected=expected) as page:
            statuses = []
            page.on("response", lambda response: statuses.append(response.status))
            assert page.locator(".who strong").inner_text() == pwd.getpwuid(os.geteuid()).pw_name
            _walk(page)
            batch = _show_twice_run(page)
            _compare(page, _printed(tmp_path, "batch", "show", batch)["events"])
            _check(page)
            assert [status for status in statuses if status >= 500] == []
            listed_at = datetime.now(UTC)
            listed = {row["name"]: row for row in _printed(tmp_path, "worker", "list")["rows"]}
            page.goto("/workers")
            shown = page.locator("#workers tbody").inner_text()
            assert all(name in shown for name in listed)
            page.locator("[data-words]", has_text="Live, ").wait_for()
            code, log = running.stopped(signal.SIGINT)
    assert code == Exit.OK
    killed = re.findall(r"killed worker (\S+) while", log)
    # A worker that was killed just before the list had not missed a report.
    seen = {name: datetime.fromisoformat(row["last_seen"]) for name, row in listed.items()}
    silent = [name for name in killed if name in seen and (listed_at - seen[name]).seconds > 5]
    assert silent
    assert {listed[name]["status"] for name in silent} == {"ended"}
    assert {*re.findall(r"(?:killed|froze) worker (\S+) while", log)} <= set(listed)


def _walk(page):
    for path in PATHS:
        page.goto(path)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(FITS), (path, width)


def _show_twice_run(page):
    """Open the batch of a late write: the demo freezes a worker every few seconds."""
    page.goto("/")
    link = page.locator("#late tbody a").first
    link.wait_for()
    page.goto(link.get_attribute("href"))
    page.get_by_role("heading", name="Ran twice, took effect once").wait_for()
    assert page.locator(".tally dd").all_inner_texts()[1:3] == ["2", "1"]
    return page.url.rpartition("/")[2]


def _check(page):
    page.goto("/proof")
    page.get_by_role("button", name="Check now").click()
    page.get_by_role("heading", name="Every completed batch took effect once").wait_for()
    page.goto("/")
    assert page.locator("#verdict").get_by_text("Checked").is_visible()


def _printed(tmp_path, *words):
    shown = subprocess.run(
        [HELIXQ, *words, "--data", tmp_path / "data", "--json"],
        env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(shown.stdout)


def _compare(page, events):
    """Every row of the ledger, in the table of the page and in the lane of its lease."""
    rows = page.locator("#ledger tbody tr").all_inner_texts()
    assert len(rows) == len(events)
    for row, event in zip(rows, events, strict=True):
        assert event["reason"].capitalize() in row
        assert _clock(event) in row
    claims = [event for event in events if event["reason"] == "claimed"]
    ends = [event for event in events if event["reason"] in {"lost", "completed"}]
    lanes = page.locator(".timeline svg[role=img]").all()[1:]
    assert len(lanes) == len(claims) == len(ends) == 2
    for lane, claim, end in zip(lanes, claims, ends, strict=True):
        words = lane.get_attribute("aria-label")
        assert f", {claim['actor']}: claimed {_clock(claim)}" in words
        assert re.search(rf"{end['reason']} {_clock(end)}", words)


def _clock(event):
    return event["at"][11:23]
