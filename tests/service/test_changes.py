"""The change stream: complete, in order, with late commits, for one tenant only."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest

from helixqueue.engine import calls, tokens
from helixqueue.engine.changes import SPAN_MAX, ChangeCursor, read_changes
from helixqueue.identity import canonical_text
from helixqueue.operate.recover import recover
from helixqueue.postgres.database import Database as Store
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.records.submission import SubmissionRow
from helixqueue.service.change_marks import ChangeMarks
from helixqueue.service.routes import changes
from helixqueue.service.tenant_cipher import TenantCipher
from helixqueue.states import State
from tests.support.lab import POOLED, wait_until
from tests.support.service import Site, settings_for, stream_events
from tests.support.service import serving as service_on

READ = """
    select (seq_tup_read + coalesce(idx_tup_fetch, 0))::int from pg_stat_xact_user_tables
    where relid = 'helix.entry'::regclass"""


@contextmanager
def following(http, after=None, **query):
    headers = {} if after is None else {"Last-Event-ID": after}
    with http.stream("GET", "/v1/changes", params=query, headers=headers) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        yield stream_events(stream)


def steps(found):
    return [(data["version"], data["to_state"]) for _, kind, data in found if kind == "change"]


def test_stream_sends_every_event_in_order(http, lab):
    with following(http, queue=lab.q) as response:
        assert next(response)[1] == "begin"
        [item] = lab.submit("a")
        lab.complete(*lab.claim())
        result = [next(response) for _ in range(4)]
    assert steps(result) == [(1, "PENDING"), (2, "ASSIGNED"), (3, "RUNNING"), (4, "COMPLETED")]
    assert {data["batch_id"] for _, _, data in result} == {str(item.receipt.batch_id)}


def test_reconnecting_reader_continues_at_its_cursor(http, lab):
    with following(http, queue=lab.q) as response:
        start, _, _ = next(response)
        lab.submit("a", "b", "c")
        first, _, _ = next(response)
    lab.submit("d")
    with following(http, after=first, queue=lab.q) as response:
        next(response)
        rest = [next(response)[2]["batch_id"] for _ in range(3)]
    with following(http, after=start, queue=lab.q) as response:
        next(response)
        all_of_them = [next(response)[2]["batch_id"] for _ in range(4)]
    assert all_of_them[1:] == rest
    assert len(set(all_of_them)) == 4


def test_reader_that_reconnects_after_retention_gets_a_gap(http, lab):
    def retired():
        before = datetime.now(UTC) + timedelta(minutes=1)
        return lab.run(calls.retire(tenant="a", queue=lab.q, state=State.COMPLETED, before=before))

    lab.submit("seen")
    lab.complete(*lab.claim())
    with following(http, queue=lab.q) as response:
        place, _, _ = next(response)
    assert retired() == 1
    with following(http, after=place, queue=lab.q) as response:
        next(response)
        lab.submit("unseen")
        assert next(response)[1] == "change", "nothing that it had not seen is gone"
    lab.complete(*lab.claim())
    assert retired() == 1
    lab.submit("left")
    with following(http, after=place, queue=lab.q) as response:
        result = [next(response) for _ in range(3)]
    assert [kind for _, kind, _ in result] == ["begin", "gap", "change"]
    assert result[1][2]["remedy"]


def test_reader_far_behind_catches_up_in_many_reads(http, lab, monkeypatch):
    monkeypatch.setattr(changes, "SPAN", 1)
    monkeypatch.setattr(changes, "MAX_ROWS", 7)
    with following(http, queue=lab.q) as response:
        place, _, _ = next(response)
    submitted = [row for count in (1, 20, 1) * 5 for row in lab.submit_many(count, f"s{count}-")]
    submitted += [row for n in range(60) for row in lab.submit(f"one-{n}")]
    new = [str(row.receipt.batch_id) for row in submitted if row.decision == "new"]
    with following(http, after=place, queue=lab.q) as response:
        assert next(response)[1] == "begin"
        assert [next(response)[2]["batch_id"] for _ in new] == new


def looked_at(database, position, span, tenant="a"):
    """The number of ledger entries that a read touches, and of changes it returns."""
    since = datetime.now(UTC) - timedelta(hours=1)
    look = read_changes(ChangeCursor(position, 0, 0, since), span=span)
    with database.connect("service") as connection, connection.transaction():
        connection.execute("select set_config('helix.tenant', %s, true)", (tenant,))
        result = look.read(connection.execute(look.sql, look.args).fetchall())
        [(read,)] = connection.execute(READ)
    return read, len(result.rows)


def test_read_of_few_transactions_reads_little_of_the_ledger(database, lab):
    """A read does not sort everything after the cursor, with or without row-level security."""
    lab.submit_many(200)
    for n in range(200):
        lab.submit(f"one-{n}")
    while leases := lab.claim(2):
        lab.complete(*leases)
    with database.connect("helix_bootstrap", autocommit=True) as connection:
        # Small ranges for the small ledger of a test.
        connection.execute("alter index helix.entry_age set (pages_per_range = 1)")
        connection.execute("reindex index helix.entry_age")
        [(first, item)] = connection.execute(
            "select min(position), percentile_disc(0.5) within group (order by position) from "
            "helix.entry"
        )
    few, _ = looked_at(database, item, span=1)
    assert 0 < few * 5 < looked_at(database, first, span=SPAN_MAX)[0]


def test_read_of_a_tenant_without_events_unnests_nothing(database, lab):
    """Entries of other tenants are excluded by queue, before they are unnested."""
    for n in range(50):
        lab.submit(f"theirs-{n}")
    [(first,)] = database.rows("select min(position) from helix.entry")
    of_a, changes_of_a = looked_at(database, first, span=SPAN_MAX)
    of_b, changes_of_b = looked_at(database, first, span=SPAN_MAX, tenant="b")
    assert (changes_of_a > 0, changes_of_b) == (True, 0)
    # Each entry once for its queues; entries with steps of the tenant once more.
    entries = database.value("select count(*) from helix.entry")
    assert of_b == entries < of_a


def test_transaction_that_commits_late_is_not_skipped(site, database, lab):
    """Its events precede those of a later, faster transaction, which wait for it."""
    token_hash = tokens.hash_token(site.token("read"))
    rows = [SubmissionRow("slow", canonical_text({}))]

    async def story():
        served = TenantSessions(
            database.dsn("service"), connections=1, connect_seconds=5, statement_seconds=10,
            wait_seconds=5, pooled=POOLED,
        )  # fmt: skip
        begin = ChangeCursor(0, 0, 0, datetime.now(UTC) - timedelta(hours=1))
        look = read_changes(begin, queue=lab.q)
        with Store(database.connect("pool", autocommit=False)) as slow:
            call = calls.submit(tenant="a", queue=lab.q, profile="text-v1", rows=rows)
            [late] = slow.run(call)
            [quick] = lab.submit("quick")
            before = await served.run(token_hash, look)
            slow.connection.commit()
        after = await served.run(token_hash, look)
        await served.close()
        return before, after, late, quick

    before, after, late, quick = asyncio.run(story())
    assert before.rows == ()
    response = [change.batch_id for change in after.rows]
    assert response == [late.receipt.batch_id, quick.receipt.batch_id]


def test_constant_reader_misses_no_event(database, lab, monkeypatch):
    """A later read returns what was uncommitted during an earlier one."""
    monkeypatch.setattr(changes, "CLOCK_SLACK", timedelta(0))
    monkeypatch.setattr(ChangeMarks.__init__, "__defaults__", (0.0,))
    settings = replace(settings_for(database), poll_seconds=0.0001)
    with (
        service_on(settings) as url,
        Site(database, url).client("read") as http,
        following(http, queue=lab.q, seconds=60) as response,
    ):
        next(response)
        with ThreadPoolExecutor(1) as other:
            written = other.submit(lambda: [lab.submit(f"s{n}")[0] for n in range(300)])
            found = [next(response)[2]["batch_id"] for _ in range(300)]
    assert found == [str(item.receipt.batch_id) for item in written.result()]


def test_stream_contains_no_event_of_another_tenant(site, lab):
    with site.client("read", tenant="b") as other, following(other, seconds=1) as response:
        assert next(response)[1] == "begin"
        lab.submit("a")
        assert list(response) == []


def test_stream_ends_when_its_token_is_revoked(http, site):
    with site.client("read", name="ending") as reader, following(reader, seconds=30) as response:
        next(response)
        http.post("/v1/tokens/ending/revoke", json={"reason": "enough"})
        assert next(response)[1:] == ("end", {"problem": "unauthenticated"})


@pytest.mark.parametrize(
    "place", ["x", "1-2-3", "1-2-3-4-5", "9999999999999999999-1-1-1", "1-1-4294967296-1"]
)
def test_invalid_cursor_is_refused(http, place):
    assert http.get("/v1/changes", headers={"Last-Event-ID": place}).status_code == 400


def test_cursor_of_another_kind_is_no_event_id(http, lab):
    lab.submit("a", "b")
    cursor = http.get("/v1/batches", params={"queue": lab.q, "limit": 1}).json()["next"]
    response = http.get("/v1/changes", headers={"Last-Event-ID": cursor})
    assert response.status_code == 400
    assert "Last-Event-ID" in response.json()["detail"]


def test_concurrent_streams_are_limited(database):
    all_answered = Barrier(8)

    def status(http):
        with http.stream("GET", "/v1/changes", params={"seconds": 60}) as stream:
            all_answered.wait()
            return stream.status_code

    with (
        service_on(settings_for(database, max_streams=1)) as url,
        Site(database, url).client("read", "operate") as http,
        ThreadPoolExecutor(8) as crowd,
    ):
        assert sorted(crowd.map(status, [http] * 8)) == [200, *[429] * 7]
        wait_until(lambda: "helix_http_streams 0.0\n" in http.get("/metrics").text)
        assert 'problem="too-many-streams"} 7.0\n' in http.get("/metrics").text


def test_slow_stream_reads_leave_connections_to_others(database):
    stuck = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    )
    with (
        service_on(settings_for(database, connections=4, duties=False)) as url,
        Site(database, url).client("read") as http,
        following(http, seconds=60) as item,
        following(http, seconds=60) as other,
        database.connect("helix_bootstrap", autocommit=False) as connection,
    ):
        assert [next(item)[1], next(other)[1]] == ["begin", "begin"]
        connection.execute("lock table helix.entry in access exclusive mode")
        wait_until(lambda: connection.execute(stuck).fetchone()[0] > 0)
        for _ in range(3):
            assert http.get("/v1/token").status_code == 200


def test_reader_of_a_restored_database_gets_a_gap(http, lab):
    """A data directory that was set back reuses positions, so the stream must not wait for them."""
    [(key,)] = lab.rows("select helix.tenant_key_v1('a')")
    cipher = TenantCipher(bytes(key))
    ahead = lab.value("select helix.current_position()") + 2**20
    place = changes.write_id(ChangeCursor(ahead, 7, 2, datetime.now(UTC)), cipher)
    with following(http, after=place, queue=lab.q) as response:
        begin, gap = next(response), next(response)
        lab.submit("new")
        change = next(response)
    assert [kind for _, kind, _ in (begin, gap, change)] == ["begin", "gap", "change"]
    assert "restored" in gap[2]["detail"]
    assert changes.read_id(begin[0], cipher).position < ahead, "its place is one of this database"


def test_reader_of_an_earlier_epoch_gets_a_gap(database, http, lab):
    """The end of the earlier epoch may be lost, also what the reader has seen of it.

    Once for a stream that was open meanwhile, once for one that reconnects.
    """
    with following(http, queue=lab.q) as response:
        cursor, kind, _ = next(response)
        assert kind == "begin"
        with Store.connect(database.dsn("operator")) as operator:
            recover(operator.connection, reason="restored")
        lab.submit("new")
        (_, kind, gap), change = next(response), next(response)
        assert (kind, change[1]) == ("gap", "change")
        assert "restored" in gap["detail"]
    with following(http, after=cursor, queue=lab.q) as response:
        begin, gap, change = (next(response) for _ in range(3))
        assert [kind for _, kind, _ in (begin, gap, change)] == ["begin", "gap", "change"]
    with following(http, after=change[0], queue=lab.q) as response:
        assert next(response)[1] == "begin"
        lab.submit("newer")
        assert next(response)[1] == "change"
