"""G4: folding the ledger gives the current state, and a replay sees where it does not."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.errors import SchemaMismatch
from helixqueue.ledger import replay as module
from helixqueue.ledger.fold import REASONS, Kind
from helixqueue.ledger.replay import estimate, replay
from tests.ledger.damage import damaged, one
from tests.ledger.traffic import lab


def test_all_traffic_folds_to_where_it_stands(busy):
    with busy.connect("operator") as connection:
        replayed = replay(connection)
        assert replayed.violations == []
        assert replayed.clean
        [(events, batches, retired)] = connection.execute(
            "select (select count(*) from helix.event), (select count(*) from helix.standing),"
            " (select count(*) from helix.retired)"
        ).fetchall()
        assert (replayed.events, replayed.batches, replayed.retired) == (events, batches, retired)
        assert retired == 2
        # The traffic left nothing out, or this proves less than it says.
        reasons = {row[0] for row in connection.execute("select reason::text from helix.event")}
        assert reasons == set(REASONS)


def test_an_empty_ledger_is_clean(database):
    with database.connect("operator") as connection:
        assert replay(connection).events == 0


@pytest.fixture
def small_steps(monkeypatch):
    """Many round trips for few events."""
    monkeypatch.setattr(module, "FETCH_ROWS", 100)


@pytest.mark.usefixtures("small_steps")
def test_a_replay_sees_one_moment_while_work_goes_on(database):
    """The batch completed after the first event was read stands as it stood before."""
    with lab(database) as a, database.connect("operator") as connection:
        a.queue()
        a.submit(*(f"s{n}" for n in range(250)))
        [held] = a.claim()
        moved = []

        def meanwhile(_):
            if not moved:
                moved.extend(a.complete([held]))

        replayed = replay(connection, progress=meanwhile)
        assert moved == ["ok"]
        assert replayed.clean
        assert replayed.events == 252
        assert replay(connection).events == 253


@pytest.mark.usefixtures("small_steps")
def test_progress_ends_at_the_number_of_events(database):
    told = []
    with lab(database) as a, database.connect("operator") as connection:
        a.queue()
        a.submit(*(f"s{n}" for n in range(250)))
        replay(connection, progress=told.append)
        assert told == [100, 200, 250]
        assert estimate(connection) >= 0


def test_a_tenants_own_role_replays_its_own(busy):
    with busy.connect("app_b") as connection:
        replayed = replay(connection)
        assert replayed.clean
        assert 0 < replayed.batches < 5


def test_the_connection_must_be_idle(database):
    with database.connect("operator", autocommit=False) as connection:
        connection.execute("select 1")
        with pytest.raises(ValueError, match="idle"):
            replay(connection)


def test_the_connection_is_given_back_as_it_was(database):
    with database.connect("operator", autocommit=False) as connection:
        replay(connection)
        assert (connection.isolation_level, connection.read_only) == (None, None)


def test_a_database_without_the_schema_says_migrate(server):
    with (
        psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        replay(connection)


DAMAGE = {
    "the detail of an event was edited": (
        {Kind.HASH},
        "update helix.event set detail = 'nothing' where (batch, version) = ({FAILED}, 4)",
    ),
    "an event in the middle was deleted": (
        {Kind.GAP, Kind.TORN, Kind.HASH, Kind.TOKEN, Kind.ATTEMPT},
        "delete from helix.event where (batch, version) = ({COMPLETED}, 2)",
    ),
    "the last event was deleted": (
        {Kind.STANDING},
        "delete from helix.event where (batch, version) = ({COMPLETED}, 4)",
    ),
    "all events of a batch were deleted": (
        {Kind.UNTOLD},
        "delete from helix.event where batch = {COMPLETED}",
    ),
    "the outcome was edited": (
        {Kind.STANDING},
        "update helix.outcome set state = 'FAILED', ending = 2 where batch = {COMPLETED}",
    ),
    "the outcome was deleted": (
        {Kind.NOWHERE},
        "delete from helix.outcome where batch = {COMPLETED}",
    ),
    "a finished batch was made claimable": (
        {Kind.TWICE, Kind.STANDING},
        """insert into helix.ready (batch, tenant, version, attempt, actor, reason, lane, turn)
           select batch, tenant, version, attempt, actor, reason, lane, 1
           from helix.outcome where batch = {COMPLETED}""",
    ),
    "an event was forged behind a final state": (
        {Kind.AFTER_FINAL, Kind.ARROW, Kind.HASH, Kind.STANDING},
        """insert into helix.event (batch, version, tenant, from_state, to_state, at, attempt,
                                    actor, reason, late, hash)
           select batch, 5, tenant, 'COMPLETED', 'PENDING', now(), 0, 'eve', 'retried', false, 'x'
           from helix.outcome where batch = {COMPLETED}""",
    ),
    "a retired batch kept an event": (
        {Kind.REMAINS, Kind.HASH},
        """insert into helix.event (batch, version, tenant, to_state, at, attempt, actor, reason,
                                    late, hash)
           select batch, 1, tenant, 'PENDING', now(), 0, 'eve', 'submitted', false, 'x'
           from helix.retired limit 1""",
    ),
    "a batch was given to another tenant": (
        {Kind.TENANT, Kind.HASH, Kind.STANDING},
        "update helix.event set tenant = 'b' where (batch, version) = ({COMPLETED}, 4)",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_replay_finds(busy, what):
    kinds, statement = DAMAGE[what]
    damaged(busy, one(busy, statement))
    with busy.connect("operator") as connection:
        replayed = replay(connection)
    assert {violation.kind for violation in replayed.violations} == kinds
    assert replayed.violated == len(replayed.violations) > 0
    assert len({violation.batch for violation in replayed.violations}) == 1


def test_violations_are_counted_beyond_the_limit(busy):
    damaged(busy, "delete from helix.outcome")
    with busy.connect("operator") as connection:
        replayed = replay(connection, limit=2)
    assert len(replayed.violations) == 2 < replayed.violated
