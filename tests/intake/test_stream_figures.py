"""Figures of streams: read from Redis by services and intakes, counted in the transaction."""

from __future__ import annotations

import signal

from helixqueue.engine import letters, metrics, streams
from helixqueue.service import ServiceSettings
from tests.support.duties import run_duty
from tests.support.lab import Lab, wait_until
from tests.support.service import serving
from tests.support.streams import DelayProxy, intake_process

DELIVERIES = "helix_stream_deliveries_total"


def series(stream, *labels):
    """The series of the stream by name, of this group or consumer."""
    assert run_duty(stream.lab, "metrics") is None
    wanted = streams_label(*labels)
    with Lab(stream.database, "operator") as operator:
        rows = operator.run(metrics.read_metrics())
    return {
        row.name: row.value for row in rows if (row.queue, row.label) == (stream.stream, wanted)
    }


def streams_label(*labels):
    return "\x1f".join(("g", *labels))


def group_of(stream):
    return streams.StreamGroup("a", stream.stream, "g")


def test_service_reports_unread_messages_while_no_intake_runs(stream, database):
    with stream.running():
        wait_until(lambda: stream.redis.exists(stream.stream))
        wait_until(lambda: stream.lab.run(streams.knows_group(group_of(stream))))
    stream.add(*[f"s{n}" for n in range(50)])
    settings = ServiceSettings(database.dsn("service"), redis=stream.url)
    with serving(settings):
        wait_until(lambda: series(stream).get("helix_stream_lag") == 50, "the service", 60)
    found = series(stream)
    assert found["helix_stream_oldest_seconds"] > 0
    assert found["helix_stream_readers"] == 1  # the intake has just ended


def test_other_intake_reports_the_figures_while_one_is_frozen(stream, tmp_path):
    marker = tmp_path / "point"
    stream.add("s1", "s2")
    frozen = intake_process(
        stream, tmp_path, consumer="frozen", HELIX_FAILPOINTS="intake.read=stop",
        HELIX_FAILPOINT_FILE=str(marker),
    )  # fmt: skip
    try:
        wait_until(marker.with_suffix(".fired").exists, seconds=60)
        assert stream.pending == 2
        with stream.running(consumer="other", idle=600) as other:
            stream.add("s3")
            wait_until(lambda: other.counters.acknowledged == 1)
            wait_until(lambda: (other.snapshot.pending, other.snapshot.lag) == (2, 0))
            wait_until(lambda: series(stream, "frozen").get("helix_stream_pending") == 2)
            # The frozen intake is not stopped: the time of its last report stays.
            assert "helix_intake_reported_seconds" in series(stream, "frozen")
    finally:
        frozen.kill()
        frozen.communicate()
    assert "helix_intake_reported_seconds" not in series(stream, "other")


def test_old_figures_are_left_out_and_the_time_of_the_look_stays(stream):
    figures = {"lag": 415, "readers": 1, "pending_by_consumer": {"c1": 3}}
    stream.lab.run(streams.store_look(group_of(stream), seconds=0, figures=figures))
    assert series(stream)["helix_stream_lag"] == 415
    stream.lab.run(streams.store_look(group_of(stream), seconds=3_600, figures={"lag": 1}))
    assert series(stream)["helix_stream_lag"] == 415  # an older look replaces nothing
    other = streams.StreamGroup("a", stream.stream, "other")
    stream.lab.run(streams.store_look(other, seconds=61, figures=figures))
    with Lab(stream.database, "operator") as operator:
        assert run_duty(stream.lab, "metrics") is None
        rows = operator.run(metrics.read_metrics())
    names = {row.name for row in rows if row.queue == stream.stream and row.label == "other"}
    assert names == {
        "helix_stream_looked_seconds",
        DELIVERIES,
        "helix_stream_vanished_total",
        "helix_xack_after_commit_failures",
    }


def test_killed_intakes_lose_no_count(stream, tmp_path):
    """Each dies after a commit and before anything else; every delivery is counted."""
    marker = tmp_path / "point"
    for number in range(3):
        stream.add(*[f"s{number}-{n}" for n in range(5)])
        process = intake_process(
            stream, tmp_path, HELIX_FAILPOINTS="intake.committed=kill",
            HELIX_FAILPOINT_FILE=str(marker),
        )  # fmt: skip
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
    stream.drain()
    decided = sum(times for _, _, times in stream.sources())
    assert decided > 15  # each of the killed left five entries to be delivered again
    assert series(stream)[DELIVERIES] == decided


def test_failed_acknowledgement_is_counted_before_the_next_report_is_due(stream, tmp_path):
    """An intake that is killed until then loses no count."""
    redis = stream.url.removeprefix("unix://")
    with (
        DelayProxy(redis, tmp_path / "cut.sock", 0, 0) as link,
        stream.running(redis=link.url, idle=60, report=600) as intake,
    ):
        wait_until(lambda: intake.snapshot is not None)
        link.cut_at = b"XACK"
        stream.add("s1")
        wait_until(stream.is_drained)
        assert series(stream)["helix_xack_after_commit_failures"] == 1
    assert series(stream)["helix_xack_after_commit_failures"] == 1


def test_stopped_intake_is_no_silent_one(stream):
    with stream.running():
        wait_until(lambda: "helix_intake_reported_seconds" in series(stream, "c1"))
    assert "helix_intake_reported_seconds" not in series(stream, "c1")
    [row] = [
        row for row in stream.lab.run(letters.intakes(tenant="a")) if row.stream == stream.stream
    ]
    assert row.ended_at is not None


def test_group_that_redis_lost_begins_at_the_first_entry_although_start_is_the_next_one(stream):
    """`start = "$"` holds once: after that, every message that waits was sent to this group."""
    stream.add("before the group")
    with stream.running(start="$"):
        wait_until(lambda: stream.lab.run(streams.knows_group(group_of(stream))))
        stream.add("first")
        wait_until(lambda: stream.batches == 1)
    stream.redis.delete(stream.stream)  # Redis came back empty
    stream.add(*[f"after-{n}" for n in range(5)])
    stream.drain(start="$")
    assert stream.batches == 6


def test_group_lost_while_its_intake_runs_begins_at_the_first_entry(stream):
    with stream.running(start="$"):
        wait_until(lambda: stream.lab.run(streams.knows_group(group_of(stream))))
        pipe = stream.redis.pipeline(transaction=True)  # the intake sees all of it at once
        pipe.delete(stream.stream)
        for number in range(50):
            pipe.xadd(stream.stream, {"identity": f"s{number}", "payload": "{}"})
        pipe.execute()
        wait_until(lambda: stream.batches == 50)
