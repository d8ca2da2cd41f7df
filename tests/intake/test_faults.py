"""Faults of Redis, of the intake and of the link between them, on real servers of every version."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
import redis

from helixqueue.cli.exits import Exit
from helixqueue.errors import Unavailable
from tests.support.cli import run_in_process
from tests.support.lab import wait_until
from tests.support.streams import (
    PROOF,
    DelayProxy,
    RedisServer,
    StreamLab,
    intake_process,
    redis_programs,
    wait_seconds,
)

pytestmark = pytest.mark.module_database
POINTS = ["intake.read", "intake.write", "intake.commit", "intake.committed", "intake.ack"]


def test_intake_killed_at_any_point_loses_and_doubles_nothing(stream, tmp_path):
    """One life per point: each is killed there, and the next continues under the same name."""
    marker = tmp_path / "point"
    fired = marker.with_suffix(".fired")
    for number, point in enumerate(POINTS):
        stream.add(*[f"s{number}-{n}" for n in range(5)])
        process = intake_process(
            stream,
            tmp_path,
            HELIX_FAILPOINTS=f"{point}=kill",
            HELIX_FAILPOINT_FILE=str(marker),
        )
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
        assert fired.exists(), point
        fired.unlink()
    stream.drain()
    assert stream.batches == 5 * len(POINTS)
    assert stream.letters() == []
    assert all(decision == "new" for _, decision, _ in stream.sources())


def test_sigterm_finishes_the_chunk_in_hand(stream, tmp_path):
    """The signal arrives when everything is written and nothing is committed."""
    stream.add("s1", "s2")
    marker = tmp_path / "point"
    process = intake_process(
        stream,
        tmp_path,
        HELIX_FAILPOINTS="intake.commit=hold",
        HELIX_FAILPOINT_FILE=str(marker),
    )
    wait_until(marker.exists, seconds=60)
    assert (stream.batches, stream.pending) == (0, 2)
    process.send_signal(signal.SIGTERM)
    marker.unlink()
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "acknowledged 2" in out
    # The log has nothing but JSON lines with a level, the first included.
    lines = [json.loads(line) for line in errors.splitlines()]
    assert {line["level"] for line in lines} == {"info"}
    assert lines[0]["message"].startswith("database: ")
    assert stream.is_drained()


@pytest.fixture(params=["valkey-9", "redis-7.0", "redis-6.2"])
def redis_server(request, tmp_path):
    program = redis_programs()[request.param]
    if program is None:
        if os.environ.get("CI"):
            pytest.fail(f"{request.param} is not installed")
        pytest.skip(f"{request.param} is not installed")
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(program, tmp_path, *durable)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own(database, redis_server):
    stream = StreamLab(database, redis_server.url)
    yield stream
    stream.close()


def test_vanished_entries_of_every_server_are_recorded_and_removed(own):
    first, second, third = own.add("s1", "s2", "s3")
    crashed = own.intake(consumer="crashed")
    crashed._stream.create_group()
    assert len(crashed._stream.read_new()) == 3
    own.redis.xdel(own.stream, second)
    own.redis.xtrim(own.stream, minid=second, approximate=False)
    wait_seconds(0.06)
    intake = own.drain()
    assert {letter.source for letter in own.letters()} == {first, second}
    assert (intake.counters.vanished, own.batches, own.pending) == (2, 1, 0)
    assert [source for source, _, _ in own.sources()] == [third]


def test_vanished_entries_stay_pending_until_they_are_recorded(own):
    """Behind more entries than one claim takes, and while the database is away."""
    entries = own.add(*[f"s{n}" for n in range(6)])
    crashed = own.intake(consumer="crashed")
    crashed._stream.create_group()
    assert len(crashed._stream.read_new()) == 6
    own.redis.xdel(own.stream, entries[5])
    wait_seconds(0.06)
    away = own.intake(consumer="other", claim_count=2)
    away._writer._dsn = lambda: "postgresql://pool@/none?host=/nonexistent"
    away._stop.set()
    found, start = [], "0-0"
    for _ in range(3):
        claimed = away._stream.claim(start)
        found += claimed.vanished
        start = claimed.next
    assert found == [entries[5]]
    with pytest.raises(Unavailable):
        away._record_vanished(found)
    assert own.pending == 6
    own.drain(claim_count=2)
    assert [(letter.source, letter.reason) for letter in own.letters()] == [
        (entries[5], "vanished")
    ]
    assert (own.batches, own.pending) == (5, 0)


def test_deleted_entry_in_the_hands_of_a_live_consumer_is_no_loss(own):
    old, fresh = own.add("s1", "s2")
    live = own.intake(consumer="live", count=1)
    live._stream.create_group()
    live._stream.read_new()
    wait_seconds(0.2)
    [held] = live._stream.read_new()
    own.redis.xdel(own.stream, fresh)
    other = own.intake(consumer="other", idle=0.2)
    other._claim_all()
    assert (other.counters.claimed, other.counters.vanished) == (1, 0)
    assert [
        row["message_id"].decode() for row in own.redis.xpending_range(own.stream, "g", "-", "+", 9)
    ] == [fresh]
    live._process([held])
    live._acknowledge()
    assert (own.batches, own.pending, own.letters()) == (2, 0, [])
    assert {source for source, _, _ in own.sources()} == {old, fresh}


def test_status_shows_an_intake_that_waits_for_redis(own, redis_server):
    login = {"HELIX_DSN": own.database.dsn("pool")}

    def shown():
        status = run_in_process(["intake", "status", "--json"], login)
        rows = [row for row in status.json["rows"] if row["stream"] == own.stream]
        return (status.code, *rows) if rows else None

    own.add("s1", "s2")
    with own.running():
        code, row = wait_until(
            lambda: (found := shown()) and found[1]["figures"]["acknowledged"] == 2 and found
        )
        assert row["state"] == "reading"
        figures = row["figures"]
        assert (figures["read"], figures["vanished"], figures["pending"]) == (2, 0, 0)
        assert {"lag", "oldest_seconds", "pending_by_consumer"} <= figures.keys()
        redis_server.kill()
        code, row = wait_until(
            lambda: (found := shown()) and found[1]["state"] == "waiting" and found
        )
        assert (code, "Redis does not answer" in row["problem"]) == (Exit.NO, True)
        table = run_in_process(["intake", "status"], login)
        assert "delivered" in table.out
        redis_server.start()
        wait_until(lambda: (found := shown()) and found[1]["state"] == "reading")


def test_own_vanished_entries_of_every_server_are_recorded_at_the_start(own):
    first, _ = own.add("s1", "s2")
    crashed = own.intake()
    crashed._stream.create_group()
    crashed._stream.read_new()
    own.redis.xdel(own.stream, first)
    own.drain(idle=3600)
    assert [letter.source for letter in own.letters()] == [first]
    assert (own.batches, own.pending) == (1, 0)


def test_redis_killed_emptied_and_restored_doubles_and_loses_nothing(own, redis_server):
    """Acknowledged are the first ten; then Redis dies, is emptied and gets the old copy back."""
    names = [f"s{n}" for n in range(10)]
    old = [(entry, own.redis.xrange(own.stream, entry, entry)[0][1]) for entry in own.add(*names)]
    with own.running() as intake:
        wait_until(own.is_drained)
        redis_server.kill()
        wait_until(lambda: intake.problem is not None, "the intake to notice")
        redis_server.start()  # as it was
        own.add("after-the-crash")
        wait_until(lambda: own.batches == 11)
        redis_server.kill()
        redis_server.empty()
        redis_server.start()  # restarted empty
        own.add("after-the-loss")
        wait_until(lambda: own.batches == 12)
        redis_server.kill()
        redis_server.empty()
        redis_server.start()  # restored from an old copy: neither group nor acknowledgements
        for entry, fields in old:
            own.redis.xadd(own.stream, fields, id=entry)
        own.add("after-the-restore")
        wait_until(lambda: own.batches == 13)
        wait_until(own.is_drained)
    assert intake.counters.redis_failures > 0
    assert intake.problem is None
    assert own.letters() == []
    assert [times for _, _, times in own.sources()][:10] == [2] * 10


def test_flapping_redis_doubles_and_loses_nothing(own, redis_server):
    """Restarts every half second, every two seconds for a minute in `make proof`."""
    period, until = (2.0, 60.0) if PROOF else (0.5, 2.5)
    sent = []
    stop = threading.Event()

    def produce():
        client = redis_server.client()
        while not stop.is_set():
            try:
                name = f"s{len(sent)}"
                client.xadd(own.stream, {"identity": name, "payload": "{}"})
                sent.append(name)
            except (redis.RedisError, OSError):
                time.sleep(0.01)
            time.sleep(0.002)
        client.close()

    producer = threading.Thread(target=produce)
    producer.start()
    started = time.monotonic()
    with own.running(idle=0.3) as intake:
        while time.monotonic() - started < until:
            time.sleep(period)
            redis_server.kill()
            redis_server.start()
        stop.set()
        producer.join()
        wait_until(own.is_drained)
    assert intake.counters.redis_failures > 0
    # A reply may be lost: an entry that the producer does not count may exist as well.
    assert set(sent) <= set(identities(own))
    assert len(identities(own)) == len(set(identities(own)))
    assert own.letters() == []


def identities(stream):
    rows = stream.lab.rows(
        "select b.identity::text from helix.batch b join helix.queue q on q.id = b.queue"
        " where q.name = %s",
        stream.queue,
    )
    return [identity for (identity,) in rows]


def test_slow_redis_costs_only_time(stream, tmp_path):
    """Every reply takes 200 to 900 ms."""
    low, high = (0.2, 0.9) if PROOF else (0.1, 0.3)
    stream.add(*[f"s{n}" for n in range(40)])
    with DelayProxy(stream.url.removeprefix("unix://"), tmp_path / "slow.sock", low, high) as slow:
        intake = stream.intake(redis=slow.url, count=20, idle=60, report=60)
        intake.run(until_idle=True)
    assert slow.replies > 3
    assert (stream.batches, stream.pending, intake.counters.acknowledged) == (40, 0, 40)


def test_failed_acknowledgement_is_repeated_and_counted(stream, tmp_path):
    with (
        DelayProxy(stream.url.removeprefix("unix://"), tmp_path / "cut.sock", 0, 0) as link,
        stream.running(redis=link.url, idle=60) as intake,
    ):
        wait_until(lambda: intake.snapshot is not None)
        link.cut_at = b"XACK"
        stream.add("s1")
        wait_until(stream.is_drained)
    assert intake.counters.xack_failures == 1
    assert (stream.batches, intake.counters.new, intake.counters.duplicate) == (1, 1, 0)


@pytest.mark.timeout(3_600 if PROOF else 120)
def test_backlog_keeps_memory_flat(stream, tmp_path):
    """A backlog of a million messages in `make proof`, read 512 at a time."""
    backlog = 1_000_000 if PROOF else 4_000
    pipe = stream.redis.pipeline(transaction=False)
    for number in range(backlog):
        pipe.xadd(stream.stream, {"identity": f"s{number}", "payload": '{"a":1}'})
        if number % 1_000 == 999:
            pipe.execute()
    log = tmp_path / "log"
    with log.open("w") as file:
        process = intake_process(stream, tmp_path, count=512 if PROOF else 32, log=file)
    wait_until(lambda: entries_read(stream) > backlog // 50, seconds=120)
    sizes = [_resident(process.pid)]
    for tenth in range(1, 11):
        wait_until(lambda part=tenth: entries_read(stream) >= backlog * part // 10, seconds=3_000)
        sizes.append(_resident(process.pid))
    wait_until(stream.is_drained, seconds=60)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, log.read_text()[-2_000:]
    assert f"acknowledged {backlog}" in out
    assert stream.batches == backlog
    assert max(sizes) < sizes[0] * 1.3, sizes


def entries_read(stream):
    """How many entries the group has read; counting a million batches would slow the intake."""
    groups = stream.redis.xinfo_groups(stream.stream)
    return (groups[0]["entries-read"] or 0) if groups else 0


def _resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1])
