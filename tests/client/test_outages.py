"""A client outlives its server's restarts, its own forks and its crowds."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from helixqueue import AsyncHelixQueue, HelixQueue, Queue, Unavailable
from helixqueue.client.embedded_setup import set_up
from helixqueue.embedded import Postgres
from helixqueue.postgres.database import connect_options, is_usable
from tests.support.lab import BATCHES, wait_until

pytestmark = [
    pytest.mark.xdist_group("client outages"),
    # Forking beside threads is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server of this module's own, to be killed; nobody brings it back but the test."""
    postgres = Postgres(tmp_path_factory.mktemp("own") / "postgres", supervised=False)
    postgres.start()
    set_up(postgres)
    yield postgres
    postgres.stop()


def revive(own):
    own.start()


def test_killed_server_delays_a_client_but_loses_nothing(own, name):
    with HelixQueue(own.dsn, tenant="a") as helix:
        queue = Queue(name)
        first = helix.submit(queue, identity="first", payload={})
        own.kill()
        with ThreadPoolExecutor(1) as other:
            back = other.submit(revive, own)
            second = helix.submit(queue, identity="second", payload={})
            back.result()
        again = helix.submit(queue, identity="first", payload={})
    assert (second.decision, again.decision) == ("new", "duplicate")
    assert again.receipt == first.receipt


def test_async_client_recovers_from_an_outage(own, name):
    async def story():
        async with AsyncHelixQueue(own.dsn, tenant="a") as helix:
            queue = Queue(name)
            await asyncio.gather(
                *[helix.submit(queue, identity=f"s{n}", payload={}) for n in range(5)]
            )
            own.kill()
            back = asyncio.create_task(asyncio.to_thread(revive, own))
            done = await asyncio.gather(
                *[helix.submit(queue, identity=f"s{n}", payload={}) for n in range(10)]
            )
            await back
            return sorted(item.decision for item in done)

    assert asyncio.run(story()) == ["duplicate"] * 5 + ["new"] * 5


def test_unreachable_server_is_reported_within_the_retry_seconds(own, name):
    with HelixQueue(own.dsn, tenant="a", retry_seconds=0.3) as helix:
        helix.submit(Queue(name), identity="s", payload={})
        [idle] = helix._backend.pool._states[os.getpid()].idle
        own.kill()
        # A session may outlive its postmaster for a moment, and answer.
        wait_until(lambda: not is_usable(idle.connection))
        try:
            before = time.monotonic()
            with pytest.raises(Unavailable) as away:
                helix.submit(name, identity="t", payload={}, create=True)
            assert time.monotonic() - before < 10
            assert "cannot reach the database" in str(away.value)
        finally:
            own.start()
        assert helix.submit(name, identity="t", payload={}).decision == "new"


def terminate_all(database):
    database.rows(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
        "where application_name = 'helixqueue' and datname = %s",
        database.name,
    )


def test_terminated_sessions_are_replaced_silently(database, helix, name):
    queue = Queue(name)
    helix.submit(queue, identity="s0", payload={})
    for n in range(3):
        terminate_all(database)
        # Even with no repeats allowed: the pool sees that the connection is gone.
        helix._operations._retry_seconds = 0
        assert helix.submit(queue, identity=f"s{n + 1}", payload={}).decision == "new"


def test_work_without_identity_is_not_repeated_when_its_answer_is_lost(database, name):
    """A repeat could not be told from other work."""
    queue = Queue(name, unknown="accept")
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        helix.submit(queue, identity=None, payload={})
        # Submitting waits for this lock, and is ended while it waits.
        with database.connect("helix_bootstrap", autocommit=False) as holder:
            holder.execute("lock table helix.batch in exclusive mode")
            with ThreadPoolExecutor(1) as other:
                lost = other.submit(helix.submit, queue, identity=None, payload={})
                known = other_submit_waits(database)
                database.rows("select pg_terminate_backend(%s, 10000)", known)
                with pytest.raises(Unavailable) as away:
                    lost.result()
    assert away.value.outcome_unknown is True
    assert database.value(BATCHES, name) == 1


def test_work_with_identity_is_repeated_when_its_answer_is_lost(database, name):
    queue = Queue(name)
    with HelixQueue(database.dsn("pool"), tenant="a") as helix:
        helix.submit(queue, identity="first", payload={})
        with database.connect("helix_bootstrap", autocommit=False) as holder:
            holder.execute("lock table helix.batch in exclusive mode")
            with ThreadPoolExecutor(1) as other:
                lost = other.submit(helix.submit, queue, identity="s", payload={})
                database.rows(
                    "select pg_terminate_backend(%s, 10000)", other_submit_waits(database)
                )
                holder.rollback()
                assert lost.result().decision == "new"


def other_submit_waits(database):
    [(pid,)] = wait_until(
        lambda: database.rows(
            "select pid from pg_stat_activity where datname = %s and wait_event_type = 'Lock' "
            "and query like '%%submit_v1%%' and pid <> pg_backend_pid()",
            database.name,
        )
    )
    return pid


def test_statement_past_its_time_limit_is_cancelled(database, name):
    with HelixQueue(
        database.dsn("pool"), tenant="a", statement_seconds=0.2, retry_seconds=0
    ) as helix:
        helix.submit(Queue(name), identity="first", payload={})
        with database.connect("helix_bootstrap", autocommit=False) as holder:
            holder.execute("lock table helix.batch in exclusive mode")
            with pytest.raises(Unavailable, match="time limit") as away:
                helix.submit(name, identity="s", payload={}, create=True)
    assert away.value.outcome_unknown is False


def test_client_leaves_a_demoted_primary_for_the_new_one(database, name):
    """After a failover the old connections still work, and refuse writes."""
    with HelixQueue(database.dsn("pool"), tenant="a", connections=1) as helix:
        queue = Queue(name)
        helix.submit(queue, identity="s", payload={})
        [old] = helix._backend.pool._states[os.getpid()].idle
        old.connection.execute("set default_transaction_read_only = on")
        assert helix.submit(queue, identity="t", payload={}).decision == "new"
        assert old.connection.closed


def test_client_chooses_the_writable_of_several_servers():
    options = {"pooled": False, "timeout_seconds": 3, "statement_seconds": 5}
    many = connect_options("postgresql://u@one,two,three/d", **options)
    assert many["target_session_attrs"] == "read-write"
    assert "target_session_attrs" not in connect_options("postgresql://u@one/d", **options)
    selected = "postgresql://u@one,two/d?target_session_attrs=any&connect_timeout=7"
    assert (
        not {"target_session_attrs", "connect_timeout"}
        & connect_options(selected, **options).keys()
    )
    pooled = connect_options("postgresql://u@one/d", **options | {"pooled": True}, tenant="a")
    assert "options" not in pooled


def test_client_connects_although_the_first_of_several_servers_is_down(own, tmp_path, name):
    parts = psycopg.conninfo.conninfo_to_dict(own.dsn)
    dsn = f"user={parts['user']} dbname={parts['dbname']} host={tmp_path},{parts['host']}"
    with HelixQueue(dsn, tenant="a") as helix:
        assert helix.submit(Queue(name), identity="s", payload={}).decision == "new"


# --- crowds and forks ----------------------------------------------------------------------------


def test_threads_share_a_client_and_its_few_connections(database, name):
    with HelixQueue(database.dsn("pool"), tenant="a", connections=3) as helix:
        queue = Queue(name)
        found = []

        def submit(n):
            done = helix.submit(queue, identity=f"s{n % 20}", payload={})
            found.append(len(helix._backend.pool._states[os.getpid()].idle))
            return done

        with ThreadPoolExecutor(12) as threads:
            done = list(threads.map(submit, range(120)))
    assert sum(item.decision == "new" for item in done) == 20
    assert len({item.receipt for item in done}) == 20
    assert max(found) <= 3


def test_client_without_free_connections_raises_unavailable(database, name):
    with HelixQueue(
        database.dsn("pool"), tenant="a", connections=1, wait_seconds=0.05, retry_seconds=0
    ) as helix:
        with (
            helix._backend.pool.database(),
            pytest.raises(Unavailable, match="all 1 are in use"),
        ):
            helix.submit(Queue(name), identity="s", payload={})
        assert helix.submit(Queue(name), identity="s", payload={}).decision == "new"


def test_tasks_without_a_free_connection_get_unavailable(database, name):
    async def story():
        queue = Queue(name)
        async with AsyncHelixQueue(database.dsn("pool"), tenant="a", connections=2) as helix:
            done = await asyncio.gather(
                *[helix.submit(queue, identity=f"s{n % 5}", payload={}) for n in range(40)]
            )
        small = {"connections": 1, "wait_seconds": 0.05, "retry_seconds": 0}
        async with AsyncHelixQueue(database.dsn("pool"), tenant="a", **small) as helix:
            async with helix._backend.pool.database():
                with pytest.raises(Unavailable, match="are in use"):
                    await helix.submit(queue, identity="s", payload={})
            await helix.submit(queue, identity="s", payload={})
        return done

    assert sum(item.decision == "new" for item in asyncio.run(story())) == 5


def test_cancelled_task_returns_or_closes_its_connection(database, name):
    async def story():
        async with AsyncHelixQueue(database.dsn("pool"), tenant="a", connections=1) as helix:
            await helix.submit(Queue(name), identity="first", payload={})
            with database.connect("helix_bootstrap", autocommit=False) as holder:
                holder.execute("lock table helix.batch in exclusive mode")
                task = asyncio.create_task(helix.submit(name, identity="s", payload={}))
                await asyncio.to_thread(other_submit_waits, database)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return await helix.submit(name, identity="t", payload={})

    assert asyncio.run(story()).decision == "new"


def test_async_client_serves_several_event_loops_in_turn(database, name):
    helix = AsyncHelixQueue(database.dsn("pool"), tenant="a")
    queue = Queue(name)
    for n in range(3):
        assert asyncio.run(helix.submit(queue, identity=f"s{n}", payload={})).decision == "new"
    asyncio.run(helix.close())


def test_connections_of_an_ended_event_loop_are_closed_with_the_client(database, name):
    # By name: sessions of the test before this one may still be ending.
    def sessions():
        return database.value(
            "select count(*) from pg_stat_activity where application_name = %s", name
        )

    async def two_loops():
        dsn = f"{database.dsn('pool')}&application_name={name}"
        async with AsyncHelixQueue(dsn, tenant="a") as helix:
            await helix.submit(queue, identity="here", payload={})
            await asyncio.to_thread(asyncio.run, helix.submit(queue, identity="there", payload={}))
            assert sessions() == 2

    queue = Queue(name)
    asyncio.run(two_loops())
    wait_until(lambda: sessions() == 0)


def in_a_child(work):
    """Run `work` in a forked child; its answer, or its error, comes back through a pipe."""
    there, back = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 - the child must end here, whatever happened
            answer = repr(error)
        os.write(back, answer.encode())
        os._exit(0)
    os.close(back)
    with os.fdopen(there) as opened:
        answer = opened.read()
    os.waitpid(child, 0)
    return answer


def backend(helix):
    [idle] = helix._backend.pool._states[os.getpid()].idle
    return idle.connection.info.backend_pid


def test_forked_child_opens_its_own_connections(helix, name):
    queue = Queue(name)
    helix.submit(queue, identity="parent", payload={})
    mine = backend(helix)

    def child():
        decision = helix.submit(queue, identity="child", payload={}).decision
        theirs = backend(helix)
        helix.close()
        return f"{decision} {theirs != mine}"

    assert in_a_child(child) == "new True"
    # The parent's session was neither used nor closed from the other side.
    assert backend(helix) == mine
    assert helix.submit(queue, identity="child", payload={}).decision == "duplicate"
    assert backend(helix) == mine


def test_fork_during_a_call_of_another_thread_is_safe(helix, name):
    """No lock of the parent's can be held for ever in the child."""
    queue = Queue(name)
    helix.submit(queue, identity="first", payload={})
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            helix.submit(queue, identity="busy", payload={})

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(busy) for _ in range(2)]
        try:
            for n in range(5):
                submitted = in_a_child(
                    lambda n=n: helix.submit(queue, identity=f"child{n}", payload={}).decision
                )
                assert submitted == "new"
        finally:
            stop.set()
        for item in running:
            item.result()


# --- embedded ------------------------------------------------------------------------------------


def test_embedded_clients_share_a_server_and_the_last_stops_it(tmp_path, name):
    queue = Queue(name)
    with HelixQueue.embedded(tmp_path / "data") as helix:
        submitted = helix.submit(queue, identity="s", payload={})

        async def joined():
            async with AsyncHelixQueue.embedded(tmp_path / "data") as other:
                return await other.submit(queue, identity="s", payload={})

        two = asyncio.run(joined())
        # A child joins for itself, and leaves alone.
        answer = in_a_child(
            lambda: helix.submit(queue, identity="s", payload={}).decision + str(helix.close())
        )
        assert helix.submit(queue, identity="s", payload={}).decision == "duplicate"
    assert (submitted.receipt, answer) == (two.receipt, "duplicateNone")
    assert Postgres(tmp_path / "data" / "postgres").pid is None


def test_invalid_data_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="expected a directory"):
        HelixQueue.embedded(tmp_path / "file").submit("q", identity="s", payload={})
