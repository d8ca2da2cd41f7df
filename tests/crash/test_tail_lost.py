"""A standby promoted without the last commits: the lost past can do no harm to the new one (G2).

What the primary handed out after the standby was cut off never happened, but its workers do not
know. Sequences have gone back with the lost tail of the log, and move ahead with the first call, so
that no batch id and no lease number is given out a second time.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import pytest

from helixqueue.engine import calls
from helixqueue.errors import Unavailable
from helixqueue.postgres.database import Database as Store
from helixqueue.states import State
from tests.support.database import Database
from tests.support.engine_traffic import assert_consistent, claim, drain, open_queue, submit
from tests.support.lab import completion, lease_refs, wait_until
from tests.support.own_server import new_server
from tests.support.standby import Standby

if TYPE_CHECKING:
    from helixqueue.embedded import Postgres
    from helixqueue.records.lease import LeaseRow
    from helixqueue.records.submission import SubmittedRow

# PostgreSQL logs a sequence 32 numbers ahead: a shorter tail would show no number twice.
TAIL = 80
LEASE_ROW = "select to_jsonb(w) from helix.work w where batch = %s"
LEASED = "select count(*) from helix.work where state in ('ASSIGNED', 'RUNNING')"
_numbers = itertools.count(1)
# One failover serves all of them, so they stay in one process.
pytestmark = pytest.mark.xdist_group("failover")


class Past(NamedTuple):
    """What clients of the dead primary remember, and the server that went on without its tail."""

    server: Postgres
    kept: list[SubmittedRow]  # submitted before the standby was cut off
    kept_leases: list[LeaseRow]
    lost: list[SubmittedRow]  # submitted after that
    lost_leases: list[LeaseRow]
    lost_epoch: int  # of the database "drilled", where `recover` was called in the lost tail
    standby_refused: bool


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    directory = tmp_path_factory.mktemp("failover")
    with new_server(directory / "primary") as primary:
        with primary.connect("helix_bootstrap") as connection:
            connection.execute("create database drilled template helix owner helix_migrator")
        with Store.connect(primary.dsn("pool")) as db:
            open_queue(db, lease_seconds=600)
            kept = submit(db, ["kept-1", "kept-2", "kept-3"])
            kept_leases = claim(db, 2, "W")
        standby = Standby(primary.server, directory / "standby", supervised=False)
        with standby:
            behind = Database(standby, "helix")
            refused = cut_off(behind)

            with Store.connect(primary.dsn("pool")) as db:
                lost = submit(db, [f"lost-{number}" for number in range(TAIL)])
                lost_leases = claim(db, TAIL, "W")
            with Store.connect(Database(primary.server, "drilled").dsn("operator")) as db:
                for _ in range(3):
                    epoch, *_ = db.run(calls.recover(actor="ann", reason="drill"))

            primary.server.stop()
            standby.promote()
            yield Past(standby, kept, kept_leases, lost, lost_leases, epoch, refused)


def cut_off(standby):
    """Let it catch up, then take its primary away; returns whether it refused to take work."""
    wait_until(lambda: standby.value(LEASED) == 2, "the standby to follow")
    with Store.connect(standby.dsn("pool")) as db:
        try:
            submit(db, ["one"])
            refused = False
        except Unavailable:
            refused = True
    with standby.connect("helix_bootstrap") as connection:
        connection.execute("alter system set primary_conninfo = ''")
        connection.execute("select pg_reload_conf()")
    wait_until(
        lambda: standby.value("select count(*) from pg_stat_wal_receiver") == 0,
        "the standby to be cut off",
    )
    return refused


def copy_of(past, name):
    """A database of the test's own; sequences, epochs and leases are copied with it."""
    own = f"{name}_{next(_numbers)}"
    with Database(past.server, "postgres").connect("helix_bootstrap") as connection:
        connection.execute(f"create database {own} template {name} owner helix_migrator")
    return Database(past.server, own)


@pytest.fixture
def new(past):
    """The new past, as the standby knew it when it was promoted."""
    return copy_of(past, "helix")


@pytest.fixture
def db(new):
    with Store.connect(new.dsn("pool")) as db:
        yield db


def test_tokens_after_the_failover_have_a_higher_epoch_and_no_number_is_reused(past, new, db):
    # The counters went back with the lost tail: counting on would repeat what it had.
    assert new.value("select last_value from helix.batch_id") < past.lost_leases[-1].batch
    assert new.value("select max(id) from helix.entry") < past.lost_leases[-1].token.number
    submit(db, [f"new-{number}" for number in range(TAIL)])
    leases = claim(db, TAIL + 1, "V")
    assert len(leases) == TAIL + 1  # with the one that was kept and not leased
    known = [*past.kept_leases, *past.lost_leases]
    assert min(lease.token.epoch for lease in leases) > max(item.token.epoch for item in known)
    assert min(lease.token.number for lease in leases) > max(item.token.number for item in known)
    fresh = {lease.batch for lease in leases if lease.identity.startswith("new-")}
    assert min(fresh) > max(item.batch for item in known)
    assert new.rows("select number, timeline, reason from helix.epoch order by number")[1:] == [
        (leases[0].token.epoch, "00000002", "server")
    ]
    assert_consistent(new)


@pytest.mark.parametrize("worker", ["W", "V"], ids=["same-name", "other-name"])
def test_zombie_from_before_failover_is_refused_despite_equal_number_and_batch(
    past, new, db, worker
):
    zombie = past.lost_leases[-1]
    # The first call moves the counters ahead. Put back by hand, they give the zombie's numbers to
    # other work: the epoch alone must be enough.
    db.run(calls.cancel(ids=[past.kept[2].receipt.batch_id], reason="make room"))
    counters = {
        name: new.value(f"select last_value from helix.{name}")  # noqa: S608
        for name in ("batch_id", "entry_id")
    }
    new.value("select setval('helix.batch_id', %s, false)", zombie.batch)
    # One entry for the submission, the next for the claim.
    new.value("select setval('helix.entry_id', %s, false)", zombie.token.number - 1)
    submit(db, ["other work"])
    [lease] = claim(db, 1, worker)
    assert (lease.batch, lease.token.number) == (zombie.batch, zombie.token.number)
    before = new.rows(LEASE_ROW, lease.batch)

    answers = [
        *db.run(calls.start(worker="W", leases=lease_refs([zombie]))),
        *db.run(calls.renew(worker="W", leases=lease_refs([zombie]))),
        *db.run(calls.settle(worker="W", settlements=[completion(zombie, '"of old"')])),
        *db.run(calls.release(worker="W", leases=lease_refs([zombie]))),
    ]

    assert [(answer.answer, answer.owner) for answer in answers] == [("refused", worker)] * 4
    assert new.rows(LEASE_ROW, lease.batch) == before
    [done] = db.run(calls.settle(worker=worker, settlements=[completion(lease, '"new"')]))
    assert done.answer == "ok"
    # Also when the ledger has a completion of this batch under this number: not the zombie's.
    [late] = db.run(calls.settle(worker="W", settlements=[completion(zombie, '"of old"')]))
    assert (late.answer, late.state) == ("refused", State.COMPLETED)
    assert new.rows("select result from helix.result where batch = %s", lease.batch) == [("new",)]
    for name, last in counters.items():
        new.value("select setval(%s, %s)", f"helix.{name}", last)
    assert_consistent(new)


def test_replicated_leases_continue_under_their_tokens(past, new, db):
    """A failover ends no lease that both sides know: hours of a GPU's work are not thrown away."""
    settlements = [completion(lease) for lease in past.kept_leases]
    answers = db.run(calls.settle(worker="W", settlements=settlements))
    assert [answer.answer for answer in answers] == ["ok", "ok"]
    assert drain(db) == 1
    assert_consistent(new)


def test_lost_batch_submitted_again_gets_its_former_ids_exclusively(past, new, db):
    others = submit(db, [f"new-{number}" for number in range(TAIL)])
    again = submit(db, [f"lost-{number}" for number in range(TAIL)])
    kept = submit(db, ["kept-1", "kept-2", "kept-3"])
    assert {other.decision for other in [*others, *again]} == {"new"}
    assert {item.decision for item in kept} == {"duplicate"}
    assert [item.receipt for item in again] == [item.receipt for item in past.lost]
    assert [item.receipt for item in kept] == [item.receipt for item in past.kept]
    lost = {item.receipt.batch_id for item in past.lost}
    assert not lost & {other.receipt.batch_id for other in others}
    assert_consistent(new)


def test_recover_ends_leases_and_raises_the_epoch(past, new):
    with Store.connect(new.dsn("operator")) as db:
        epoch, ended, _ = db.run(calls.recover(actor="ann", reason="failed over without its tail"))
        assert ended == len(past.kept_leases)
        assert epoch > max(
            kept_leas.token.epoch for kept_leas in [*past.kept_leases, *past.lost_leases]
        )
        assert {lease.token.epoch for lease in claim(db, 3, "V")} == {epoch}
        settlements = [completion(lease) for lease in past.kept_leases]
        answers = db.run(calls.settle(worker="W", settlements=settlements))
        assert [answer.answer for answer in answers] == ["refused", "refused"]
    assert_consistent(new)


@pytest.mark.parametrize("first", ["claim", "recover"])
def test_epoch_lost_with_the_tail_is_not_reused(past, first):
    """`recover` had been called on the primary, and its commit did not reach the standby."""
    drilled = copy_of(past, "drilled")
    with Store.connect(drilled.dsn("operator")) as db:
        if first == "recover":
            db.run(calls.recover(actor="ann", reason="failed over"))
        open_queue(db)
        submit(db, ["one"])
        [lease] = claim(db, 1)
    assert lease.token.epoch > past.lost_epoch
    assert_consistent(drilled)


def test_standby_accepts_no_writes(past):
    assert past.standby_refused
