"""What handlers get, and what becomes of what they return or raise."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
import uuid

import pytest
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy.orm import Session

from helixqueue import (
    AsyncHelixQueue,
    AsyncLease,
    GiveUp,
    HelixQueue,
    Lease,
    LeaseLost,
    NoResult,
    Queue,
    Refused,
    Retry,
    State,
)
from helixqueue.client.backend import backend_of
from helixqueue.transport.protocol import ClaimResult
from tests.support.lab import wait_until
from tests.support.shift import proven
from tests.worker.conftest import effects, take_over


class Basecall(BaseModel):
    pod5: str


class Reads(BaseModel):
    reads: int


def test_sync_handler_completes_with_a_typed_result(helix, name):
    queue = Queue(name, payload=Basecall, result=Reads)
    found = []

    @queue.handler
    def run(lease: Lease[Basecall, Reads]) -> Reads:
        found.append((lease.payload, lease.identity, lease.attempt, lease.idempotency_key))
        lease.progress(0.4, "demultiplexing")
        return Reads(reads=7)

    submitted = helix.submit(queue, identity="s1", payload=Basecall(pod5="a"))
    done = helix.work(queue, until_idle=True)
    assert (done.completed, done.failed) == (1, 0)
    assert helix.result(submitted.receipt) == Reads(reads=7)
    assert found == [(Basecall(pod5="a"), "s1", 1, submitted.receipt.key)]
    assert [event.reason for event in helix.history(submitted.receipt)] == [
        "submitted", "claimed", "started", "completed",
    ]  # fmt: skip


def test_progress_reported_by_a_handler_is_visible(helix, name, shift, caplog):
    queue = Queue(name)
    output, go = threading.Event(), threading.Event()

    @queue.handler
    def run(lease: Lease):
        lease.progress(0.4, "demultiplexing")
        lease.log.warning("few reads")
        with pytest.raises(Refused, match="from 0 to 1"):
            lease.progress(40)
        output.set()
        assert go.wait(60)

    submitted = helix.submit(queue, identity="s1", payload={}).receipt
    with shift(helix, queue, slots=1) as worker:
        assert output.wait(60)
        [row] = worker.worker.status()["progress"]
        go.set()
    assert row == {"batch": str(submitted.batch_id), "fraction": 0.4, "note": "demultiplexing"}
    [record] = [record for record in caplog.records if "few reads" in record.message]
    assert record.message == f"{name} 's1' attempt 1: few reads"
    assert (record.batch, record.attempt) == (str(submitted.batch_id), 1)


def test_worker_claims_on_while_large_payloads_arrive_in_parts(helix, database, name, shift):
    """A claim that was cut short is not one that found little."""
    queue = Queue(name)
    go = threading.Event()

    @queue.handler
    def run(_: Lease):
        assert go.wait(60)

    helix.submit_many(
        queue, [{"identity": f"s{n}", "payload": {"reads": "A" * 900 * 1024}} for n in range(44)]
    )
    with shift(helix, queue, slots=1, prefetch=100, poll_seconds=60):
        query = (
            "select count(*) from helix.work w join helix.queue q on q.id = w.queue "
            "where q.name = %s and w.state in ('ASSIGNED', 'RUNNING')"
        )
        wait_until(lambda: database.value(query, name) == 44, seconds=40)  # sooner than it polls
        go.set()


def test_worker_without_prefetch_holds_one_lease_per_slot(helix, database, name, shift):
    """Nothing is claimed ahead of a free slot, and slots that are free together share a call."""
    queue = Queue(name)
    go = threading.Event()

    @queue.handler
    async def run(_: AsyncLease):
        await asyncio.to_thread(go.wait, 60)

    helix.submit_many(queue, [{"identity": f"s{n}", "payload": {}} for n in range(40)])
    with shift(helix, queue, slots=8, prefetch=1) as worker:
        wait_until(lambda: len(worker.worker._in_flight.running) == 8)
        query = (
            "select count(*), count(distinct w.number) from helix.work w "
            "join helix.queue q on q.id = w.queue where q.name = %s and w.state = 'RUNNING'"
        )
        [(held, claims)] = database.rows(query, name)
        assert held == 8
        assert claims < 8
        go.set()
        wait_until(lambda: worker.worker.health.counts.completed == 40)


def test_async_client_runs_an_async_handler(database, name):
    queue = Queue(name)

    @queue.handler
    async def run(lease: AsyncLease):
        await asyncio.sleep(0)
        async with lease.transaction() as tx:
            await tx.execute(
                "insert into public.effect (queue, identity) values (%s, %s)",
                (name, lease.identity),
            )
            await tx.submit(queue, identity="next", payload={"end": True})
            return tx.complete(1)

    async def story():
        async with AsyncHelixQueue(database.dsn("pool"), tenant="a") as helix:
            submitted = await helix.submit(queue, identity="first", payload={})
            done = await helix.work(queue, until_idle=True)
            return done, await helix.result(submitted.receipt)

    # `next` submits itself again with its own payload: a duplicate, and the chain ends.
    done, result = asyncio.run(story())
    assert (done.completed, result) == (2, 1)
    assert effects(database, name) == {"first": 1, "next": 1}


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_failure_classes_are_distinguished(helix, name, kind):
    queue = Queue(name, max_attempts=2, backoff=0, result=int)
    calls = []

    raised = {
        ("gives up", 1): GiveUp("this sample is empty"),
        ("retries", 1): Retry(after=0),
        ("breaks", 1): ValueError("a\0b \udcff"),
        ("breaks", 2): ValueError("a\0b \udcff"),
    }
    returned = {"misfits": "not a number", "works": 7, "retries": 1}

    def body(lease):
        calls.append((lease.identity, lease.attempt))
        if error := raised.get((lease.identity, lease.attempt)):
            raise error
        return returned[lease.identity]

    if kind == "loop":

        @queue.handler
        async def run_async(lease: AsyncLease):
            return body(lease)
    else:

        @queue.handler
        def run(lease: Lease):
            return body(lease)

    made = {
        identity: helix.submit(queue, identity=identity, payload={}).receipt
        for identity in ("gives up", "retries", "breaks", "misfits", "works")
    }

    def everything_ended():
        helix.work(queue, until_idle=True)
        return all(helix.state(item) in {State.COMPLETED, State.FAILED} for item in made.values())

    wait_until(everything_ended)
    assert helix.result(made["works"]) == 7
    assert helix.result(made["retries"]) == 1
    ends = {}
    for identity in ("gives up", "breaks", "misfits"):
        with pytest.raises(NoResult) as ended:
            helix.result(made[identity])
        ends[identity] = (ended.value.failure, calls.count((identity, 2)), str(ended.value))
    assert ends["gives up"][:2] == ("GiveUp", 0)
    assert ends["breaks"][:2] == ("ValueError", 1)
    assert "a\\0b" in ends["breaks"][2]
    assert ends["misfits"][0] == "result"
    assert "unable to parse string as an integer" in ends["misfits"][2]


def test_retry_delay_depends_on_the_failure_class(helix, database, name):
    """A failure waits longer and longer, by chance; a handler may say how long, or never."""
    queue = Queue(name, max_attempts=3, backoff=1000, backoff_max=1000)
    raised = {
        "breaks": ValueError("broken"),
        "swells": MemoryError(),
        "says when": Retry(after=77),
        "gives up": GiveUp("no reads"),
    }

    @queue.handler
    async def run(lease: AsyncLease):
        raise raised[lease.identity]

    made = {item: helix.submit(queue, identity=item, payload={}).receipt for item in raised}
    assert helix.work(queue, until_idle=True).failed == 4
    waits = dict(
        database.rows(
            "select b.identity::text, extract(epoch from w.due - clock_timestamp())::float "
            "from helix.work w join helix.batch b on b.id = w.batch "
            "join helix.queue q on q.id = b.queue where w.cause is not null and q.name = %s",
            name,
        )
    )
    assert waits.keys() == {"breaks", "swells", "says when"}
    assert 400 < waits["breaks"] <= 1000
    assert 400 < waits["swells"] <= 1000
    assert 40 < waits["says when"] <= 77
    assert helix.state(made["gives up"]) is State.FAILED


def test_invalid_value_is_reported_with_its_path(helix, name):
    class Deep(BaseModel):
        samples: list[Reads]

    queue = Queue(name, max_attempts=1, result=Deep)

    @queue.handler
    def run(_: Lease):
        return {"samples": [{"reads": 1}, {"reads": "many"}]}

    submitted = helix.submit(queue, identity="s", payload={})
    helix.work(queue, until_idle=True)
    with pytest.raises(NoResult, match="/samples/1/reads"):
        helix.result(submitted.receipt)


def test_rows_of_the_handler_and_completion_are_one_commit(helix, database, name):
    queue = Queue(name, max_attempts=1)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute(
                "insert into public.effect (queue, identity) values (%s, %s)",
                (name, lease.identity),
            )
            tx.complete({"n": 1})
            if lease.identity == "bad":
                raise ValueError("after complete, before the end")

    good, bad = (helix.submit(queue, identity=name, payload={}).receipt for name in ("good", "bad"))
    helix.work(queue, until_idle=True)
    assert effects(database, name) == {"good": 1}
    assert (helix.state(good), helix.state(bad)) == (State.COMPLETED, State.FAILED)


def test_handler_silent_in_its_transaction_for_longer_than_its_lease_is_rolled_back(
    helix, database, name
):
    """As one that is frozen: the rows and keys that it locked are free again."""
    queue = Queue(name, lease=1, max_attempts=2, backoff=0)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute(
                "insert into public.effect (queue, identity) values (%s, %s)",
                (name, lease.identity),
            )
            tx.submit(name, identity="next", payload={})
            if lease.attempt == 1 and lease.identity == "first":
                time.sleep(1.5)
            return tx.complete({})

    submitted = helix.submit(queue, identity="first", payload={})
    helix.work(queue, until_idle=True)
    assert effects(database, name) == {"first": 1, "next": 1}
    assert [e.reason for e in helix.history(submitted.receipt)].count("started") == 2


def test_transaction_can_fail_the_attempt_and_keep_its_rows(helix, database, name):
    queue = Queue(name)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute("insert into public.effect (queue, identity) values (%s, 'seen')", (name,))
            tx.fail("no reads in it", permanent=True)

    submitted = helix.submit(queue, identity="s", payload={})
    done = helix.work(queue, until_idle=True)
    assert done.failed == 1
    assert helix.state(submitted.receipt) is State.FAILED
    assert effects(database, name) == {"seen": 1}


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_transaction_left_without_an_end_is_rolled_back_and_raises(helix, database, name, kind):
    queue = Queue(name, max_attempts=1)
    insert = "insert into public.effect (queue, identity) values (%s, %s)"

    if kind == "def":

        @queue.handler
        def run(lease: Lease):
            with lease.transaction() as tx:
                tx.execute(insert, (name, lease.identity))
                if lease.identity == "early":
                    return None
            return {"done": True}
    else:

        @queue.handler
        async def run_async(lease: AsyncLease):
            async with lease.transaction() as tx:
                await tx.execute(insert, (name, lease.identity))
                if lease.identity == "early":
                    return None
            return {"done": True}

    receipts = [
        helix.submit(queue, identity=name, payload={}).receipt for name in ("plain", "early")
    ]
    assert helix.work(queue, until_idle=True).failed == 2
    assert effects(database, name) == {}
    for receipt in receipts:
        with pytest.raises(NoResult, match="rolled back because it did not settle") as ended:
            helix.result(receipt)
        assert ended.value.failure == "Refused"
    proven(database)


def test_exception_in_a_transaction_is_the_one_that_is_raised(helix, database, name):
    queue = Queue(name, max_attempts=1)

    @queue.handler
    def run(lease: Lease):
        with lease.transaction() as tx:
            tx.execute("insert into public.effect (queue, identity) values (%s, 's')", (name,))
            raise ValueError("of the handler's own")

    submitted = helix.submit(queue, identity="s", payload={})
    assert helix.work(queue, until_idle=True).failed == 1
    with pytest.raises(NoResult, match="of the handler's own"):
        helix.result(submitted.receipt)
    assert effects(database, name) == {}


@pytest.mark.parametrize("commits", [True, False])
def test_attempt_ends_when_the_session_of_its_handler_commits(helix, database, name, commits):
    queue = Queue(name, max_attempts=1)
    engine = sqlalchemy.create_engine(
        database.dsn("pool").replace("postgresql://", "postgresql+psycopg://")
    )

    @queue.handler
    def run(lease: Lease):
        with Session(engine) as session:
            session.execute(
                sqlalchemy.text("insert into public.effect (queue, identity) values (:q, 's')"),
                {"q": name},
            )
            lease.within(session).complete({"n": 1})
            if commits:
                session.commit()

    submitted = helix.submit(queue, identity="s", payload={})
    done = helix.work(queue, until_idle=True)
    engine.dispose()
    assert done.completed == int(commits)
    assert helix.state(submitted.receipt) is (State.COMPLETED if commits else State.FAILED)
    assert effects(database, name) == ({"s": 1} if commits else {})
    if not commits:
        with pytest.raises(NoResult, match="did not commit"):
            helix.result(submitted.receipt)


@pytest.mark.parametrize("way", ["transaction", "session", "stubborn session", "return"])
def test_zombie_cannot_write_and_its_refusal_is_recorded(helix, database, name, way, shift):
    queue = Queue(name)
    engine = sqlalchemy.create_engine(
        database.dsn("pool").replace("postgresql://", "postgresql+psycopg://")
    )
    go, begun, raised = threading.Event(), threading.Event(), []
    write = "insert into public.effect (queue, identity) values ('{}', 'zombie')".format(name)

    @queue.handler
    def run(lease: Lease):
        begun.set()
        assert go.wait(60)
        try:
            if way == "transaction":
                with lease.transaction() as tx:
                    tx.execute(write)
                    tx.complete({})
            elif way == "return":
                return {}
            else:
                with Session(engine) as session:
                    session.execute(sqlalchemy.text(write))
                    try:
                        lease.within(session).complete({})
                    except LeaseLost:
                        if way == "session":
                            raise
                    session.commit()
        except LeaseLost as lost:
            raised.append(lost.owner)
            raise

    submitted = helix.submit(queue, identity="s", payload={})
    with shift(helix, queue, slots=1) as worker:
        assert begun.wait(60)
        take_over(helix, database, queue, submitted.receipt.batch_id)
        go.set()
        wait_until(lambda: worker.worker.health.counts.lost == 1)
        wait_until(lambda: worker.worker.health.as_dict()["held"] == 0)
    engine.dispose()
    assert effects(database, name) == {}
    assert helix.result(submitted.receipt) == {"by": "thief"}
    [(role, owner)] = database.rows(
        "select r.worker, r.owner from helix.refusal r join helix.locate(array[%s::uuid]) l "
        "on l.batch = r.batch where r.operation = 'settle'",
        submitted.receipt.batch_id,
    )
    assert owner == "thief"
    assert role == worker.worker.worker
    if way in {"transaction", "session"}:
        assert raised == ["thief"]
    proven(database)


def test_cancelled_batch_stops_its_handler(helix, database, name, shift):
    queue = Queue(name, lease=1)
    begun, stopped = threading.Event(), threading.Event()

    @queue.handler
    async def run(_: AsyncLease):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    submitted = helix.submit(queue, identity="s", payload={})
    with shift(helix, queue, slots=1):
        assert begun.wait(60)
        helix.cancel(submitted.receipt, reason="sequenced twice")
        assert stopped.wait(60)
    assert helix.state(submitted.receipt) is State.CANCELLED
    proven(database)


def test_time_limit_ends_the_attempt(helix, name, shift):
    queue = Queue(name, max_attempts=1, time_limit=0.2)
    answer = threading.Event()

    @queue.handler
    def run(lease: Lease):
        if lease.lost.wait(60):
            answer.set()

    submitted = helix.submit(queue, identity="s", payload={})
    with shift(helix, queue, slots=1):
        wait_until(lambda: helix.state(submitted.receipt) is State.FAILED)
    with pytest.raises(NoResult) as ended:
        helix.result(submitted.receipt)
    assert ended.value.failure == "timeout"
    assert answer.wait(60)


def test_failure_that_is_retried_at_once_is_no_lost_lease(helix, name, shift):
    """Its next lease arrives before the answer to its own settlement, on another connection."""
    queue = Queue(name, max_attempts=3, backoff=0)
    attempts = []

    @queue.handler
    async def run(lease: AsyncLease):
        attempts.append(lease.attempt)
        if lease.attempt < 3:
            raise ValueError("again")

    backend_of(helix).declare(queue)
    with shift(helix, queue, slots=1) as shifted:
        worker = shifted.worker
        claim = worker._transport.claim

        async def overtaken(ask):
            if not ask.settle:
                return await claim(ask)
            answers = await worker._transport.settle(ask.settle)
            other = await claim(dataclasses.replace(ask, request_id=uuid.uuid4(), settle=()))
            worker._in_flight.add(other.leases, time.monotonic())
            return ClaimResult((), tuple(answers))

        worker._transport.claim = overtaken
        submitted = helix.submit(queue, identity="s", payload={})
        wait_until(lambda: worker.health.counts.completed == 1)
        assert (worker.health.counts.failed, worker.health.counts.lost) == (2, 0)
    assert helix.state(submitted.receipt) is State.COMPLETED
    assert attempts == [1, 2, 3]


def test_queue_without_a_handler_is_refused(helix, name):
    with pytest.raises(Refused, match="has no handler"):
        helix.work(Queue(name), until_idle=True)


def test_work_runs_inside_a_running_event_loop_of_a_notebook(database, name):
    queue = Queue(name)

    @queue.handler
    def run(_: Lease):
        return 1

    async def cell():
        with HelixQueue(database.dsn("pool"), tenant="a") as helix:
            helix.submit(queue, identity="s", payload={})
            return helix.work(queue, until_idle=True)

    assert asyncio.run(cell()).completed == 1


def test_queue_passed_by_name_validates_the_stored_schema(helix, name):
    declared = Queue(name, result=Reads, max_attempts=1)
    submitted = helix.submit(declared, identity="s", payload={})
    untyped = Queue(name)

    @untyped.handler
    def run(_: Lease):
        return {"reads": "many"}

    helix.work(untyped, until_idle=True)
    with pytest.raises(NoResult, match="/reads"):
        helix.result(submitted.receipt)


def test_idle_worker_starts_a_submission_within_milliseconds(helix, name, shift):
    """Not a benchmark: a worker that only polls would take half a second on average."""
    queue = Queue(name)
    started = {}

    @queue.handler
    async def run(lease: AsyncLease):
        started[lease.identity] = time.monotonic()

    backend_of(helix).declare(queue)
    with shift(helix, queue, poll_seconds=5):
        wait_until(lambda: helix_waits(helix, name))
        delays = []
        for number in range(10):
            before = time.monotonic()
            helix.submit(queue, identity=f"s{number}", payload={})
            wait_until(lambda n=number: f"s{n}" in started)
            delays.append(started[f"s{number}"] - before)
    assert sorted(delays)[5] < 0.5


def helix_waits(helix, name):
    with helix._backend.pool.database() as database:
        rows = database.connection.execute(
            "select 1 from pg_stat_activity where query like 'listen%%' "
            "and datname = current_database()"
        ).fetchall()
    return bool(rows) and name
