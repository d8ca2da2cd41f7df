"""Workers that are busy, frozen, stopped or killed: nothing is doubled, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time

import pytest

from helixqueue import AsyncLease, HelixQueue, Lease, NoResult, Queue, State
from helixqueue.client.backend import backend_of
from tests.support.faults import FaultProxy
from tests.support.frozen_client import is_served, overdue_client
from tests.support.lab import wait_until
from tests.support.shift import proven
from tests.worker import app
from tests.worker.conftest import effects, lease_end

PROOF = bool(os.environ.get("HELIX_PROOF"))


def served(name, **settings):
    """The queue of tests/worker/app.py as this process declares it."""
    queue = Queue(name, **settings)
    queue.handler(app.do)
    return queue


def test_handler_that_holds_the_interpreter_lock_keeps_its_lease(helix, database, name, process):
    """For three leases no other thread of its process runs; the renewer is another process."""
    queue = served(name, lease=1.5, backoff=0)
    submitted = helix.submit(queue, identity="s", payload={"hold": 4.5})
    with process(name, options={"until_idle": True}) as worker:
        assert worker.wait(60) == 0, worker.err
    assert helix.state(submitted.receipt) is State.COMPLETED
    assert effects(database, name) == {"s": 1}
    reasons = [event.reason for event in helix.history(submitted.receipt)]
    assert reasons == ["submitted", "claimed", "started", "completed"]
    proven(database)


def test_idle_worker_ends_an_overdue_transaction_of_its_login(database, name, process):
    """One of a handler that froze; the worker may wait for what it holds."""
    with overdue_client(database, "pool") as frozen, process(name):
        wait_until(lambda: not is_served(database, frozen))


def test_batch_that_kills_its_process_ends_failed_while_others_progress(
    helix, database, name, process
):
    queue = served(name, lease=1, max_attempts=2, backoff=0)
    bad = helix.submit(queue, identity="bad", payload={"poison": True}).receipt
    good = [helix.submit(queue, identity=f"g{n}", payload={}).receipt for n in range(10)]
    with process(name, options={"slots": 2}, HELIX_APP_RUN_IN="process") as worker:
        wait_until(lambda: helix.state(bad) is State.FAILED)
        wait_until(lambda: all(helix.state(item) is State.COMPLETED for item in good))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0, worker.err
    attempts = sum(event.reason == "started" for event in helix.history(bad))
    assert attempts == 2
    with pytest.raises(NoResult) as ended:
        helix.result(bad)
    assert ended.value.failure == "out of memory"  # by SIGKILL, as the kernel does
    assert set(effects(database, name).values()) == {1}
    proven(database)


def test_batch_that_kills_its_worker_ends_failed_after_max_attempts(helix, database, name, process):
    """In a thread it takes the worker along; the crash counts, and so the batch ends."""
    queue = served(name, lease=1, max_attempts=2, backoff=0)
    bad = helix.submit(queue, identity="bad", payload={"poison": True}).receipt
    for _ in range(2):
        with process(name, options={"slots": 1}) as worker:
            worker.wait(60)
    wait_until(lambda: helix.claim("reaper", [queue]) or helix.state(bad) is State.FAILED)
    assert helix.history(bad)[-1].reason == "lost"
    with pytest.raises(NoResult) as ended:
        helix.result(bad)
    assert ended.value.failure == "lost"
    proven(database)


def both_work(database, name):
    query = "select count(distinct worker) = 2 from public.effect where queue = %s"
    return database.value(query, name)


def test_sigterm_under_load_loses_and_repeats_nothing(helix, database, name, process):
    queue = served(name, lease=20, backoff=0)
    count = 300
    made = helix.submit_many(
        queue, [{"identity": f"s{n}", "payload": {"seconds": 0.01}} for n in range(count)]
    )
    with process(name, options={"slots": 4}) as first, process(name) as second:
        wait_until(lambda: both_work(database, name))
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, first.err
        wait_until(lambda: len(effects(database, name)) == count)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0, second.err
    assert set(effects(database, name).values()) == {1}
    assert {helix.state(item.receipt) for item in made} == {State.COMPLETED}
    # Given back at no cost: nobody needed a second attempt, and no lease was lost.
    reasons = database.rows(
        "select e.reason::text, max(e.attempt) from helix.event e join helix.batch b "
        "on b.id = e.batch join helix.queue q on q.id = b.queue where q.name = %s group by 1",
        name,
    )
    assert "lost" not in dict(reasons)
    assert max(dict(reasons).values()) == 1
    proven(database)


def test_second_sigterm_releases_leases_at_once(helix, name, process):
    queue = served(name, lease=60)
    submitted = helix.submit(queue, identity="s", payload={"seconds": 60}).receipt
    with process(name, options={"grace_seconds": 60}) as worker:
        wait_until(lambda: helix.state(submitted) is State.RUNNING)
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)
        time.sleep(0.2)
        worker.signal(signal.SIGTERM)
        worker.wait()
    assert helix.state(submitted) is State.PENDING
    assert helix.history(submitted)[-1].reason == "released"
    [again] = helix.claim("w", [queue])
    assert again.attempt == 1


@pytest.mark.timeout(1800 if PROOF else 120)
def test_workers_killed_at_random_leave_one_effect_per_batch(helix, database, name, process):
    """The count is the proof: as many effects as batches, whatever was killed, and when.

    HELIX_SEED chooses another course.
    """
    count, kills = (10_000, 60) if PROOF else (500, 4)
    chance = random.Random(int(os.environ.get("HELIX_SEED", "1")))
    queue = served(name, lease=2, max_attempts=1_000, backoff=0)
    for first in range(0, count, 500):
        helix.submit_many(
            queue,
            [
                {"identity": f"s{n}", "payload": {"seconds": 0.01}}
                for n in range(first, first + 500)
            ],
        )
    workers = [process(name, options={"slots": 4}) for _ in range(2)]
    try:
        for kill in range(kills):
            # Spread over the whole course, each at a moment of its own.
            wait_until(
                lambda k=kill: taken_effect(database, name) > count * k / (kills + 1), seconds=120
            )
            time.sleep(chance.uniform(0, 0.2))
            victim = chance.randrange(2)
            workers[victim].signal(signal.SIGKILL)
            workers[victim].wait()
            workers[victim] = process(name, options={"slots": 4})
        wait_until(lambda: taken_effect(database, name) >= count, seconds=900 if PROOF else 60)
        wait_until(lambda: all_ended(database, name))
        for worker in workers:
            worker.signal(signal.SIGTERM)
            # One that had not begun yet ends by the signal itself.
            assert worker.wait() in {0, -signal.SIGTERM}, worker.err
    finally:
        for worker in workers:
            worker.__exit__()
    found = effects(database, name)
    assert (len(found), sum(found.values())) == (count, count)
    lost = lost_leases(database, name)
    assert lost > 0  # a run in which nobody was hurt shows nothing
    print(f"{count} batches, {kills} kills, {lost} leases lost")
    proven(database)


def taken_effect(database, name):
    return database.value("select count(*) from public.effect where queue = %s", name)


def all_ended(database, name):
    query = (
        "select not exists (select from helix.work w join helix.queue q on q.id = w.queue "
        "where q.name = %s and w.state in ('ASSIGNED', 'RUNNING'))"
    )
    return database.value(query, name)


def lost_leases(database, name):
    return database.value(
        "select count(*) from helix.event e join helix.batch b on b.id = e.batch "
        "join helix.queue q on q.id = b.queue where q.name = %s and e.reason = 'lost'",
        name,
    )


def test_worker_without_answers_abandons_its_work_before_the_lease_expires(
    helix, database, name, shift, tmp_path
):
    """Nobody says yes or no: the thread is told before its lease ends, and writes nothing.

    That ends its attempt, and not the worker: it goes on when the link does.
    """
    queue = Queue(name, lease=6, backoff=0)
    begun, told_in_time = threading.Event(), []

    @queue.handler
    def run(lease: Lease):
        if lease.attempt == 1:
            begun.set()
            assert lease.lost.wait(30)
            told_at = time.time()
            told_in_time.append(told_at < lease_end(database, lease.batch_id))
        with lease.transaction() as tx:
            tx.execute("insert into public.effect (queue, identity) values (%s, 's')", (name,))
            tx.complete({})

    with (
        FaultProxy(database.dsn("pool"), tmp_path) as faults,
        HelixQueue(faults.dsn, tenant="a", statement_seconds=5) as far,
    ):
        submitted = far.submit(queue, identity="s", payload={})
        with shift(far, queue, slots=1) as worker:
            assert begun.wait(60)
            faults.freeze()
            wait_until(lambda: told_in_time)
            assert worker.worker.health.counts.completed == 0
            assert effects(database, name) == {}
            faults.thaw()
            faults.cut_all()
            wait_until(lambda: worker.worker.health.counts.lost == 1)
            wait_until(lambda: helix.state(submitted.receipt) is State.COMPLETED, seconds=60)
    assert told_in_time == [True]
    assert effects(database, name) == {"s": 1}
    assert [event.reason for event in helix.history(submitted.receipt)].count("lost") == 1
    proven(database)


def test_worker_continues_after_its_connections_are_lost(helix, database, name, shift):
    """Every session of this database is ended again and again; the work ends all the same."""
    queue = Queue(name, lease=10, backoff=0)

    @queue.handler
    async def run(lease: AsyncLease):
        return {"n": lease.payload["n"]}

    backend_of(helix).declare(queue)
    with shift(helix, queue, slots=4, poll_seconds=0.2):
        made = []
        for number in range(5):
            made.append(helix.submit(queue, identity=f"s{number}", payload={"n": number}))
            database.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        for item in made:
            wait_until(lambda item=item: helix.state(item.receipt) is State.COMPLETED)
    proven(database)


def test_idle_worker_sends_fewer_than_two_statements_per_second(helix, name, shift):
    queue = Queue(name)

    @queue.handler
    async def run(_: AsyncLease):
        return None

    helix.submit_many(queue, [{"identity": f"s{n}", "payload": {}} for n in range(150)])
    with shift(helix, queue) as worker:
        # Work so quick that it would be fetched far ahead, if there were any.
        wait_until(lambda: worker.worker.health.counts.completed == 150)
        wait_until(lambda: worker.worker._claimer._subscribed_at is not None)
        ids = []
        original = worker.worker._transport.run

        async def counted(call):
            ids.append(call.sql)
            return await original(call)

        worker.worker._transport.run = counted
        cpu = time.process_time()
        time.sleep(3)
        assert len(ids) < 5
        assert time.process_time() - cpu < 0.3  # of this whole process, tests included


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_handler_processes_exit_with_their_killed_worker(helix, name, process, tmp_path, mode):
    queue = served(name, lease=30)
    file = tmp_path / "outside"
    helix.submit(queue, identity="s", payload={"seconds": 60, "file": str(file)})
    with process(name, HELIX_APP_RUN_IN=mode) as worker:
        wait_until(file.exists)
        pid = int(wait_until(lambda: file.read_text().split())[2])
        worker.signal(signal.SIGKILL)
        worker.wait()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110


def test_leases_received_after_the_stop_are_released(helix, database, name, shift):
    """The claim was under way when the worker was stopped: its leases are nobody's else."""
    queue = Queue(name, lease=60)

    @queue.handler
    async def run(_: AsyncLease):
        return None

    backend_of(helix).declare(queue)
    granted, stopped = threading.Event(), threading.Event()
    with shift(helix, queue, slots=1) as worker:
        transport = worker.worker._transport
        original = transport.claim

        async def slow(ask):
            claimed = await original(ask)
            if claimed.leases:
                granted.set()
                await asyncio.to_thread(stopped.wait, 20)
            return claimed

        transport.claim = slow
        submitted = helix.submit(queue, identity="s", payload={}).receipt
        assert granted.wait(60)
        worker.stop()
        time.sleep(0.3)  # for a worker that does not wait for its claims to end
        stopped.set()
        assert worker.join().released == 1
    assert helix.state(submitted) is State.PENDING
    assert [event.reason for event in helix.history(submitted)][-1] == "released"
    proven(database)


def test_worker_without_heartbeat_process_releases_its_leases_and_exits(helix, name, shift):
    """One that went on would keep what nobody works on, or work on what nobody fences."""
    queue = Queue(name, lease=60)
    begun = threading.Event()

    @queue.handler
    async def run(_: AsyncLease):
        begun.set()
        await asyncio.sleep(60)

    submitted = helix.submit(queue, identity="s", payload={}).receipt
    with pytest.raises(RuntimeError, match="broken"), shift(helix, queue, slots=1) as worker:
        assert begun.wait(60)

        async def broken():
            raise RuntimeError("broken")

        worker.worker._abandon_overdue = broken
        worker.join()
    assert helix.history(submitted)[-1].reason == "released"


def test_prefetched_leases_behind_slow_work_are_released(helix, name, shift):
    """A queue that seemed quick: what waits behind a slow batch is free for others."""
    queue = Queue(name, lease=60)
    go, slow = threading.Event(), threading.Event()

    @queue.handler
    async def run(lease: AsyncLease):
        if lease.payload["slow"]:
            slow.set()
            await asyncio.to_thread(go.wait, 60)

    count = 120
    made = helix.submit_many(
        queue, [{"identity": f"s{n}", "payload": {"slow": n == 40}} for n in range(count)]
    )
    with shift(helix, queue, slots=1) as worker:
        assert slow.wait(60)
        assert wait_until(lambda: len(worker.worker._in_flight.held)) > 1
        wait_until(lambda: len(worker.worker._in_flight.held) == 1)
        assert worker.worker.health.counts.released > 0
        others = helix.claim("other", [queue], count)
        assert len(others) == count - 41
        assert {other.attempt for other in others} == {1}
        go.set()
        wait_until(lambda: helix.state(made[40].receipt) is State.COMPLETED)
