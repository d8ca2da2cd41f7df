"""G4: folding the ledger gives the current state, and a replay sees where it does not."""

from __future__ import annotations

import psycopg
import pytest

from helixqueue.errors import SchemaMismatch
from helixqueue.ledger import replay as module
from helixqueue.ledger.fold import REASONS, Kind
from helixqueue.ledger.replay import estimate, replay, sees_every_tenant
from tests.support.ledger_damage import damage, with_batch_ids
from tests.support.ledger_traffic import sql_client


def test_all_traffic_folds_to_the_stored_states(busy):
    with busy.connect("operator") as connection:
        replayed = replay(connection)
        assert replayed.violations == []
        assert replayed.clean
        [(batches, retired, archived)] = connection.execute(
            "select (select count(*) from helix.work),"
            " (select count(*) from helix.batch where retired_at is not null),"
            " (select count(*) from helix.entry where batch is null)"
        ).fetchall()
        assert (replayed.batches, replayed.retired) == (batches, retired)
        assert (retired, archived) == (2, 2)
        # The view shows no steps of archived entries either.
        events = connection.execute("select reason::text from helix.event").fetchall()
        assert replayed.events == len(events)
        # The traffic left nothing out, or this proves less than it says.
        assert {reason for (reason,) in events} == set(REASONS)


def test_empty_ledger_is_clean(database):
    with database.connect("operator") as connection:
        assert replay(connection).events == 0


@pytest.fixture
def small_pages(monkeypatch):
    """Many round trips for few entries."""
    monkeypatch.setattr(module, "STEPS_PER_PAGE", 100)
    monkeypatch.setattr(module, "FIRST_PAGE", 1)
    monkeypatch.setattr(module, "STATE_BATCHES", 7)
    monkeypatch.setattr(module, "CHAIN_BATCHES", 7)


@pytest.mark.usefixtures("small_pages")
def test_replay_reads_one_snapshot_during_traffic(database):
    """The batch completed after the first page was read stands as it stood before."""
    with sql_client(database) as a, database.connect("operator") as connection:
        a.queue()
        for n in range(5):
            a.submit(*(f"s{n}-{m}" for m in range(50)))
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


@pytest.mark.usefixtures("small_pages")
def test_progress_ends_at_the_number_of_events(database):
    found = []
    with sql_client(database) as a, database.connect("operator") as connection:
        a.queue()
        for n in range(5):
            a.submit(*(f"s{n}-{m}" for m in range(50)))
        replay(connection, progress=found.append)
        assert found == [50, 150, 250]
        assert estimate(connection) >= 0


def test_ids_that_jump_cost_nothing(database):
    """A failover moves the sequences 16 million ahead; a replay does not visit what is between."""
    with sql_client(database) as a, database.connect("operator") as connection:
        a.queue()
        for n in range(3):
            a.submit(f"s{n}")
            a.complete(a.claim())
            for sequence in ("batch_id", "entry_id"):
                jump = f"select setval('helix.{sequence}', nextval('helix.{sequence}') + 16777216)"
                database.rows(jump)
        replayed = replay(connection)
        assert (replayed.events, replayed.batches, replayed.violated) == (12, 3, 0)


@pytest.mark.parametrize("pages", [False, True])
def test_tenant_role_replays_its_own_batches(busy, request, pages):
    if pages:
        request.getfixturevalue("small_pages")
    counts = {}
    for role in ("operator", "pool", "app_a", "app_b"):
        with busy.connect(role) as connection:
            replayed = replay(connection)
            assert replayed.violations == []
            counts[role] = replayed.batches, replayed.retired
            assert sees_every_tenant(connection) == (role in ("operator", "pool"))
    assert counts["operator"] == counts["pool"]
    assert 0 < counts["app_b"][0] < 5
    # Together they are everything.
    sums = [a + b for a, b in zip(counts["app_a"], counts["app_b"], strict=True)]
    assert tuple(sums) == counts["operator"]


def test_ranges_cover_the_whole_ledger_of_a_tenant(busy):
    with busy.connect("app_a") as connection:
        whole = replay(connection)
        batches = retired = after = 0
        while after is not None:
            stretch = replay(connection, after=after, batches=3)
            assert stretch.clean
            assert stretch.batches + stretch.retired <= 3
            batches, retired = batches + stretch.batches, retired + stretch.retired
            after = stretch.stopped_at
    assert (batches, retired) == (whole.batches, whole.retired)


def test_range_ends_at_its_time_limit(busy, monkeypatch):
    monkeypatch.setattr(module, "CHAIN_BATCHES", 2)
    with busy.connect("app_a") as connection:
        stretch = replay(connection, batches=1000, seconds=0)
        assert stretch.batches == 2
        assert stretch.stopped_at is not None
        rest = replay(connection, after=stretch.stopped_at, batches=1000)
        assert rest.stopped_at is None, "nothing is left"
        assert stretch.batches + rest.batches == replay(connection).batches


def test_tenant_cannot_read_whole_entries(busy):
    with (
        busy.connect("app_a") as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="whole ledger entries"),
    ):
        connection.execute("select * from helix.read_entries_v1(0, 0::smallint, 10)")


def test_tenant_reads_the_steps_of_its_own_batches_only(busy):
    """A claim of the pool took batches of both tenants: each sees its part of the entry."""
    own = "select b.id from helix.batch b join helix.queue q on q.id = b.queue where q.tenant = %s"
    for role, tenant in (("app_a", "a"), ("app_b", "b")):
        with busy.connect(role) as connection:
            steps = connection.execute(
                "select unnest(batch), sound, hash, content from helix.read_chains_v1(0, 1000)"
            ).fetchall()
        assert {row[0] for row in steps} == {batch for (batch,) in busy.rows(own, tenant)}
        assert {row[1:] for row in steps} == {(True, None, None)}


def test_connection_must_be_idle(database):
    with database.connect("operator", autocommit=False) as connection:
        connection.execute("select 1")
        with pytest.raises(ValueError, match="idle"):
            replay(connection)


def test_connection_settings_are_restored(database):
    with database.connect("operator", autocommit=False) as connection:
        replay(connection)
        assert (connection.isolation_level, connection.read_only) == (None, None)


def test_database_without_the_schema_says_migrate(server):
    with (
        psycopg.connect(server.bootstrap_dsn, autocommit=True) as connection,
        pytest.raises(SchemaMismatch, match="helixq migrate"),
    ):
        replay(connection)


LAST = "id = (select entry from helix.work where batch = {COMPLETED})"
BEFORE = "id = (select before from helix.work where batch = {COMPLETED})"
DAMAGE = {
    "the time of an entry was edited": (
        {Kind.HASH},
        f"update helix.entry set at = at + interval '1 microsecond' where {BEFORE}",
    ),
    "an entry in the middle was deleted": (
        {Kind.GAP, Kind.FROM_STATE, Kind.LINK, Kind.HASH, Kind.TOKEN, Kind.ATTEMPT, Kind.STATE},
        f"delete from helix.entry where {BEFORE}",
    ),
    "the last entry was deleted": (
        {Kind.STATE},
        f"delete from helix.entry where {LAST}",
    ),
    "all entries of a batch were deleted": (
        {Kind.NO_STEPS},
        """delete from helix.entry where id = (select w.entry from helix.work w
           join helix.batch b on b.id = w.batch where b.identity = 'later')""",
    ),
    "a row was edited": (
        {Kind.STATE},
        "update helix.work set state = 'FAILED' where batch = {COMPLETED}",
    ),
    "the token of a row was edited": (
        {Kind.STATE},
        "update helix.work set number = before where batch = {RUNNING}",
    ),
    "a row was deleted": (
        {Kind.NO_WORK_ROW},
        "delete from helix.work where batch = {COMPLETED}",
    ),
    "what was asked was deleted": (
        {Kind.NO_WORK_ROW},
        "delete from helix.batch where id = {COMPLETED}",
    ),
    "a finished batch was made claimable": (
        {Kind.STATE},
        "update helix.work set state = 'PENDING', pending = true where batch = {COMPLETED}",
    ),
    "an entry was forged after a final state": (
        {Kind.AFTER_FINAL, Kind.ARROW, Kind.ATTEMPT, Kind.HASH, Kind.STATE},
        """insert into helix.entry (id, part, at, position, epoch, from_state, to_state, reason,
                                    late, hash, actor, batch, queue, version, attempt, before)
           select nextval('helix.entry_id'), 1, now(), 700, w.epoch, 'COMPLETED', 'PENDING',
                  'retried', false, sha256('x'), 'eve', array[w.batch], array[w.queue],
                  array[w.version + 1], array[w.attempt], array[w.entry]
           from helix.work w where w.batch = {COMPLETED}""",
    ),
    "an array was made longer": (
        {Kind.ARRAYS, Kind.STATE},
        f"update helix.entry set attempt = attempt || 1::smallint where {LAST}",
    ),
    "an entry of a live batch was archived": (
        {Kind.ARCHIVED, Kind.STATE},
        f"""update helix.entry set batch = null, queue = null, version = null, attempt = null,
                   before = null, content = null where {BEFORE}""",
    ),
    "a retired batch kept its row": (
        {Kind.RETIRED_WORK},
        """update helix.batch b set retired_at = now(), entry = w.entry, version = w.version,
                  state = w.state, attempt = w.attempt, ended_at = w.changed_at
           from helix.work w where w.batch = b.id and b.id = {COMPLETED}""",
    ),
    "a tombstone was edited": (
        {Kind.STATE},
        """with made as (
             update helix.batch b set retired_at = now(), entry = w.entry, version = w.version + 1,
                    state = w.state, attempt = w.attempt, ended_at = w.changed_at
             from helix.work w where w.batch = b.id and b.id = {COMPLETED} returning b.id)
           delete from helix.work w using made where w.batch = made.id""",
    ),
    "the last entry of a retired batch was deleted": (
        {Kind.STATE},
        """delete from helix.entry where id = (select min(entry) from helix.batch
                                               where retired_at is not null)""",
    ),
    "a batch was given to another queue": (
        {Kind.QUEUE, Kind.HASH, Kind.STATE},
        f"""update helix.entry set queue[1] = (select id from helix.queue where tenant = 'b')
            where {LAST}""",
    ),
}
# A tenant's replay goes from its batches along the links between their steps. It does not reach
# these; `check` does, for tenants as well.
UNREACHED = {
    "what was asked was deleted",
    "an entry was forged after a final state",
    "an array was made longer",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_replay_finds(busy, what):
    kinds, statement = DAMAGE[what]
    damage(busy, with_batch_ids(busy, statement))
    with busy.connect("operator") as connection:
        replayed = replay(connection)
    assert {violation.kind for violation in replayed.violations} == kinds
    assert replayed.violated == len(replayed.violations) > 0
    batches = {violation.batch for violation in replayed.violations} - {0}
    assert len(batches) == (2 if "of a retired" in what else 1)


@pytest.mark.parametrize("what", sorted(DAMAGE.keys() - UNREACHED))
def test_tenants_replay_finds(busy, what):
    _, statement = DAMAGE[what]
    damage(busy, with_batch_ids(busy, statement))
    with busy.connect("app_a") as connection:
        assert not replay(connection).clean
    with busy.connect("app_b") as connection:
        assert replay(connection).clean


def test_violations_are_counted_beyond_the_limit(busy):
    damage(busy, "delete from helix.work where state in ('COMPLETED', 'FAILED')")
    with busy.connect("operator") as connection:
        replayed = replay(connection, limit=2)
    assert len(replayed.violations) == 2 < replayed.violated
