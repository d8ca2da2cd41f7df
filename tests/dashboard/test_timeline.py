"""The timeline of a batch against its ledger: every lease, delivery and refusal, and one effect."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from uuid import UUID
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helixqueue.dashboard.axis import Axis
from helixqueue.dashboard.timeline import deliveries, mini, silence, timeline
from helixqueue.dashboard.verdict import repeats_without_source, verdict
from helixqueue.records.batch import AttemptRow, BatchDetail, DecisionRow, RefusalRow, SourceRow
from helixqueue.states import State

DAY = datetime(2026, 11, 18, tzinfo=UTC)
SVG = "{http://www.w3.org/2000/svg}"


def at(clock: str) -> datetime:
    hours, minutes, seconds = map(int, clock.split(":"))
    return DAY + timedelta(hours=hours, minutes=minutes, seconds=seconds)


NOW = at("14:32:08")


def batch_of(**values) -> BatchDetail:
    default = dict.fromkeys(field.name for field in fields(BatchDetail))
    default |= {
        "batch_id": UUID("2336ad4b-c574-8cb3-9fe5-11bb1a5cd6c7"),
        "state": State.PENDING,
        "created_at": at("14:02:09"),
        "attempt": 0,
        "attempts": (),
        "refusals": (),
        "decisions": (),
        "sources": (),
    }
    return BatchDetail(**default | values)


def attempt(
    place: int, worker: str, claimed: datetime, ended: datetime | None, end: str | None
) -> AttemptRow:
    return AttemptRow(place, 1, 48_000 + place, worker, claimed, claimed, ended, end)


def refusal(number: int, worker: str, when: datetime, times: int = 1) -> RefusalRow:
    return RefusalRow(
        "settle", worker, "seq-03", 1, number, 48_002, State.COMPLETED, "stale", times, when, when
    )


LOST = AttemptRow(
    *(1, 1, 48_001, "seq-07", at("14:02:11"), at("14:02:11"), at("14:06:41"), "lost", "seq-03"),
    "seq-07 did not renew before 2026-11-18 15:06:41+01",
)
TWICE = batch_of(
    state=State.COMPLETED,
    finished_at=at("14:21:37"),
    attempts=(LOST, attempt(2, "seq-03", at("14:07:02"), at("14:21:37"), "completed")),
    refusals=(refusal(48_001, "seq-07", at("14:24:05")),),
    decisions=(
        DecisionRow(at("14:03:40"), "duplicate", "intake", None, 1, at("14:03:40")),
        DecisionRow(at("14:11:52"), "duplicate", "intake", None, 1, at("14:11:52")),
        DecisionRow(at("14:12:00"), "setting", "operator", None, 1, at("14:12:00")),
    ),
    sources=(
        SourceRow(
            *("stream", "batches", "1-0", "duplicate", 2, at("14:03:40"), at("14:11:52"), "intake")
        ),
    ),
)


def test_batch_that_ran_twice_shows_one_effect_and_one_refused_write():
    drawn = timeline(TWICE, NOW, lease_seconds=120)
    deliveries_lane, first, second = drawn.lanes
    assert (first.title, first.worker, first.note) == ("Attempt 1", "seq-07", "lost its lease")
    assert (second.title, second.worker, second.note) == ("Attempt 2", "seq-03", "completed")
    assert first.picture.count('href="#REFUSED"') == 1
    assert first.picture.count('class="ghost"') == 1
    assert [lane.picture.count('class="done"') for lane in drawn.lanes] == [0, 0, 1]
    assert all(lane.picture.count('class="effect"') == 1 for lane in drawn.lanes)
    assert deliveries_lane.note == "3 deliveries"
    assert drawn.folded == 0
    assert drawn.day == "18 Nov 2026"


def test_lane_reads_aloud():
    delivered, first, second = (
        ET.fromstring(lane.picture).get("aria-label")
        for lane in timeline(TWICE, NOW, lease_seconds=120).lanes
    )
    assert delivered == (
        "Asked for 3 times: new at 14:02:09.000; duplicate at 14:03:40.000; "
        "duplicate, redelivered at 14:11:52.000"
    )
    assert first == (
        "Attempt 1, seq-07: claimed 14:02:11.000; last sign of life 14:04:41.000; "
        "lease lost 14:06:41.000; late settle refused once, the last at 14:24:05.000"
    )
    assert second == "Attempt 2, seq-03: claimed 14:07:02.000; completed 14:21:37.000"


def test_silence_ends_at_the_recorded_deadline_and_begins_a_lease_before():
    assert silence(LOST, 120) == (at("14:04:41"), at("14:06:41"))
    assert silence(LOST, 100_000) == (at("14:02:11"), at("14:06:41"))
    assert silence(LOST, None) is None
    hidden = AttemptRow(1, 1, 1, "w", at("14:02:11"), None, at("14:06:41"), "lost", "r", None)
    assert silence(hidden, 120) == (at("14:04:41"), at("14:06:41"))
    assert silence(attempt(1, "w", at("14:02:11"), at("14:06:41"), "released"), 120) is None


def test_failed_batch_has_no_effect_line():
    batch = batch_of(
        state=State.FAILED,
        finished_at=at("14:10:00"),
        attempts=(attempt(1, "seq-07", at("14:03:00"), at("14:10:00"), "failed"),),
    )
    drawn = timeline(batch, NOW)
    assert not any('class="effect"' in lane.picture for lane in drawn.lanes)
    assert not any('class="done"' in lane.picture for lane in drawn.lanes)
    assert drawn.lanes[1].note == "failed"


def test_live_lease_reaches_to_now():
    batch = batch_of(
        state=State.RUNNING, attempts=(attempt(1, "seq-07", at("14:30:00"), None, None),)
    )
    [_, lane] = timeline(batch, NOW).lanes
    bar = next(rect for rect in ET.fromstring(lane.picture) if rect.get("class") == "going")
    axis = Axis.around(at("14:30:00"), NOW)
    assert lane.note == "is running"
    assert float(bar.get("x", "")[:-1]) + float(bar.get("width", "")[:-1]) == pytest.approx(
        axis.at(NOW), abs=0.1
    )


def test_long_wait_is_written_instead_of_drawn():
    batch = batch_of(
        state=State.COMPLETED,
        created_at=at("09:00:00"),
        finished_at=at("14:21:37"),
        attempts=(attempt(1, "seq-03", at("14:07:02"), at("14:21:37"), "completed"),),
    )
    assert "asked for 5h 07m earlier" in timeline(batch, NOW).lanes[0].picture


def test_many_leases_are_folded_and_shown_on_request():
    rows = tuple(
        attempt(place, f"w-{place}", DAY + timedelta(minutes=place),
                DAY + timedelta(minutes=place, seconds=50), "lost")
        for place in range(1, 13)
    )  # fmt: skip
    batch = batch_of(created_at=DAY, attempts=rows)
    drawn = timeline(batch, NOW)
    assert [lane.worker for lane in drawn.lanes[1:]] == [
        f"w-{place}" for place in (1, 2, 7, 8, 9, 10, 11, 12)
    ]
    assert (drawn.folded, drawn.fold_after) == (4, 3)
    assert len(timeline(batch, NOW, all_leases=True).lanes) == 13


def test_refused_write_with_an_unknown_token_is_drawn_too():
    batch = batch_of(refusals=(refusal(7, "stranger", at("14:05:00"), times=3),))
    lane = timeline(batch, NOW).lanes[-1]
    assert (lane.title, lane.note) == ("Unknown token", "stranger")
    assert 'href="#REFUSED"' in lane.picture


def test_batch_without_deliveries_and_leases_is_drawn():
    assert timeline(batch_of(created_at=None), NOW).lanes[0].note == "0 deliveries"
    assert deliveries(batch_of(created_at=None)) == []


def test_mini_lane_says_what_it_shows():
    drawn = mini(TWICE.attempts, TWICE.refusals, TWICE.state, NOW)
    assert ET.fromstring(drawn).get("aria-label") == "2 attempts, 1 refused write, completed"
    assert (drawn.count('class="held"'), drawn.count('class="done"')) == (1, 1)
    assert mini((), (), State.PENDING, NOW) == ""


def test_hostile_worker_name_stays_text():
    name = '"/><script>alert(1)</script>'
    batch = batch_of(
        state=State.COMPLETED,
        finished_at=at("14:21:37"),
        attempts=(attempt(1, name, at("14:07:02"), at("14:21:37"), "completed"),),
        refusals=(refusal(48_001, name, at("14:24:05")),),
    )
    for lane in timeline(batch, NOW).lanes:
        ET.fromstring(lane.picture)
        assert "<script" not in lane.picture
        assert "style=" not in lane.picture


def boxes(picture: str, width: int) -> list[tuple[float, float, int]]:
    """Left, right and height of the texts in a lane of this width, as a browser places them."""
    found = []
    for text in ET.fromstring(picture).iter("text"):
        if "minor" in text.get("class", "").split() and width < 690:
            continue
        x = float(text.get("x", "")[:-1]) * width / 100 + float(text.get("dx", "0"))
        length = 6.3 * len(text.text or "")
        left = (
            x - {"start": 0, "middle": length / 2, "end": length}[text.get("text-anchor", "start")]
        )
        found.append((left, left + length, int(text.get("y", ""))))
    return found


seconds = st.floats(0.001, 100_000)


@given(
    st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=9),
    st.lists(seconds, max_size=6),
    st.sampled_from([290, 320, 420, 689, 690, 800, 1_000, 1_400, 2_000]),
    st.booleans(),
)
def test_labels_never_meet(leases, repeats, width, completes):
    time, rows, refusals = DAY, [], []
    for place, (wait, length, late) in enumerate(leases, start=1):
        claimed = time + timedelta(seconds=wait)
        time = claimed + timedelta(seconds=length)
        last = place == len(leases) and completes
        rows.append(attempt(place, "seq-07", claimed, time, "completed" if last else "lost"))
        if not last:
            refusals.append(refusal(48_000 + place, "seq-07", time + timedelta(seconds=late)))
    arrivals = [DAY + timedelta(seconds=sum(repeats[: place + 1])) for place in range(len(repeats))]
    batch = batch_of(
        created_at=DAY,
        state=State.COMPLETED if completes else State.PENDING,
        finished_at=time if completes else None,
        attempts=tuple(rows),
        refusals=tuple(refusals),
        decisions=tuple(
            DecisionRow(when, "duplicate", "intake", None, 1, when) for when in arrivals
        ),
    )
    drawn = timeline(batch, max(time, *arrivals, time) if arrivals else time, lease_seconds=30)
    for picture in [*(lane.picture for lane in drawn.lanes), drawn.axis]:
        assert not re.search(r"nan|inf", picture)
        placed = boxes(picture, width)
        for place, (left, right, y) in enumerate(placed):
            assert left >= -12
            assert right <= width + 12
            for other_left, other_right, other_y in placed[:place]:
                assert abs(y - other_y) >= 15 or left >= other_right or other_left >= right


@given(seconds, seconds)
def test_axis_holds_its_period_with_a_few_round_ticks(begin, length):
    first = DAY + timedelta(seconds=begin)
    last = first + timedelta(seconds=length)
    axis = Axis.around(first, last)
    assert axis.start <= first < last <= axis.end
    assert 1 <= len(axis.ticks()) <= 8
    assert axis.at(last) - axis.at(first) > 40


def test_repeats_counted_in_one_row_are_all_deliveries():
    batch = batch_of(
        decisions=(DecisionRow(at("14:03:40"), "duplicate", "ada", None, 7, at("14:03:55")),)
    )
    assert timeline(batch, NOW).lanes[0].note == "8 deliveries"
    assert verdict(batch).deliveries == 8


def test_delivery_listed_as_source_is_not_listed_as_a_repeat_again():
    counted = DecisionRow(at("14:03:40"), "duplicate", "intake", None, 3, at("14:11:52"))
    setting = DecisionRow(at("14:12:00"), "setting", "operator", None, 1, at("14:12:00"))
    batch = batch_of(decisions=(counted, setting), sources=TWICE.sources)
    repeats = repeats_without_source(batch)
    assert [(row.kind, row.times) for row in repeats] == [("duplicate", 1), ("setting", 1)]
