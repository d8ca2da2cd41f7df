"""Feeds: every event once, in order, together with the consumer's effect."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from helixqueue import AsyncHelixQueue, HelixQueue, Queue, Refused, Unavailable
from helixqueue.engine import ledgers
from helixqueue.failpoints import FEED_POINTS
from helixqueue.postgres.database import Database
from helixqueue.postgres.transaction_bounds import TransactionBound
from helixqueue.records.lease import Settlement
from tests.support.ledger_traffic import sql_client
from tests.user_ledger.conftest import DISPATCH

pytestmark = pytest.mark.module_database
CONSUMER = Path(__file__).with_name("feed_consumer.py")


@pytest.fixture(autouse=True)
def effects(database):
    """A table of the consumer's own."""
    with database.connect("helix_bootstrap") as connection:
        connection.execute("create table if not exists public.effect (feed text, key text)")
        connection.execute("grant select, insert on public.effect to app_a")


def consume(feed, size=100) -> list[tuple[str, int, str]]:
    found = []
    for page in feed.pages(size, until_idle=True):
        with feed.transaction():
            found += [(event.entity, event.seq, event.kind) for event in page]
    return found


def keys(database, feed: str) -> list[str]:
    return [key for (key,) in database.rows("select key from public.effect where feed = %s", feed)]


def test_feed_delivers_each_event_once_in_the_order_of_its_entity(helix, dispatch):
    feed = helix.feed("once", ledger=dispatch.name)
    dispatch.append_many([("x", 1, "REQUESTED"), ("y", 1, "REQUESTED"), ("x", 2, "CONFIRMED")])
    assert consume(feed) == [("x", 1, "REQUESTED"), ("y", 1, "REQUESTED"), ("x", 2, "CONFIRMED")]
    dispatch.append("x", 3, "LAUNCHED")
    assert consume(feed) == [("x", 3, "LAUNCHED")]
    assert consume(feed) == []
    status = feed.status()
    assert (status.delivered, status.lag, status.ledger) == (4, 0, dispatch.name)


def test_failed_effect_leaves_the_event_for_the_next_consumer(helix, dispatch, database):
    dispatch.append("f", 1, "REQUESTED")
    feed = helix.feed("failing", ledger=dispatch.name)
    events = iter(feed)
    event = next(events)

    def fail() -> None:
        with feed.transaction() as tx:
            tx.execute("insert into public.effect values ('failing', %s)", (event.key,))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    events.close()
    assert keys(database, "failing") == []
    for event in feed.events(until_idle=True):
        with feed.transaction() as tx:
            tx.execute("insert into public.effect values ('failing', %s)", (event.key,))
    assert len(keys(database, "failing")) == 1


@pytest.mark.parametrize("point", FEED_POINTS)
def test_killed_consumer_leaves_one_effect_per_event(helix, dispatch, database, tmp_path, point):
    dispatch.append_many([(f"k-{n}", 1, "REQUESTED") for n in range(3)])
    feed = helix.feed(f"killed-{point}", ledger=dispatch.name)
    command = [sys.executable, CONSUMER, database.dsn("app_a"), feed.name]
    armed = {
        "HELIX_FAILPOINTS": f"{point}=kill@2",
        "HELIX_FAILPOINT_FILE": str(tmp_path / "point"),
    }
    killed = subprocess.run(command, env={**os.environ, **armed}, check=False)
    assert killed.returncode == -9
    assert (tmp_path / "point.fired").exists()
    subprocess.run(command, check=True)
    delivered = keys(database, feed.name)
    assert sorted(delivered) == sorted(dispatch.history(f"k-{n}")[0].key for n in range(3))


def test_feed_goes_to_the_next_consumer_when_one_reads_nothing(helix, dispatch, database):
    """It took the event and then reads no answer, over a Unix socket: no server setting ends it."""
    dispatch.append("stuck", 1, "REQUESTED")
    feed = helix.feed("stuck", ledger=dispatch.name)
    with Database.connect(database.dsn("app_a"), pooled=True) as frozen:
        frozen.connection.execute("begin")
        frozen.run(TransactionBound(silent=1.0).call())
        assert len(frozen.run(ledgers.take_feed(tenant="a", feed=feed.name, limit=1))) == 1
        frozen.connection.pgconn.send_query(b"select repeat('x', 16 * 1024 * 1024)")
        frozen.connection.pgconn.flush()
        assert consume(feed) == []
        events = feed.events()
        assert next(events).entity == "stuck"
        with feed.transaction():
            pass
        events.close()


def test_consumer_that_is_silent_for_too_long_loses_its_transaction(helix, dispatch):
    dispatch.append("silent", 1, "REQUESTED")
    feed = helix.feed("silent", ledger=dispatch.name)
    events = feed.events(effect_seconds=0.2)
    next(events)
    time.sleep(0.5)
    with pytest.raises(Unavailable, match="idle-in-transaction"), feed.transaction() as tx:
        tx.execute("select 1")
    events.close()
    assert consume(feed) == [("silent", 1, "REQUESTED")]


def test_event_that_commits_late_is_not_skipped(helix, dispatch, database):
    """Its transaction began first; a feed that went by time or id would have passed it."""
    feed = helix.feed("late", ledger=dispatch.name)
    with psycopg.connect(database.dsn("app_a")) as slow:
        dispatch.append("slow", 1, "REQUESTED", within=slow)
        dispatch.append("fast", 1, "REQUESTED")
        assert consume(feed) == []
    assert [entity for entity, _, _ in consume(feed)] == ["slow", "fast"]


def test_entity_stays_in_order_when_an_older_transaction_appends_last(helix, dispatch, database):
    """A transaction gets its number with its first write, here before the event before its own."""
    feed = helix.feed("order", ledger=dispatch.name)
    with psycopg.connect(database.dsn("app_a")) as old:
        old.execute("select pg_current_xact_id()")
        dispatch.append("e", 1, "REQUESTED")
        assert dispatch.append("e", 2, "CONFIRMED", within=old).is_new
    assert [seq for _, seq, _ in consume(feed, size=1)] == [1, 2]


def test_feed_of_steps_behind_retention_reports_the_gap_once(database):
    columns = "position, number, version, kind"
    with sql_client(database) as client:
        client.queue(name="short")
        feed = {"tenant": "a", "feed": "behind"}
        client.call("declare_feed_v1", **feed, actor="w", ledger=None, queue="short", now=False)
        client.submit("g1", "g2", queue="short")
        [seen] = client.call("take_feed_v1", columns, **feed, limit=1)
        client.complete(client.claim(2, queue="short"))
        assert client.rows("select helix.retire_v1('a', 'short', 'COMPLETED', 'infinity')") == [
            (2,)
        ]
        client.submit("g3", queue="short")

        [gap, *_] = page = client.call("read_feed_v1", columns, **feed, limit=100)
        assert gap == (*seen[:3], "GAP")
        assert "GAP" not in [kind for *_, kind in page[1:]]
        places = ("position", "number", "version", "to_position", "to_number", "to_version")
        confirm = dict(zip(places, (*seen[:3], *gap[:3]), strict=True))
        assert client.call("advance_feed_v1", **feed, **confirm, count=1) == [(True,)]
        rest = client.call("take_feed_v1", columns, **feed, limit=100)
        assert rest == page[1:]
        assert client.call("take_feed_v1", columns, **feed, limit=100) == []
        # A new feed starts with what is left, and one that has delivered everything has no gap.
        client.call(
            "declare_feed_v1", tenant="a", feed="new", actor="w", ledger=None, queue="short",
            now=False,
        )  # fmt: skip
        client.complete(client.claim(1, queue="short"))
        assert client.call("take_feed_v1", columns, **feed, limit=100) != []
        assert client.rows("select helix.retire_v1('a', 'short', 'COMPLETED', 'infinity')") == [
            (1,)
        ]
        assert client.call("take_feed_v1", columns, **feed, limit=100) == []
        [gap, *_] = client.call("take_feed_v1", columns, tenant="a", feed="new", limit=100)
        assert gap[3] == "GAP"  # its last batch was retired before it was delivered


def test_two_consumers_of_one_feed_share_its_events(helix, dispatch, database):
    dispatch.append_many([(f"s-{n}", 1, "REQUESTED") for n in range(40)])
    helix.feed("shared", ledger=dispatch.name)

    def run() -> None:
        with HelixQueue(database.dsn("app_a"), tenant="a") as own:
            feed = own.feed("shared", ledger=dispatch.name)
            while feed.status().lag:
                for page in feed.pages(3, until_idle=True):
                    with feed.transaction() as tx:
                        for event in page:
                            tx.execute(
                                "insert into public.effect values ('shared', %s)", (event.key,)
                            )

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delivered = keys(database, "shared")
    assert len(delivered) == len(set(delivered)) == 40


def test_paused_feed_delivers_nothing_and_a_rewound_feed_delivers_again(helix, dispatch):
    feed = helix.feed("operated", ledger=dispatch.name)
    dispatch.append("o", 1, "REQUESTED")
    feed.pause("maintenance")
    assert consume(feed) == []
    feed.resume("done")
    assert len(consume(feed)) == 1
    feed.rewind("notify again")
    assert len(consume(feed)) == 1
    [event] = dispatch.history("o")
    dispatch.append("o", 2, "CONFIRMED")
    later = dispatch.history("o")[1].at
    consume(feed)
    feed.rewind("the second only", since=later)
    assert [seq for _, seq, _ in consume(feed)] == [2]
    assert event.at < later


def test_feed_that_starts_now_skips_earlier_events(helix, dispatch):
    dispatch.append("n", 1, "REQUESTED")
    feed = helix.feed("from-now", ledger=dispatch.name, start="now")
    dispatch.append("n", 2, "CONFIRMED")
    assert [seq for _, seq, _ in consume(feed)] == [2]


def test_feed_of_a_queue_delivers_the_steps_of_its_batches(helix):
    steps = Queue("feed-steps")
    accepted = helix.submit(steps, identity="s-1", payload={})
    helix.submit(Queue("other-steps"), identity="s-1", payload={})
    feed = helix.feed("steps", queue="feed-steps")
    helix.cancel(accepted.receipt, reason="test")
    entity = str(accepted.receipt.batch_id)
    assert consume(feed) == [(entity, 1, "PENDING"), (entity, 2, "CANCELLED")]


def settle_in_an_older_transaction(helix, database, queue):
    """A transaction gets its number before the claim, and settles the batch after it."""
    helix.submit(Queue(queue), identity="old", payload={})
    with psycopg.connect(database.dsn("app_a")) as old:
        old.execute("select pg_current_xact_id()")
        [lease] = helix.claim("w", [queue], start=True)
        helix.submit(queue, identity="between", payload={})
        ended = Settlement(lease.batch, lease.token, "completed")
        [answer] = helix.settle("w", [ended], within=old)
        assert answer.answer == "ok"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_batch_stays_in_order_when_an_older_transaction_settles_it(helix, database, size):
    queue = f"older-{size}"
    settle_in_an_older_transaction(helix, database, queue)
    feed = helix.feed(queue, queue=queue)
    steps = consume(feed, size)
    by_entity: dict[str, list[int]] = {}
    for entity, seq, _ in steps:
        by_entity.setdefault(entity, []).append(seq)
    assert sorted(by_entity.values()) == [[1], [1, 2, 3, 4]]
    assert feed.status().lag == 0


def test_lag_of_a_feed_counts_steps_of_many_transactions(helix):
    """A look covers 256 transactions; more of them are behind the feed."""
    for number in range(300):
        helix.submit(Queue("many-steps"), identity=f"m-{number}", payload={})
    feed = helix.feed("many-steps", queue="many-steps")
    assert feed.status().lag == 300
    assert len(consume(feed, 500)) == 300


def test_confirmed_page_moves_the_feed_once(helix, dispatch):
    dispatch.append_many([("c", 1, "REQUESTED"), ("c", 2, "CONFIRMED"), ("c", 3, "LAUNCHED")])
    feed = helix.feed("confirmed", ledger=dispatch.name)
    page = feed.read(2)
    assert feed.confirm(page)
    assert not feed.confirm(page)
    [rest] = feed.read(10)
    assert rest.seq == 3
    feed.rewind("again")
    assert not feed.confirm([rest])


def test_confirmation_repeated_after_a_lost_answer_is_true_again(database, helix, dispatch):
    dispatch.append_many([("r", 1, "REQUESTED"), ("r", 2, "CONFIRMED")])
    page = helix.feed("repeated", ledger=dispatch.name).read(1)
    call = ledgers.advance_feed(
        tenant="a", feed="repeated", after=page[0].after, to=page[0].position, count=1
    )
    with Database.connect(database.dsn("app_a")) as client:
        assert [client.run(call), client.run(call)] == [True, True]
    feed = helix.feed("repeated")
    assert not feed.confirm(page)  # of another consumer
    assert feed.confirm(feed.read(1))


def test_page_of_a_lost_history_does_not_move_the_feed(helix, dispatch):
    """After a failover, new events with smaller transaction numbers would be skipped."""
    dispatch.append_many([("l", 1, "REQUESTED"), ("l", 2, "CONFIRMED")])
    helix.submit(Queue("lost-steps"), identity="l", payload={})
    for feed in (
        helix.feed("lost-events", ledger=dispatch.name),
        helix.feed("lost-steps", queue="lost-steps"),
    ):
        page = feed.read(10)
        last = page[-1]
        source, position, rest = re.split(r"[/.]", last.position, maxsplit=2)
        lost = replace(last, position=f"{source}/{int(position) + 1}.{rest}")
        assert not feed.confirm([*page[:-1], lost])
        assert feed.read(10) == page
        assert feed.confirm(page)


def test_feed_without_transaction_is_an_error(helix, dispatch):
    dispatch.append_many([("u", 1, "REQUESTED"), ("u", 2, "CONFIRMED")])
    feed = helix.feed("unused", ledger=dispatch.name)
    with pytest.raises(Refused, match=r"feed.transaction\(\)"):
        list(feed.events(until_idle=True))
    with pytest.raises(Refused, match="for event in feed"):
        feed.transaction().__enter__()
    assert feed.status().lag == 2


def test_feed_name_of_another_source_is_refused(helix, dispatch):
    helix.feed("taken", ledger=dispatch.name)
    with pytest.raises(Refused, match="another"):
        helix.feed("taken", queue="basecall")
    with pytest.raises(Refused, match="no ledger"):
        helix.feed("nothing", ledger="missing")


async def consume_async(dsn: str) -> list[int]:
    seqs = []
    async with AsyncHelixQueue(dsn, tenant="a") as helix:
        ledger = await helix.ledger("async-dispatch", DISPATCH)
        await ledger.append("a", 1, "REQUESTED")
        await ledger.append_many([("a", 2, "CONFIRMED"), ("a", 1, "REQUESTED")])
        assert (await ledger.state("a")).state == "CONFIRMED"
        feed = await helix.feed("async-feed", ledger="async-dispatch")
        async for event in feed.events(until_idle=True):
            async with feed.transaction():
                seqs.append(event.seq)
    return seqs


def test_async_client_appends_and_consumes(database):
    assert asyncio.run(consume_async(database.dsn("app_a"))) == [1, 2]
