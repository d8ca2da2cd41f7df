"""Positions give one order to all readers of the ledger, also across a restore and a failover.

Transaction numbers alone do not: a younger server repeats them, and so does a standby that has lost
the last commits. Each reader continues where it was, and gets every event once and in order.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from helixqueue.engine import calls
from helixqueue.engine.changes import ChangeCursor, read_changes
from helixqueue.fence.ed25519 import Ed25519Signer
from helixqueue.operate.check_seals import check_seals
from helixqueue.operate.seal import head_of, make_seal
from helixqueue.postgres.database import Database as Store
from tests.support.database import Database
from tests.support.duties import run_duty
from tests.support.engine_traffic import assert_consistent
from tests.support.lab import Lab, wait_until
from tests.support.ledger_traffic import sql_client
from tests.support.own_server import new_server
from tests.support.standby import Standby

KEY = Ed25519Signer.from_private(b"k" * 32)
FEEDS = {"steps": None, "events": "dispatch"}
pytestmark = pytest.mark.xdist_group("failover")


class Event(NamedTuple):
    position: int
    number: int
    version: int
    entity: str
    seq: int
    kind: str


COLUMNS = ", ".join(Event._fields)
ALL_STEPS = (
    "select helix.public_id(b.key)::text, e.version from helix.event e"
    " join helix.batch b on b.id = e.batch"
)


def open_everything(client):
    client.queue(backoff_seconds=0)
    client.call(
        "declare_ledger_v1", tenant="a", ledger="dispatch", actor="w1", initial=["ASKED"],
        machine='{"ASKED": ["DONE"], "DONE": []}', strict=True, bound=False, ignored=[],
    )  # fmt: skip
    for feed, ledger in FEEDS.items():
        client.call(
            "declare_feed_v1", tenant="a", feed=feed, actor="w1", ledger=ledger, queue=None,
            now=False,
        )  # fmt: skip


def append(client, entity, seq, kind):
    client.call(
        "append_v1", tenant="a", ledger="dispatch", actor="w1", entity=[entity], seq=[seq],
        kind=[kind], payload=["{}"], node=[None],
    )  # fmt: skip


def work(database, names):
    """Submit, claim and complete; and two events of an entity for each name."""
    with sql_client(database) as client:
        for name in names:
            client.submit(name)
            append(client, name, 1, "ASKED")
            client.complete(client.claim())
            append(client, name, 2, "DONE")


def take(client, feed, limit=7):
    rows = client.call("take_feed_v1", COLUMNS, tenant="a", feed=feed, limit=limit)
    return [Event(*row) for row in rows]


def drain(client, feed):
    events = []
    while page := take(client, feed):
        events += page
    return events


def assert_each_once_in_order(database, feed, events):
    delivered = [(event.entity, event.seq) for event in events]
    stored = ALL_STEPS if feed == "steps" else "select entity, seq from helix.ledger_event"
    assert sorted(delivered) == sorted(database.rows(stored))
    for entity in {entity for entity, _ in delivered}:
        seqs = [seq for other, seq in delivered if other == entity]
        assert seqs == sorted(seqs), entity
    places = [event[:3] for event in events]
    assert places == sorted(places)


def batches_by_metric(database):
    """The counter of completed batches, after its duty has read everything."""
    with Lab(database) as lab:
        assert run_duty(lab, "metrics") is None
    return database.value(
        "select value from helix.metric where name = 'helix_batches' and label = 'COMPLETED'"
    )


def restore(old, new, directory):
    """Dump the database of one server into another, and recover it."""
    file = directory / "lab.dump"
    owner = Database(new.server, "restored")
    with Database(new.server, "postgres").connect("helix_bootstrap") as connection:
        connection.execute("create database restored owner helix_migrator")
    for program, *words in (
        ("pg_dump", "--format=custom", f"--file={file}", old.dsn("helix_bootstrap")),
        ("pg_restore", "--exit-on-error", f"--dbname={owner.dsn('helix_bootstrap')}", str(file)),
    ):
        subprocess.run([old.server.program(program), *words], check=True)
    with Store.connect(owner.dsn("operator")) as db:
        db.run(calls.recover(actor="ann", reason="restored"))
    return owner


def test_restore_into_a_younger_server_loses_doubles_and_misorders_no_event(tmp_path):
    with new_server(tmp_path / "old") as old, new_server(tmp_path / "new") as new:
        with old.connect("helix_bootstrap") as connection:
            connection.execute(
                "do $$ begin for n in 1..20000 loop perform pg_current_xact_id(); commit; "
                "end loop; end $$"
            )
        with sql_client(old) as client:
            open_everything(client)
            work(old, [f"old-{n}" for n in range(10)])
            seen = {feed: take(client, feed) + take(client, feed) for feed in FEEDS}
        with Store.connect(old.dsn("pool")) as db:
            start = ChangeCursor(0, 0, 0, datetime.now(UTC))
            changes = list(db.run(read_changes(start, limit=11)).rows)
        with old.connect("operator") as connection:
            sealed = [make_seal(connection, KEY)]

        restored = restore(old, new, tmp_path)
        age = "select pg_current_xact_id()::text::bigint"
        assert restored.value(age) < old.value(age) - 10_000
        with ThreadPoolExecutor(4) as writers:
            names = [[f"new-{writer}-{n}" for n in range(5)] for writer in range(4)]
            list(writers.map(work, [restored] * 4, names))

        with sql_client(restored) as client:
            for feed in FEEDS:
                assert_each_once_in_order(restored, feed, seen[feed] + drain(client, feed))
                work(restored, [f"later-{feed}"])
                assert drain(client, feed) != []
        with Store.connect(restored.dsn("pool")) as db:
            last = changes[-1]
            after = start._replace(position=last.position, batch=last.batch, version=last.version)
            changes += db.run(read_changes(after, limit=1000)).rows
        delivered = [(str(change.batch_id), change.version) for change in changes]
        assert sorted(delivered) == sorted(restored.rows(ALL_STEPS))
        with restored.connect("operator") as connection:
            sealed.append(make_seal(connection, KEY, head_of(sealed[0])))
            results = check_seals(connection, sealed, [KEY])
        assert [result.name for result in results if result.count] == []
        assert_consistent(restored)
        assert batches_by_metric(restored) == 32


def test_failover_that_lost_events_loses_doubles_and_misorders_none_of_the_others(tmp_path):
    with new_server(tmp_path / "primary") as primary, sql_client(primary) as client:
        open_everything(client)
        work(primary, ["kept-1", "kept-2"])
        waiting = client.submit("w1", "w2", "w3")
        seen = {feed: take(client, feed, 3) for feed in FEEDS}
        directory = tmp_path / "standby"
        with Standby(primary.server, directory, supervised=False) as standby:
            behind = cut_off(standby, primary)
            # What the standby never gets, and consumers have read.
            client.complete(client.claim(3))
            work(primary, [f"lost-{n}" for n in range(20)])
            page = client.call("read_feed_v1", "*", tenant="a", feed="steps", limit=10_000)
            with Store.connect(primary.dsn("pool")) as db:
                start = ChangeCursor(0, 0, 0, datetime.now(UTC))
                last = db.run(read_changes(start, limit=1000)).rows[-1]
            primary.server.stop()
            standby.promote()

            with sql_client(behind, "operator") as operator:
                assert operator.decide("cancel", waiting) == ["ok"] * 3
            work(behind, [f"new-{n}" for n in range(20)])
            with sql_client(behind) as new:
                confirmed = new.call(
                    "advance_feed_v1", tenant="a", feed="steps", count=len(page),
                    **dict(zip(("position", "number", "version"), page[0][-3:], strict=True)),
                    **dict(zip(("to_position", "to_number", "to_version"), page[-1], strict=False)),
                )  # fmt: skip
                assert confirmed == [(False,)]
                for feed in FEEDS:
                    events = seen[feed] + drain(new, feed)
                    assert_each_once_in_order(behind, feed, events)
                    if feed == "steps":
                        assert [event.kind for event in events].count("CANCELLED") == 3
            with Store.connect(behind.dsn("pool")) as db:
                after = start._replace(position=last.position)
                rows = db.run(read_changes(after, limit=1000)).rows
            assert [row.to_state for row in rows].count("CANCELLED") == 3
            assert len({row.batch_id for row in rows}) == 23
            assert_consistent(behind)


def cut_off(standby, primary):
    """Let it catch up, then take its primary away."""
    behind = Database(standby, "helix")
    written = primary.value("select pg_current_wal_insert_lsn()")
    wait_until(lambda: behind.value("select pg_last_wal_replay_lsn() >= %s::pg_lsn", written))
    with behind.connect("helix_bootstrap") as connection:
        connection.execute("alter system set primary_conninfo = ''")
        connection.execute("select pg_reload_conf()")
    wait_until(lambda: behind.value("select count(*) from pg_stat_wal_receiver") == 0)
    return behind
