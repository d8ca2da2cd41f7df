"""Numbers, durations and times as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from helixqueue.dashboard import formats

NOW = datetime(2026, 11, 18, 14, 32, 8, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((-1, "0 ms"), (0, "0 ms"), (0.012, "12 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s")),
        *((0.4, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (38, "38 s"), (59.6, "1m 00s")),
        *((875, "14m 35s"), (3_599.7, "1h 00m"), (8_040, "2h 14m"), (86_399, "23h 59m")),
        *((86_400, "1 d"), (300_000, "3 d")),
    ],
)
def test_duration_has_two_units_at_most(seconds: float, shown: str):
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(38, "38 s"), (60, "1 min"), (2_467, "41 min"), (7_300, "2 hours"), (260_000, "3 days")],
)
def test_age_in_a_sentence_has_one_unit(seconds: float, shown: str):
    assert formats.age(seconds) == shown


def test_count_that_stopped_at_a_limit_says_so():
    assert formats.number(18_204) == "18,204"
    assert formats.number(10_000, more=True) == "10,000+"
    assert formats.rate(27.1234) == "27.1"


def test_time_of_another_day_has_its_date():
    at = datetime(2026, 11, 18, 15, 21, 37, 615_400, tzinfo=timezone(timedelta(hours=1)))
    assert formats.clock(at, NOW) == "14:21:37"
    assert formats.clock(at - timedelta(days=1), NOW) == "17 Nov 14:21"
    assert formats.clock(at - timedelta(days=365), NOW) == "18 Nov 2025 14:21"
    assert formats.exact(at) == "14:21:37.615"
    assert formats.machine_time(at) == "2026-11-18T14:21:37.615Z"
    assert formats.tick(at, timedelta(hours=1)) == "14:21"
    assert formats.tick(at, timedelta(days=7)) == "18 Nov"


def test_detail_of_the_ledger_has_times_as_the_ledger_shows_them():
    stored = "seq-07 did not renew before 2026-11-18 14:06:41.61709+00"
    assert formats.without_date(stored) == "seq-07 did not renew before 14:06:41.617"
    assert formats.without_date("2026-11-18 14:06:41+00") == "14:06:41.000"
    assert formats.without_date("2026-11-18 14:06:41") == "2026-11-18 14:06:41"


def test_words_agree_with_their_count():
    assert formats.counted(1, "batch") == "1 batch"
    assert formats.counted(1_200, "batch") == "1,200 batches"
    assert formats.counted(2, "delivery", "deliveries") == "2 deliveries"
    assert [formats.times(count) for count in (0, 1, 2, 12)] == [
        "never", "once", "twice", "12 times",
    ]  # fmt: skip
    assert formats.listed(["a"]) == "a"
    assert formats.listed(["a", "b", "c"]) == "a, b and c"
