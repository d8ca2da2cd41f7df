"""The intake: entries become batches once; what cannot is a dead letter; nothing is lost."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess

import pytest
import valkey as valkey_client

from helixqueue import HelixQueue
from helixqueue.engine import letters, reads
from helixqueue.errors import Refused, Unavailable
from helixqueue.intake import chunk
from helixqueue.producer import Producer
from tests.support.lab import BATCHES, wait_until
from tests.support.streams import wait_seconds

pytestmark = pytest.mark.module_database


def test_entries_become_batches_once_and_are_acknowledged(stream):
    stream.add("s1", "s2", "s\u0308", "s1")
    intake = stream.drain()
    assert (stream.batches, intake.counters.new, intake.counters.duplicate) == (3, 3, 1)
    assert intake.counters.acknowledged == 4
    assert [(decision, times) for _, decision, times in stream.sources()] == [
        ("new", 1),
        ("new", 1),
        ("new", 1),
        ("duplicate", 1),
    ]


def test_slow_consumer_overtaken_by_autoclaim_leaves_one_effect_and_both_deliveries(stream):
    [entry] = stream.add("s1")
    slow, fast = stream.intake(consumer="slow"), stream.intake(consumer="fast", idle=0.01)
    slow._stream.create_group()
    [held] = slow._stream.read_new()  # the consumer stops here, alive
    wait_seconds(0.02)
    fast._step()
    fast._acknowledge()
    assert fast.counters.claimed == 1
    slow._process([held])  # and goes on
    slow._acknowledge()
    assert stream.batches == 1
    assert stream.sources() == [(entry, "new", 2)]
    assert stream.pending == 0


def test_restarted_consumer_finishes_what_it_had_read(stream):
    stream.add("s1", "s2")
    crashed = stream.intake()
    crashed._stream.create_group()
    assert len(crashed._stream.read_new()) == 2
    # The restart does not wait until the entries are idle: the consumer's name is stable.
    stream.drain(idle=3600)
    assert stream.batches == 2


def test_several_intakes_share_a_stream(stream):
    names = [f"n{number}" for number in range(300)]
    with (
        stream.running(consumer="c1", count=16, idle=60),
        stream.running(consumer="c2", count=16, idle=60),
    ):
        stream.add(*names)
        wait_until(stream.is_drained)
    assert stream.batches == 300
    assert all(times == 1 for _, _, times in stream.sources())


def test_message_without_payload_carries_its_other_fields(stream):
    stream.add_fields({"sample_id": "s1", "pod5": "a.pod5", "lane": "3"})
    stream.drain()
    stored = "select b.payload::text from helix.batch b join helix.queue q on q.id = b.queue"
    assert stream.lab.value(f"{stored} where q.name = %s", stream.queue) == (
        '{"lane":"3","pod5":"a.pod5"}'
    )


POISON = {
    "not UTF-8": ({"identity": b"\xff\xfe", "payload": "{}"}, "encoding"),
    "field name not UTF-8": ({b"\xff": "x"}, "encoding"),
    "not JSON": ({"identity": "p1", "payload": "{"}, "json"),
    "NaN": ({"identity": "p2", "payload": '{"a":NaN}'}, "json"),
    "lone surrogate": ({"identity": "p3", "payload": '{"a":"\\ud800"}'}, "json"),
    "NUL in a string": ({"identity": "p4", "payload": '{"a":"\\u0000"}'}, "json"),
    "no identity": ({"payload": "{}"}, "identity"),
    "refused identity": ({"identity": "a\u202eb", "payload": "{}"}, "identity"),
    "NUL in the identity": ({"identity": "a\0b", "payload": "{}"}, "identity"),
    "identity too long": ({"identity": "x" * 5_000, "payload": "{}"}, "identity"),
    "too large": ({"identity": "p5", "payload": '"' + "x" * 1_100_000 + '"'}, "too_large"),
    "too deep": ({"identity": "p6", "payload": "[" * 5_000 + "]" * 5_000}, "json"),
    "unknown queue": ({"identity": "p7", "payload": "{}", "queue": "nowhere"}, "queue"),
    "forbidden queue": ({"identity": "p8", "payload": "{}", "queue": "other"}, "queue"),
    "invalid priority": ({"identity": "p9", "payload": "{}", "priority": "first"}, "field"),
    "two identities": ({"identity": "p10", "sample_id": "p10", "payload": "{}"}, "field"),
    "conflicting payload": ({"identity": "good-0", "payload": '{"other":1}'}, "conflict"),
    "schema violated": ({"identity": "p11", "payload": "[1]"}, "payload"),
}


def test_poison_of_every_kind_is_kept_and_does_not_stop_the_stream(stream):
    stream.lab.queue("other")  # exists, but the intake may not submit to it
    stream.set_queue(payload_schema={"type": ["object", "string"]})
    stream.add("good-0")
    wanted = {}
    for number, (fields, reason) in enumerate(POISON.values(), 1):
        wanted[stream.add_fields(fields)] = reason
        stream.add(f"good-{number}")
    intake = stream.drain()
    assert {letter.source: letter.reason for letter in stream.letters()} == wanted
    assert stream.batches == len(POISON) + 1
    assert intake.counters.letters == len(POISON)
    assert intake.counters.alone == 0
    assert all(letter.complete and letter.status == "open" for letter in stream.letters())


def test_redelivered_poison_is_one_letter_with_a_count(stream):
    entry = stream.add_fields({"identity": "s1", "payload": "{"})
    stream.drain()
    stream.redis.xgroup_setid(stream.stream, "g", "0")
    stream.drain()
    [letter] = stream.letters()
    assert (letter.source, letter.deliveries) == (entry, 2)


def test_message_above_16_mib_is_kept_as_head_length_and_digest(stream):
    stream.add("big", payload="x" * (17 * 1024 * 1024))
    stream.drain()
    [letter] = stream.letters()
    found = stream.lab.run(letters.letter(letter.letter, body=True))
    assert not letter.complete
    with (
        HelixQueue(stream.database.dsn("pool"), tenant="a") as helix,
        pytest.raises(Refused, match="not the whole message"),
    ):
        helix.redrive(letter.letter, reason="too large")
    assert letter.size > 17 * 1024 * 1024 > len(found.body) == 65_536


def test_message_without_identity_is_recognised_when_it_is_redelivered(stream, caplog):
    caplog.set_level(logging.WARNING, "helixqueue")
    stream.set_queue(unknown="accept")
    stream.add_fields({"payload": '{"a":1}'})
    stream.add_fields({"payload": '{"a":1}'})
    first = stream.drain()
    stream.redis.xgroup_setid(stream.stream, "g", "0")
    again = stream.drain()
    assert (stream.batches, first.counters.unnamed, again.counters.duplicate) == (2, 2, 2)
    assert again.counters.unnamed == 2
    assert caplog.text.count("has no identity") == 4  # warned each time


def test_malformed_identity_of_a_stream_is_counted_and_logged_in_hex(stream, database, caplog):
    caplog.set_level(logging.INFO, "helixqueue")
    stream.add_fields({"identity": "a\u202eb", "payload": "{}"})
    stream.add("s1")
    stream.drain()
    lines = [record.event for record in caplog.records if hasattr(record, "event")]
    raw = "a\u202eb".encode().hex()
    assert [line["raw_hex"] for line in lines if line.get("decision") == "refused"] == [raw]
    [new] = [line for line in lines if line.get("decision") == "new"]
    batch = database.value(
        "select helix.public_id(b.key) from helix.batch b join helix.queue q on q.id = b.queue"
        " where b.identity = 's1' and q.name = %s",
        stream.queue,
    )
    assert (new["batch"], new["queue"]) == (batch, stream.queue)
    counted = "select detail::json ->> 'raw_hex', times from helix.answer_count where queue = %s"
    assert database.rows(counted, stream.queue) == [(raw, 1)]


def test_same_entry_id_with_other_content_is_a_letter(stream):
    stream.set_queue(unknown="accept")
    stream.add("s1", entry="5-1")
    stream.redis.xadd(stream.stream, {"payload": '{"a":1}'}, id="6-1")
    stream.drain()
    # A Redis that was restored from an old copy gives the same ids to other messages.
    stream.redis.delete(stream.stream)
    stream.add("s2", entry="5-1")
    stream.redis.xadd(stream.stream, {"payload": '{"a":2}'}, id="6-1")
    stream.drain()
    assert stream.batches == 2
    assert {(row.source, row.reason) for row in stream.letters()} == {
        ("5-1", "reused"),
        ("6-1", "conflict"),
    }


def test_vanished_pending_entries_are_recorded_and_removed(stream):
    first, second, _ = stream.add("s1", "s2", "s3")
    crashed = stream.intake(consumer="crashed")
    crashed._stream.create_group()
    held = crashed._stream.read_new()
    crashed._process(held[:1])  # committed and not acknowledged: no loss
    stream.redis.xtrim(stream.stream, maxlen=1, approximate=False)
    wait_seconds(0.06)
    intake = stream.drain()
    assert [(row.source, row.reason, row.complete) for row in stream.letters()] == [
        (second, "vanished", False)
    ]
    assert (intake.counters.vanished, stream.pending, stream.batches) == (1, 0, 2)
    assert stream.sources()[0][:2] == (first, "new")


def test_trimming_keeps_what_any_group_still_needs(stream):
    ids = stream.add(*[f"s{n}" for n in range(10)])
    stream.drain()
    other = stream.intake(group="slow", consumer="x")
    other._stream.create_group()
    held = other._stream._read(4, ">", ()).entries
    other._stream.acknowledge([held[0].id, held[2].id])
    consumer = stream.intake()._stream
    consumer.trim()
    left = [entry.decode() for entry, _ in stream.redis.xrange(stream.stream)]
    assert left == ids[1:]  # the second is pending in the other group
    other._stream.acknowledge([held[1].id, held[3].id])
    consumer.trim()
    left = [entry.decode() for entry, _ in stream.redis.xrange(stream.stream)]
    assert left == ids[4:]  # the fifth is not delivered to it yet
    stream.redis.xgroup_destroy(stream.stream, "slow")
    consumer.trim()
    assert stream.redis.xlen(stream.stream) == 0


def test_nothing_is_trimmed_by_default(stream):
    stream.add("s1", "s2")
    stream.drain()
    assert stream.redis.xlen(stream.stream) == 2


def test_consumer_with_pending_entries_is_never_deleted(stream):
    stream.add("s1", "s2")
    consumer = stream.intake(consumer="gone")._stream
    consumer.create_group()
    [first, second] = consumer.read_new()
    ours = stream.intake()._stream
    consumer.acknowledge([first.id])
    assert ours.forget_consumers(0.0) == 0
    assert stream.pending == 1
    consumer.acknowledge([second.id])
    wait_seconds(0.01)
    assert ours.forget_consumers(3600) == 0
    assert ours.forget_consumers(0.001) == 1


def test_entry_that_fails_alone_becomes_a_letter_after_its_tries(stream, monkeypatch):
    """Of a chunk that fails, the other entries are accepted."""
    stream.add("s1", "bad", "s2")
    prepare = chunk.prepare

    def fail(known, submission):
        if submission.identity == "bad":
            raise RuntimeError("a fault of this program")
        return prepare(known, submission)

    monkeypatch.setattr(chunk, "prepare", fail)
    intake = stream.drain(max_tries=3, idle=0.01)
    [letter] = stream.letters()
    assert (letter.reason, stream.batches) == ("failures", 2)
    assert "failed 3 times" in letter.detail
    assert intake.counters.alone >= 3
    assert stream.lab.value("select count(*) from helix.intake_failure") == 0


def test_entry_that_ends_the_process_each_time_becomes_a_letter(stream):
    stream.add("killer")
    for _ in range(2):  # two deliveries that ended their process
        crashed = stream.intake()
        crashed._stream.create_group()
        crashed._stream.read_new()
        crashed._stream.read_own("0")
    entry = crashed._stream.read_own("0").entries[0]
    for _ in range(5):
        crashed._writer.count_try(entry)  # committed, then the process was killed
    stream.drain(max_tries=5)
    [letter] = stream.letters()
    assert letter.reason == "failures"
    assert "the process ended" in letter.detail


def test_outage_of_the_database_dead_letters_nothing(stream):
    """Deliveries during an outage do not count, however many there are."""
    stream.add("s1", "s2")
    away = stream.intake(idle=0.01)
    away._writer._dsn = lambda: "postgresql://pool@/none?host=/nonexistent"
    away._stop.set()  # gives up after each failure, like a process that is restarted
    away._stream.create_group()
    away._stream.read_new()
    for _ in range(20):
        wait_seconds(0.012)
        found = away._stream.claim("0-0")
        with pytest.raises(Unavailable):
            away._take(found)
    assert max(entry.deliveries for entry in found.entries) >= 20
    # As after an hour of claims by every intake.
    ids = [entry.id for entry in found.entries]
    hour = ["IDLE", 3_600_000, "RETRYCOUNT", 5_000]
    stream.redis.execute_command("XCLAIM", stream.stream, "g", "c1", 0, *ids, *hour)
    stream.drain(max_tries=1)
    assert (stream.batches, stream.letters()) == (2, [])


def test_new_message_for_a_failed_batch_retries_it_and_a_redelivery_does_not(stream):
    stream.set_queue(resubmit_failed="retry")
    stream.add("s1")
    stream.drain()
    stream.lab.fail(*stream.lab.claim(1))
    stream.redis.xgroup_setid(stream.stream, "g", "0")
    stream.drain()
    state = "select w.state::text from helix.work w join helix.queue q on q.id = w.queue"
    assert stream.lab.value(f"{state} where q.name = %s", stream.queue) == "FAILED"
    stream.add("s1")
    stream.drain()
    assert stream.lab.value(f"{state} where q.name = %s", stream.queue) == "PENDING"


def test_queue_of_a_message_is_any_of_the_tenant_only_where_the_settings_say_so(stream):
    stream.lab.queue("other-of-a")
    for queue in ("other-of-a", stream.queue, "Not A Name\0", "missing"):
        stream.add_fields({"identity": "s1", "payload": "{}", "queue": queue})
    stream.add("unnamed")  # no queue is the only one
    stream.drain(queues=("*",))
    assert stream.batches == 1
    assert stream.lab.value(BATCHES, "other-of-a") == 1
    assert [letter.reason for letter in stream.letters()] == ["queue"] * 3


def test_message_waits_for_a_queue_that_a_program_declares_soon(stream):
    stream.add_fields({"identity": "s1", "payload": "{}", "queue": "declared-late"})
    with stream.running(queues=("*",), await_queues=60) as intake:
        wait_until(lambda: "does not exist yet" in (intake.problem or ""))
        stream.lab.queue("declared-late")
        wait_until(stream.is_drained)
    assert (stream.lab.value(BATCHES, "declared-late"), stream.letters()) == (1, [])


def test_intake_reports_its_figures(stream):
    stream.add("s1")
    with stream.running(consumer="c9") as intake:
        wait_until(
            lambda: any(
                row.consumer == "c9"
                and row.stream == stream.stream
                and row.figures.get("acknowledged") == 1
                for row in stream.lab.run(letters.intakes(tenant="a"))
            )
        )
    [row] = [r for r in stream.lab.run(letters.intakes(tenant="a")) if r.stream == stream.stream]
    assert (row.group, row.consumer, row.problem) == ("g", "c9", None)
    assert row.figures["new"] == 1
    assert row.figures["pending"] == 0
    assert intake.counters.xack_failures == 0


def test_producers_of_every_kind_are_understood(stream):
    with Producer(stream.url, stream.stream) as producer:
        producer.send("made", {"b": 1, "a": "ä"}, queue=stream.queue, revision="2", priority=1)
        producer.send(("plate", "well"), {"x": 1})
    client = valkey_client.Valkey.from_url(stream.url)
    client.xadd(stream.stream, {"sample_id": "valkey", "payload": '{"x":1}'})
    client.close()
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(stream.url.removeprefix("unix://"))
        words = ["XADD", stream.stream, "*", "sample_id", "resp", "payload", '{"x":1}']
        frames = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        plain.sendall(f"*{len(words)}\r\n{frames}".encode())
        assert plain.recv(100).startswith(b"$")
    stream.add_fields({"sample_id": "redis-py", "payload": '{"x":1}'})
    if cli := shutil.which("redis-cli"):
        command = [cli, "-s", stream.url.removeprefix("unix://"), "XADD", stream.stream, "*"]
        words = ["sample_id", "redis-cli", "payload", '{"x":1}']
        subprocess.run([*command, *words], check=True, capture_output=True)
    else:
        assert not os.environ.get("CI"), "redis-cli is not installed"
        stream.add("redis-cli")
    stream.drain()
    identities = stream.lab.rows(
        "select b.identity::text, b.revision::text from helix.batch b"
        " join helix.queue q on q.id = b.queue where q.name = %s order by 1",
        stream.queue,
    )
    assert identities == [
        ("made", "2"),
        ("plate\x1fwell", ""),
        ("redis-cli", ""),
        ("redis-py", ""),
        ("resp", ""),
        ("valkey", ""),
    ]
    assert stream.letters() == []


def test_batch_shows_the_entry_that_asked_for_it(stream):
    [entry] = stream.add("s1")
    stream.drain()
    [row] = stream.lab.run(reads.batches(queue=stream.queue, identity="s1")).rows
    [source] = stream.lab.run(reads.batch_detail(row.batch_id)).sources
    assert (source.kind, source.name, source.id) == ("stream", stream.stream, entry)
    assert source.actor == "intake g/c1"


@pytest.fixture
def restricted(database):
    """A login that was granted helix_intake and tenant a, nothing else."""
    with database.connect("helix_bootstrap") as connection:
        connection.execute("create role only_intake login")
        connection.execute("grant helix_intake to only_intake")
        connection.execute("select helix.bind_v1('only_intake', 'a')")
    yield "only_intake"
    with database.connect("helix_bootstrap") as connection:
        connection.execute("select helix.unbind_v1('only_intake', 'a')")
        connection.execute("drop role only_intake")


def test_login_of_an_intake_submits_and_writes_letters_and_nothing_else(
    stream, database, restricted
):
    stream.role = restricted
    stream.add("s1", "s2")
    stream.add_fields({"identity": "s3", "payload": "{"})
    stream.drain()
    assert (stream.batches, len(stream.letters())) == (2, 1)
    with database.connect(restricted) as connection:
        rows = connection.execute(
            "select p.proname from pg_proc p where p.pronamespace = 'helix'::regnamespace"
            " and has_function_privilege(p.oid, 'execute') and p.proname <> 'test_pass_time'"
        ).fetchall()
    assert {name for (name,) in rows} == {
        "submit_from_v1",
        "note_refused_v1",
        "write_letters_v1",
        "count_try_v1",
        "clear_tries_v1",
        "report_stream_v1",
        "knows_group_v1",
        "count_stream_v1",
        "look_stream_v1",
        "read_queue_v1",
    }
