"""The cache of seqs is a hint: it may skip what is older, and never decides."""

from __future__ import annotations

import pytest
import redis

from helixqueue import HelixQueue, Refused
from helixqueue.embedded import Valkey
from helixqueue.engine import ledgers
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
    assert hinted.append("d", 3, "LAUNCHED").decision == "duplicate"
    assert hinted.append("d", 4, "LANDED").is_new


def test_emptied_or_forged_cache_changes_no_decision(hinted, cache):
    [name] = cache.keys("helix:ledger:*")
    cache.set(name, cache.get(name)[:32] + b"1:999")
    assert hinted.append("d", 4, "LANDED").is_new
    cache.flushall()
    assert hinted.append("d", 1, "REQUESTED").decision == "duplicate"


def test_restored_database_gets_its_lost_events_again(fresh_database, valkey, cache):
    """The hint outlives a restore. Its epoch is old, so the database is asked."""
    database = fresh_database
    with HelixQueue(database.dsn("app_a"), tenant="a") as helix:
        ledger = helix.ledger("restored", DISPATCH, hint=valkey.url)
        for seq, kind in enumerate(("REQUESTED", "CONFIRMED", "LAUNCHED"), 1):
            ledger.append("d", seq, kind)
        # The restore loses the events, ends every connection, and begins a new epoch.
        with database.connect("helix_bootstrap") as connection:
            connection.execute("set session_replication_role = replica")
            connection.execute("alter table helix.ledger_event disable trigger all")
            connection.execute("delete from helix.ledger_event")
            connection.execute("alter table helix.ledger_event enable trigger all")
            connection.execute("select helix.recover_v1('test', 'restore')")
            connection.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
                " where usename = 'app_a' and datname = current_database()"
            )
        answers = [
            ledger.append("d", seq, kind).decision
            for seq, kind in enumerate(("REQUESTED", "CONFIRMED", "LAUNCHED"), 1)
        ]
    assert answers == ["written"] * 3


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
