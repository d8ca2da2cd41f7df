"""The cache of seqs is a hint: it may skip what is older, and never decides."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis

from helixqueue import HelixQueue, Refused
from helixqueue.breaker import FAULTS_TO_OPEN, SLOW_SECONDS, Breaker
from helixqueue.embedded import Valkey
from helixqueue.engine import ledgers
from helixqueue.ledger.seq_hint import SeqHint
from tests.support.lab import wait_until
from tests.user_ledger.conftest import DISPATCH

pytestmark = pytest.mark.module_database


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    with Valkey(tmp_path_factory.mktemp("hint") / "valkey", supervised=False) as valkey:
        yield valkey


@pytest.fixture
def cache(valkey):
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def hinted(helix, valkey, cache, request):
    ledger = helix.ledger(
        f"hinted-{abs(hash(request.node.name)) % 10**9}", DISPATCH, hint=valkey.url
    )
    for seq, kind in enumerate(("REQUESTED", "CONFIRMED", "LAUNCHED"), 1):
        assert ledger.append("d", seq, kind).is_new
    return ledger


def test_older_seq_is_skipped_and_an_equal_one_goes_to_the_database(hinted):
    assert hinted.append("d", 2, "CONFIRMED").decision == "stale_hint"
    assert hinted.append("d", 3, "LAUNCHED").decision == "duplicate_suppressed_by_db"
    assert hinted.append("d", 4, "LANDED").is_new


def test_emptied_or_forged_cache_changes_no_decision(hinted, cache):
    [name] = cache.keys("helix:ledger:*")
    cache.set(name, cache.get(name)[:32] + b"1:999")
    assert hinted.append("d", 4, "LANDED").is_new
    cache.flushall()
    assert hinted.append("d", 1, "REQUESTED").decision == "duplicate_suppressed_by_db"


def test_invalid_event_with_an_older_seq_is_refused_not_skipped(hinted):
    with pytest.raises(Refused, match="kind"):
        hinted.append("d", 1, "EXPLODED")


def test_older_backup_of_the_cache_loses_no_event(hinted, cache):
    """A restored Redis knows less, never more: an old entry skips only what was written."""
    [name] = cache.keys("helix:ledger:*")
    backup = cache.get(name)
    assert hinted.append("d", 4, "LANDED").is_new
    cache.set(name, backup)
    assert hinted.append("d", 3, "LAUNCHED").decision == "duplicate_suppressed_by_db"
    assert hinted.append("d", 4, "LANDED").decision == "duplicate_suppressed_by_db"


LOST = list(enumerate(("REQUESTED", "CONFIRMED", "LAUNCHED"), 1))


def test_restored_database_gets_its_lost_events_again(tmp_path, valkey, cache):
    """The data directory of yesterday comes back, by no command of ours, and the hints stay.

    Cluster, database, timeline and epoch are the same as before.
    """
    directory = tmp_path / "helix"
    with HelixQueue.embedded(directory) as helix:
        helix.ledger("restored", DISPATCH).append("other", 1, "REQUESTED")
    data = directory / "postgres" / "data"
    subprocess.run(["cp", "-a", data, tmp_path / "backup"], check=True)  # keeps the owner
    with HelixQueue.embedded(directory) as helix:
        ledger = helix.ledger("restored", DISPATCH, hint=valkey.url)
        assert [ledger.append("d", *event).decision for event in LOST] == ["written"] * 3
        assert ledger.append("d", *LOST[0]).decision == "stale_hint"
    hints = {name: cache.get(name) for name in cache.scan_iter()}
    assert hints
    shutil.rmtree(data)
    (tmp_path / "backup").rename(data)
    with HelixQueue.embedded(directory) as helix:
        ledger = helix.ledger("restored", DISPATCH, hint=valkey.url)
        assert {name: cache.get(name) for name in hints} == hints
        assert [ledger.append("d", *event).decision for event in LOST] == ["written"] * 3
        assert ledger.append("d", *LOST[0]).decision == "stale_hint"


def test_client_that_stays_connected_notices_a_table_that_was_restored(fresh_database, valkey):
    """The server and the client go on meanwhile; the key is read every second."""
    with HelixQueue(fresh_database.dsn("app_a"), tenant="a") as helix:
        ledger = helix.ledger("restored", DISPATCH, hint=valkey.url)
        assert [ledger.append("d", *event).decision for event in LOST] == ["written"] * 3
        keys = ledger._hint._keys
        before = keys.current()
        with fresh_database.connect("helix_bootstrap") as connection:
            connection.execute("alter table helix.ledger_event disable trigger all")
            connection.execute("truncate helix.ledger_event")  # then COPY, as pg_restore does
            connection.execute("alter table helix.ledger_event enable trigger all")
        wait_until(lambda: keys.current() != before)
        assert [ledger.append("d", *event).decision for event in LOST] == ["written"] * 3


def test_answer_from_before_a_restore_is_not_noted_after_it(fresh_database, valkey, monkeypatch):
    """The event is answered as written, then the database is restored, then the seq is noted."""
    database = fresh_database
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        ledger = helix.ledger("restored", DISPATCH, hint=valkey.url)
        ledger.append("d", *LOST[0])
        note = SeqHint.note

        def restore_then_note(self, cached, answer):
            with database.connect("helix_bootstrap") as connection:
                connection.execute("alter table helix.ledger_event disable trigger all")
                connection.execute("truncate helix.ledger_event")
                connection.execute("alter table helix.ledger_event enable trigger all")
            monkeypatch.setattr("helixqueue.ledger.hint_key.KEY_SECONDS", 0.0)
            note(self, cached, answer)

        monkeypatch.setattr(SeqHint, "note", restore_then_note)
        assert ledger.append("d", *LOST[1]).is_new
        monkeypatch.setattr(SeqHint, "note", note)
        assert [ledger.append("d", *event).decision for event in LOST] == ["written"] * 3


def test_each_ledger_has_a_hint_key_of_its_own(database, helix):
    helix.ledger("keyed", DISPATCH)
    keys = set()
    for tenant, ledger in (("a", "keyed"), ("a", "other")):
        with database.connect("app_a") as connection:
            call = ledgers.hint_key(tenant=tenant, ledger=ledger)
            keys.add(call.read(connection.execute(call.sql, call.args).fetchall())[1])
    assert len(keys) == 2


def test_hint_needs_a_strict_ledger_and_a_direct_connection(helix, valkey, database):
    with pytest.raises(Refused, match="strict"):
        helix.ledger("lenient", DISPATCH, strict=False, hint=valkey.url)
    with (
        HelixQueue(database.dsn("app_a"), tenant="a", pooled=True) as pooled,
        pytest.raises(Refused, match="pooled"),
    ):
        pooled.ledger("pooled", DISPATCH, hint=valkey.url)


def test_cache_that_does_not_answer_slows_down_only_the_first_appends(hinted, cache):
    """Each call of a paused cache takes the whole time limit of 50 ms, twice per append."""
    cache.execute_command("client", "pause", "4000", "all")  # also pauses the end of the pause
    began = time.monotonic()
    for number in range(60):
        assert hinted.append(f"slow-{number}", 1, "REQUESTED").is_new
    seconds = time.monotonic() - began
    assert seconds < 3, "60 appends with two time limits each take 6 s"


@contextmanager
def delayed(url, seconds):
    """The URL of a relay that answers the clients of a cache late."""
    path = Path(redis.Redis.from_url(url).get_connection_kwargs()["path"])
    late = path.with_name("late.sock")
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def carry(source, sink, pause):
        try:
            while chunk := await source.read(65_536):
                await asyncio.sleep(pause)
                sink.write(chunk)
        finally:
            sink.close()

    async def relay(client_in, client_out):
        server_in, server_out = await asyncio.open_unix_connection(path)
        with suppress(ConnectionError):
            await asyncio.gather(
                carry(client_in, server_out, 0), carry(server_in, client_out, seconds)
            )

    async def serve():
        async with await asyncio.start_unix_server(relay, late):
            ready.set()
            await stop.wait()

    def run():
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield f"unix://{late}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_cache_that_answers_late_does_not_slow_down_every_append(helix, valkey, cache):
    """Each answer takes 30 ms, within the time limit, and an append asks the cache twice."""
    with delayed(valkey.url, 0.03) as url:
        ledger = helix.ledger("late", DISPATCH, hint=url)
        took = []
        for number in range(40):
            began = time.monotonic()
            assert ledger.append(f"d-{number}", 1, "REQUESTED").is_new
            took.append(time.monotonic() - began)
    assert max(took) > 0.03, "the first appends wait for the cache"
    assert sorted(took)[len(took) // 2] < 0.02


def test_cache_whose_answers_are_slow_is_not_used_for_a_while():
    breaker = Breaker(logging.getLogger("test"))
    for _ in range(FAULTS_TO_OPEN):
        assert not breaker.is_open
        with breaker.watch():
            time.sleep(SLOW_SECONDS * 1.2)
    assert breaker.is_open


def test_cache_with_a_fault_between_good_answers_stays_in_use():
    breaker = Breaker(logging.getLogger("test"))
    for _ in range(FAULTS_TO_OPEN * 2):
        with pytest.raises(OSError, match="cut"), breaker.watch():
            raise OSError("cut")
        with breaker.watch():
            pass
    assert not breaker.is_open


def test_hint_works_in_a_strict_ledger_with_gaps(helix, valkey, cache):
    ledger = helix.ledger("gappy", DISPATCH, gaps="allow", hint=valkey.url)
    assert ledger.append("d", 44, "REQUESTED").is_new
    assert ledger.append("d", 7, "CONFIRMED").decision == "stale_hint"
    assert ledger.append("d", 45, "CONFIRMED").is_new
    assert cache.keys("helix:ledger:*")
