"""What the page Activity says about an action."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from helixqueue.dashboard.pages.activity import reason_and_values
from helixqueue.records.overview import Activity


def test_activity_shows_the_reason_of_a_setting_before_its_values():
    detail = '{"class": 0, "paused": true, "lease_seconds": 30, "reason": "cleaning"}'
    at = datetime(2026, 11, 18, tzinfo=UTC)
    row = Activity(at, "ada", "set", "queue", "q", 0, None, detail)
    assert reason_and_values(row) == ("cleaning", "paused, lease 30 s")
    for text in ("the donor withdrew", "17", "", '{"other": 1}'):
        assert reason_and_values(replace(row, detail=text)) == (text, "")
    erased = replace(row, action="erased")
    assert reason_and_values(erased) == (detail, "")
