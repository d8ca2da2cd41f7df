"""A commit of a handler's transaction whose answer is lost: the ledger decides, not a refusal."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from helixqueue import (
    AsyncLease,
    HelixQueue,
    Lease,
    LeaseLost,
    Queue,
    State,
    Unavailable,
)
from helixqueue.log.events import WORKER_LOG
from tests.support.faults import FaultProxy
from tests.support.shift import proven
from tests.worker.conftest import effects

WRITE = "insert into public.effect (queue, identity) values (%s, %s)"


@dataclass
class Far:
    """A client, and the link to its database, which can be cut."""

    helix: HelixQueue
    faults: FaultProxy

    def did(self, queue):
        """All of the queue's work; what was completed, failed and lost. One thing was cut."""
        done = self.helix.work(queue, until_idle=True)
        assert self.faults.fired == 1
        return done.completed, done.failed, done.lost


@pytest.fixture
def far(database, tmp_path_factory):
    with (
        FaultProxy(database.dsn("pool"), tmp_path_factory.mktemp("f")) as faults,
        HelixQueue(faults.dsn, tenant="a") as helix,
    ):
        yield Far(helix, faults)


@pytest.fixture
def lines(caplog):
    """The operation log, as (operation, decision)."""

    def read():
        found = [record for record in caplog.records if record.name == WORKER_LOG.name]
        read = [json.loads(item.message) for item in found]
        return [(item["operation"], item["decision"]) for item in read]

    with caplog.at_level(logging.INFO, WORKER_LOG.name):
        yield read


def refusals(database, receipt):
    return database.rows(
        "select r.operation, r.state::text from helix.refusal r "
        "join helix.locate(array[%s::uuid]) l on l.batch = r.batch",
        receipt.batch_id,
    )


def took_effect_once(helix, database, name, receipt):
    assert helix.state(receipt) is State.COMPLETED
    assert effects(database, name) == {"s": 1}
    assert refusals(database, receipt) == []
    proven(database)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_settle_with_a_lost_commit_answer_is_reported_as_a_repeat(far, database, name, lines, kind):
    queue = Queue(name, max_attempts=1)

    if kind == "def":

        @queue.handler
        def run(lease: Lease):
            with lease.transaction() as tx:
                tx.execute(WRITE, (name, lease.identity))
                far.faults.lose_reply(to="COMMIT")
                tx.complete({})
    else:

        @queue.handler
        async def run_async(lease: AsyncLease):
            async with lease.transaction() as tx:
                await tx.execute(WRITE, (name, lease.identity))
                await asyncio.to_thread(far.faults.lose_reply, to="COMMIT")
                tx.complete({})

    receipt = far.helix.submit(queue, identity="s", payload={}).receipt
    assert far.did(queue) == (1, 0, 0)
    assert lines() == [("claim", "ok"), ("settle", "ok"), ("settle", "repeat")]
    took_effect_once(far.helix, database, name, receipt)


def meets_its_own_row(lease, name):
    with lease.transaction() as tx:
        tx.execute(WRITE, (name, lease.identity))
        tx.complete({})


def fails_instead(lease, name):  # noqa: ARG001 - as the others
    with lease.transaction() as tx:
        tx.fail("the database went away")


def completes_again(lease, name):  # noqa: ARG001 - as the others
    with lease.transaction() as tx:
        tx.complete({})


REPEATS = {
    meets_its_own_row: psycopg.errors.UniqueViolation,
    fails_instead: LeaseLost,
    completes_again: LeaseLost,
}


@pytest.mark.parametrize("repeat", REPEATS)
def test_handler_that_repeats_a_transaction_with_a_lost_commit_answer_is_not_refused(
    far, database, name, lines, repeat
):
    queue = Queue(name, max_attempts=1)
    with database.connect("helix_bootstrap") as connection:
        connection.execute(
            f"create unique index on public.effect (identity) where queue = '{name}'"
        )

    @queue.handler
    def run(lease: Lease):
        with pytest.raises(Unavailable) as lost, lease.transaction() as tx:
            tx.execute(WRITE, (name, lease.identity))
            far.faults.lose_reply(to="COMMIT")
            tx.complete({})
        assert lost.value.outcome_unknown
        with pytest.raises(REPEATS[repeat]):
            repeat(lease, name)
        raise RuntimeError("the handler gives up")

    receipt = far.helix.submit(queue, identity="s", payload={}).receipt
    assert far.did(queue) == (1, 0, 0)
    assert "refused" not in {decision for _, decision in lines()}
    assert lines()[-1] == ("settle", "repeat")
    took_effect_once(far.helix, database, name, receipt)


def test_handler_whose_first_commit_did_not_happen_settles_with_the_second(
    far, database, name, lines
):
    queue = Queue(name, max_attempts=1)

    @queue.handler
    def run(lease: Lease):
        with pytest.raises(Unavailable), lease.transaction() as tx:
            tx.execute(WRITE, (name, lease.identity))
            far.faults.lose_request(containing="COMMIT")
            tx.complete({})
        with lease.transaction() as tx:
            tx.execute(WRITE, (name, lease.identity))
            return tx.complete({})

    receipt = far.helix.submit(queue, identity="s", payload={}).receipt
    assert far.did(queue) == (1, 0, 0)
    assert lines() == [("claim", "ok"), ("settle", "ok"), ("settle", "ok")]
    took_effect_once(far.helix, database, name, receipt)


def test_failed_commit_fails_the_attempt(far, database, name, lines):
    queue = Queue(name, max_attempts=1)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute(WRITE, (name, lease.identity))
            far.faults.lose_request(containing="COMMIT")
            tx.complete({})

    receipt = far.helix.submit(queue, identity="s", payload={}).receipt
    assert far.did(queue) == (0, 1, 0)
    assert far.helix.state(receipt) is State.FAILED
    assert effects(database, name) == {}
    assert refusals(database, receipt) == []
    assert lines()[-1] == ("settle", "ok")


def test_worker_waits_for_a_commit_in_progress(far, database, name, lines):
    """As one that waits for its standby; the worker has reconnected long before it is over."""
    queue = Queue(name, max_attempts=1)
    with database.connect("helix_bootstrap") as connection:
        connection.execute(f"create table public.slow_{name} (n int)")
        connection.execute(f"grant all on public.slow_{name} to pool")
        connection.execute(
            f"create function public.slow_{name}() returns trigger language plpgsql as "
            "$$ begin perform pg_sleep(1.5); return null; end $$"
        )
        connection.execute(
            f"create constraint trigger slow after insert on public.slow_{name} "
            f"deferrable initially deferred for each row execute function public.slow_{name}()"
        )

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute(WRITE, (name, lease.identity))
            tx.execute(f"insert into public.slow_{name} values (1)")
            far.faults.hang_up(at="COMMIT")
            tx.complete({})

    receipt = far.helix.submit(queue, identity="s", payload={}).receipt
    assert far.did(queue) == (1, 0, 0)
    assert lines() == [("claim", "ok"), ("settle", "ok"), ("settle", "repeat")]
    took_effect_once(far.helix, database, name, receipt)


def test_process_that_dies_after_its_commit_is_not_reported_as_failed(
    helix, database, name, process
):
    queue = Queue(name, max_attempts=1)
    receipt = helix.submit(queue, identity="s", payload={"die_after": True}).receipt
    options = {"slots": 1, "until_idle": True}
    with process(name, options=options, HELIX_APP_RUN_IN="process") as worker:
        assert worker.wait() == 0, worker.err
    summary = json.loads(worker.out)
    assert (summary["completed"], summary["failed"], summary["lost"]) == (1, 0, 0)
    took_effect_once(helix, database, name, receipt)


@pytest.mark.parametrize("way", ["transaction", "within"])
def test_lease_is_not_renewed_after_its_handler_committed(helix, database, name, way, caplog):
    """The renewal of a batch that has completed would be refused, and kept as a refusal."""
    queue = Queue(name, max_attempts=1, lease=1.5)
    engine = sqlalchemy.create_engine(
        database.dsn("pool").replace("postgresql://", "postgresql+psycopg://")
    )

    @queue.handler
    def run(lease: Lease):
        if way == "transaction":
            with lease.transaction() as tx:
                tx.execute(WRITE, (name, lease.identity))
                tx.complete({})
        else:
            with Session(engine) as session:
                insert = f"insert into public.effect (queue, identity) values ('{name}', 's')"
                session.execute(sqlalchemy.text(insert))
                lease.within(session).complete({})
                session.commit()
        time.sleep(2.0)  # the first renewal is due after a third of the lease

    receipt = helix.submit(queue, identity="s", payload={}).receipt
    done = helix.work(queue, until_idle=True)
    engine.dispose()
    assert (done.completed, done.failed, done.lost) == (1, 0, 0)
    assert "lost batch" not in caplog.text
    took_effect_once(helix, database, name, receipt)
