"""Time series as SVG: what is drawn, and what is said in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from helixqueue.dashboard.pages.overview import since_first
from helixqueue.dashboard.plots import Mark, Series, plot, round_up, slots
from helixqueue.records.series import Figures, SeriesPoint, TimeSeries

START = datetime(2026, 11, 18, 13, 32, tzinfo=UTC)
HOUR = timedelta(hours=1)
END = START + HOUR
HOSTILE = """<script>alert(1)</script>" onload="x" '&amp;"""


def test_plot_says_in_words_what_it_shows():
    drawn = plot(
        "Batches per minute",
        [Series("completed", "area", [3, 0, 12]), Series("failed", "bars", [0, 2, 0], "bad")],
        START,
        END,
    )
    assert ET.fromstring(drawn).get("aria-label") == (
        "Batches per minute, 13:32 to 14:32: "
        "completed from 0 to 12, last 12; failed from 0 to 2, last 0"
    )


def test_plot_of_a_new_queue_begins_shortly_before_its_first_figures():
    points = [SeriesPoint(at=START + timedelta(minutes=place)) for place in range(60)]
    points[45] = replace(points[45], completed=3)
    series = TimeSeries("q", "1h", START, END, 60, None, Figures(), tuple(points))
    shown = since_first(series)
    assert (shown.start, shown.points) == (points[44].at, tuple(points[44:]))
    points[58] = replace(points[45], at=points[58].at)
    points[45] = points[44]
    shown = since_first(replace(series, points=tuple(points)))
    assert (shown.start, len(shown.points)) == (points[50].at, 10)
    points[0] = replace(points[0], pending=1)
    assert since_first(replace(series, points=tuple(points))).start == START


def test_plot_without_values_says_so():
    drawn = plot("Waiting time", [Series("p50", "line", [None, None])], START, END)
    assert ET.fromstring(drawn).get("aria-label", "").endswith("nothing recorded")
    assert "<path" not in drawn


def test_line_is_interrupted_where_nothing_was_measured():
    drawn = plot("Waiting time", [Series("p50", "line", [1, 2, None, None, 4, 3])], START, END)
    assert drawn.count('class="line"') == 2


def test_single_value_at_the_end_is_inside_the_plot_and_no_day_is_named_twice():
    drawn = plot("Time", [Series("p95", "line", [None] * 9 + [1.0])], START, START + 50 * HOUR)
    assert 'd="M99.0 50.0L100.0 50.0"' in drawn
    assert drawn.count(">19 Nov<") == 1


def test_mark_outside_the_period_is_left_out():
    marks = [
        Mark(START + timedelta(minutes=20), "gpu-02 silent"),
        Mark(END + timedelta(1), "later"),
    ]
    drawn = plot("Waiting", [Series("waiting", "area", [1, 2])], START, END, marks=marks)
    assert "gpu-02 silent" in drawn
    assert "later" not in drawn
    assert 'x1="33.33%"' in drawn


@given(
    st.lists(st.none() | st.floats(0, 1e9), max_size=70),
    st.sampled_from(["area", "line", "bars"]),
    st.text(max_size=40),
)
def test_any_series_is_valid_svg_without_inline_style(values, kind, name):
    name = "".join(char for char in name if char.isprintable()) + HOSTILE
    drawn = plot(name, [Series(name, kind, values, "ok")], START, END, marks=[Mark(START, name)])
    assert name in ET.fromstring(drawn).get("aria-label", "")
    assert "style=" not in drawn
    assert "<script" not in drawn
    assert "nan" not in drawn.replace(str(name), "")


@given(st.floats(0, 1e12))
def test_top_of_a_plot_holds_its_largest_value(value: float):
    top = round_up(value)
    assert value <= top <= max(2, 2.1 * value)


def test_slots_show_how_many_are_busy():
    assert slots(2, 4).count('fill="currentColor"') == 2
    assert ET.fromstring(slots(2, 4)).get("aria-label") == "2 of 4 slots busy"
    assert slots(50, 100).count('fill="currentColor"') == slots(50, 100).count('fill="none"')
    assert 'class="faint"' in slots(0, 2, alive=False)
