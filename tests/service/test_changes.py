"""The stream of changes: everything, in order, also what commits late, and nobody else's."""

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
from helixqueue.postgres.database import Database as Store
from helixqueue.postgres.tenant_sessions import TenantSessions
from helixqueue.records.submission import SubmissionRow
from helixqueue.service import changes
from helixqueue.service.change_marks import ChangeMarks
from helixqueue.states import State
from tests.support.lab import POOLED, until
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


def test_a_stream_tells_every_step_in_order(http, lab):
    with following(http, queue=lab.q) as told:
        assert next(told)[1] == "begin"
        [one] = lab.submit("a")
        lab.complete(*lab.claim())
        found = [next(told) for _ in range(4)]
    assert steps(found) == [(1, "PENDING"), (2, "ASSIGNED"), (3, "RUNNING"), (4, "COMPLETED")]
    assert {data["batch_id"] for _, _, data in found} == {str(one.receipt.batch_id)}


def test_who_comes_back_goes_on_where_it_was_cut_off(http, lab):
    with following(http, queue=lab.q) as told:
        start, _, _ = next(told)
        lab.submit("a", "b", "c")
        first, _, _ = next(told)
    lab.submit("d")
    with following(http, after=first, queue=lab.q) as told:
        next(told)
        rest = [next(told)[2]["batch_id"] for _ in range(3)]
    with following(http, after=start, queue=lab.q) as told:
        next(told)
        all_of_them = [next(told)[2]["batch_id"] for _ in range(4)]
    assert all_of_them[1:] == rest
    assert len(set(all_of_them)) == 4


def test_who_comes_back_after_retention_is_told_that_changes_are_gone(http, lab):
    def retired():
        before = datetime.now(UTC) + timedelta(minutes=1)
        return lab.run(calls.retire(tenant="a", queue=lab.q, state=State.COMPLETED, before=before))

    lab.submit("seen")
    lab.complete(*lab.claim())
    with following(http, queue=lab.q) as told:
        place, _, _ = next(told)
    assert retired() == 1
    with following(http, after=place, queue=lab.q) as told:
        next(told)
        lab.submit("unseen")
        assert next(told)[1] == "change", "nothing that it had not seen is gone"
    lab.complete(*lab.claim())
    assert retired() == 1
    lab.submit("left")
    with following(http, after=place, queue=lab.q) as told:
        found = [next(told) for _ in range(3)]
    assert [kind for _, kind, _ in found] == ["begin", "gap", "change"]
    assert found[1][2]["remedy"]


def test_who_comes_back_from_far_behind_is_told_all_in_many_looks(http, lab, monkeypatch):
    monkeypatch.setattr(changes, "SPAN", 1)
    monkeypatch.setattr(changes, "MAX_ROWS", 7)
    with following(http, queue=lab.q) as told:
        place, _, _ = next(told)
    submitted = [row for count in (1, 20, 1) * 5 for row in lab.submit_many(count, f"s{count}-")]
    submitted += [row for n in range(60) for row in lab.submit(f"one-{n}")]
    new = [str(row.receipt.batch_id) for row in submitted if row.decision == "new"]
    with following(http, after=place, queue=lab.q) as told:
        assert next(told)[1] == "begin"
        assert [next(told)[2]["batch_id"] for _ in new] == new


def looked_at(database, xid, span, tenant="a"):
    """How many entries of the ledger a look reads, and how many changes it finds."""
    since = datetime.now(UTC) - timedelta(hours=1)
    look = read_changes(ChangeCursor(xid, 0, 0, since), span=span)
    with database.connect("service") as connection, connection.transaction():
        connection.execute("select set_config('helix.tenant', %s, true)", (tenant,))
        found = look.read(connection.execute(look.sql, look.args).fetchall())
        [(read,)] = connection.execute(READ)
    return read, len(found.rows)


def test_a_look_at_few_transactions_reads_little_of_the_ledger(database, lab):
    """Nobody waits until all that lies behind a reader is sorted; row-level security or not."""
    lab.submit_many(200)
    for n in range(200):
        lab.submit(f"one-{n}")
    while leases := lab.claim(2):
        lab.complete(*leases)
    with database.connect("helix_bootstrap", autocommit=True) as connection:
        # Stretches for a ledger as small as a test's.
        connection.execute("alter index helix.entry_age set (pages_per_range = 1)")
        connection.execute("reindex index helix.entry_age")
        [(first, one)] = connection.execute(
            "select min(xid), percentile_disc(0.5) within group (order by xid) from helix.entry"
        )
    few, _ = looked_at(database, one, span=1)
    assert 0 < few * 5 < looked_at(database, first, span=SPAN_MAX)[0]


def test_a_look_of_a_tenant_with_nothing_unnests_nothing(database, lab):
    """Entries of others are left out by their queues; the view of steps is asked for none."""
    for n in range(50):
        lab.submit(f"theirs-{n}")
    [(first,)] = database.rows("select min(xid) from helix.entry")
    of_a, changes_of_a = looked_at(database, first, span=SPAN_MAX)
    of_b, changes_of_b = looked_at(database, first, span=SPAN_MAX, tenant="b")
    assert (changes_of_a > 0, changes_of_b) == (True, 0)
    # Each entry once, to see whose it is; those with steps of the tenant once more.
    entries = database.value("select count(*) from helix.entry")
    assert of_b == entries < of_a


def test_a_transaction_that_commits_late_is_not_skipped(site, database, lab):
    """Its events belong before those of a later one that was quicker; so those wait."""
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
    told = [change.batch_id for change in after.rows]
    assert told == [late.receipt.batch_id, quick.receipt.batch_id]


def test_a_reader_that_looks_all_the_time_misses_nothing(database, lab, monkeypatch):
    """Whatever is under way during a look is told by a later one, however narrow its window."""
    monkeypatch.setattr(changes, "SLACK", timedelta(0))
    monkeypatch.setattr(ChangeMarks.__init__, "__defaults__", (0.0,))
    settings = replace(settings_for(database), poll_seconds=0.0001)
    with (
        service_on(settings) as url,
        Site(database, url).client("read") as http,
        following(http, queue=lab.q, seconds=60) as told,
    ):
        next(told)
        with ThreadPoolExecutor(1) as other:
            written = other.submit(lambda: [lab.submit(f"s{n}")[0] for n in range(300)])
            found = [next(told)[2]["batch_id"] for _ in range(300)]
    assert found == [str(one.receipt.batch_id) for one in written.result()]


def test_a_stream_tells_nothing_of_another_tenant(site, lab):
    with site.client("read", tenant="b") as other, following(other, seconds=1) as told:
        assert next(told)[1] == "begin"
        lab.submit("a")
        assert list(told) == []


def test_a_stream_ends_when_its_token_does(http, site):
    with site.client("read", name="ending") as reader, following(reader, seconds=30) as told:
        next(told)
        http.post("/v1/tokens/ending/revoke", json={"reason": "enough"})
        assert next(told)[1:] == ("end", {"problem": "unauthenticated"})


@pytest.mark.parametrize(
    "place", ["x", "1-2-3", "1-2-3-4-5", "9999999999999999999-1-1-1", "1-1-4294967296-1"]
)
def test_a_place_that_is_none_is_refused(http, place):
    assert http.get("/v1/changes", headers={"Last-Event-ID": place}).status_code == 422


def test_streams_are_bounded_though_many_come_at_once(database):
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
        until(lambda: "helix_http_streams 0\n" in http.get("/metrics").text)
        assert 'problem="too-many-streams"} 7\n' in http.get("/metrics").text


def test_streams_that_look_for_long_leave_connections_to_others(database):
    stuck = (
        "select count(*) from pg_stat_activity "
        "where datname = current_database() and wait_event_type = 'Lock'"
    )
    with (
        service_on(settings_for(database, connections=4, duties=False)) as url,
        Site(database, url).client("read") as http,
        following(http, seconds=60) as one,
        following(http, seconds=60) as other,
        database.connect("helix_bootstrap", autocommit=False) as connection,
    ):
        assert [next(one)[1], next(other)[1]] == ["begin", "begin"]
        connection.execute("lock table helix.entry in access exclusive mode")
        until(lambda: connection.execute(stuck).fetchone()[0] > 0)
        for _ in range(3):
            assert http.get("/v1/batches", params={"limit": 1}).status_code == 200


def test_who_comes_back_to_a_database_that_was_set_back_is_told_so(http, lab):
    """A restored server numbers its transactions anew: it must not be waited for in silence."""
    place = f"{2**40}-7-2-{int(datetime.now(UTC).timestamp() * 1000)}"
    with following(http, after=place, queue=lab.q) as told:
        begin, gap = next(told), next(told)
        lab.submit("new")
        change = next(told)
    assert [kind for _, kind, _ in (begin, gap, change)] == ["begin", "gap", "change"]
    assert "restored" in gap[2]["detail"]
    assert int(begin[0].partition("-")[0]) < 2**40, "its new place is one of this database"
