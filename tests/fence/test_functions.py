"""`helix.fence` around functions and blocks: the triple defence, in both clients alike."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from dataclasses import dataclass
from decimal import Decimal

import asyncpg
import psycopg
import pytest
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from helixqueue import AsyncHelixQueue, HelixQueue
from helixqueue.errors import (
    Conflict,
    InDoubt,
    InProgress,
    InvalidIdentity,
    InvalidPayload,
    LeaseLost,
    NotInTransaction,
    ResultGone,
)
from helixqueue.fence import NOT_APPLIED, UNKNOWN, Applied, NotApplied, Times, current
from helixqueue.store import fences as calls
from helixqueue.store.database import Database as Store
from tests.fence.passing import let_time_pass
from tests.lab import POOLED, until

_numbers = itertools.count(1)


class Refund(BaseModel):
    id: str
    cents: int


@pytest.fixture
def helix(database):
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
        yield helix


@pytest.fixture
def name():
    return f"fn{next(_numbers)}"


def fence_of(database, name):
    with Store.connect(database.dsn(), pooled=POOLED) as store:
        [row] = store.run(calls.listed(name=name))
    return row


def counted(helix, name):
    """This name's decisions and how often each was taken."""
    decisions = helix.fences.counters.snapshot()["decisions"]
    return {word: n for (_, fence, word), n in decisions.items() if fence == name}


def test_a_repeat_returns_the_first_result_without_the_expensive_call(helix, name):
    ran = []

    @helix.fence(name, key=lambda order, cents: order)
    def refund(order: str, cents: int) -> Refund:
        ran.append(order)
        return Refund(id=f"re_{len(ran)}", cents=cents)

    assert refund("o1", 500) == refund("o1", cents=500) == Refund(id="re_1", cents=500)
    assert ran == ["o1"]
    assert refund("o2", 500).id == "re_2"
    first, again = refund.outcome("o1", 500), refund.outcome("o1", 500)
    assert first == again
    assert first.repeated
    assert counted(helix, name) == {"executed": 2, "repeated": 3}


@pytest.mark.parametrize("value", [None, [], 0, False, "", {}, b"", b"\x00\xff", 0.5, {"a": [1]}])
def test_empty_and_odd_results_repeat_exactly(helix, name, value):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act():
        ran.append(1)
        return value

    first, again = act(), act()
    assert first == again == value
    assert type(first) is type(again) is type(value)
    assert len(ran) == 1


@dataclass(frozen=True)
class Point:
    x: Decimal
    of: uuid.UUID
    raw: tuple[int, ...]


def test_typed_results_come_back_as_their_type(helix, name):
    point = Point(Decimal("1.10"), uuid.uuid4(), (1, 2))

    @helix.fence(name, key=lambda: "k")
    def act() -> Point:
        return point

    assert act() == act() == point


def test_a_result_that_cannot_be_kept_is_sealed_by_digest_and_never_run_again(helix, name):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act():
        ran.append(1)
        return (1, 2)  # without an annotation it would come back as a list

    for _ in range(3):
        with pytest.raises(ResultGone, match="not kept") as gone:
            act()
        assert gone.value.receipt.startswith("r1:")
    assert ran == [1]


@pytest.mark.parametrize("form", ["json", "of a later release"])
def test_a_kept_result_that_cannot_be_read_is_not_run_again(helix, database, name, form):
    def ask(kind):
        def act():
            raise TimeoutError

        act.__annotations__["return"] = kind
        return helix.fence(name, key=lambda: "k")(act)()

    with pytest.raises(TimeoutError):
        ask(Refund)
    row = fence_of(database, name)
    with HelixQueue(database.dsn("operator"), tenant="a", pooled=POOLED) as operator:
        answer = calls.Answer(form, b'{"other": "shape"}')
        operator.fences.run(
            calls.resolve(row.key, row.version, Times(), actor="ann", reason="x", answer=answer)
        )
    with pytest.raises(ResultGone, match="took effect once") as gone:
        ask(Refund)
    assert gone.value.receipt.startswith("r1:")
    if form == "json":
        assert ask(dict[str, str]) == {"other": "shape"}


def test_a_huge_result_is_sealed_by_digest_and_never_run_again(helix, name):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> bytes:
        ran.append(1)
        return b"x" * (1024 * 1024 + 1)

    for _ in range(2):
        with pytest.raises(ResultGone):
            act()
    assert ran == [1]


def test_another_payload_under_the_same_key_is_refused_with_its_difference(helix, name):
    @helix.fence(name, key=lambda order, **_: order)
    def refund(order, cents=0):
        return cents

    refund("o1", cents=5)
    with pytest.raises(Conflict) as conflict:
        refund("o1", cents=6)
    assert conflict.value.diff == [{"op": "replace", "path": "/cents", "value": 6, "was": 5}]


def test_payload_says_which_arguments_the_key_stands_for(helix, name):
    @helix.fence(name, key=lambda order, _: order, payload=lambda order, _: {"order": order})
    def refund(order, trace):
        return trace

    assert refund("o1", object.__name__) == refund("o1", "another trace") == "object"
    with pytest.raises(InvalidPayload, match="payload="):
        helix.fence(name, key="x")(lambda thing: thing)(object())


def test_a_hundred_calls_at_once_have_one_effect(database, name):
    effects = []
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED, connections=10) as helix:

        @helix.fence(name, key=lambda: "k", wait=60)
        def act() -> int:
            effects.append(1)
            return len(effects)

        barrier = threading.Barrier(25)
        results = []

        def race():
            barrier.wait()
            results.extend(act() for _ in range(4))

        threads = [threading.Thread(target=race) for _ in range(25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [1] * 100
    assert effects == [1]


def test_who_does_not_wait_is_told_who_is_at_it(helix, name):
    going, done = threading.Event(), threading.Event()

    @helix.fence(name, key=lambda: "k", wait=0)
    def act() -> str:
        going.set()
        done.wait(20)
        return "done"

    holder = threading.Thread(target=act)
    holder.start()
    going.wait(20)
    with pytest.raises(InProgress) as told:
        act()
    assert 1 <= told.value.retry_after <= 30
    done.set()
    holder.join()
    assert act() == "done"


def test_an_exception_after_the_effect_began_leaves_a_doubt_and_no_second_run(
    helix, name, database
):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> None:
        ran.append(1)
        raise TimeoutError("the bank did not answer")

    with pytest.raises(TimeoutError):
        act()
    for _ in range(3):
        with pytest.raises(InDoubt, match="nobody knows"):
            act()
    assert ran == [1]
    row = fence_of(database, name)
    assert row.detail == "TimeoutError: the bank did not answer"


def test_not_applied_releases_the_fence(helix, name):
    ran = []

    @helix.fence(name, key=lambda: "k")
    def act() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise NotApplied("connection refused")
        return len(ran)

    with pytest.raises(NotApplied):
        act()
    assert act() == act() == 2


@pytest.mark.parametrize(
    ("says", "runs"),
    [
        (Applied(Refund(id="re_9", cents=1), effect="re_9"), 1),
        (NOT_APPLIED, 2),
        (UNKNOWN, 1),
        (None, 1),  # a probe that forgot to return
        (RuntimeError("the bank is closed"), 1),
    ],
)
def test_a_probe_says_yes_no_or_cannot_tell(helix, database, name, says, runs):
    ran = []

    def probe(order):
        assert order == "o1"
        if isinstance(says, Exception):
            raise says
        return says

    @helix.fence(name, key=lambda order: order, probe=probe)
    def refund(order: str) -> Refund:
        ran.append(order)
        if len(ran) == 1:
            raise TimeoutError
        return Refund(id="re_2", cents=1)

    with pytest.raises(TimeoutError):
        refund("o1")
    if says is NOT_APPLIED:
        with pytest.raises(InDoubt):  # too early to believe it
            refund("o1")
    let_time_pass(database, fence_of(database, name).key, quiet=True)
    if isinstance(says, Applied):
        told = refund.outcome("o1")
        assert (told.result.id, told.effect, told.repeated) == ("re_9", "re_9", True)
    elif says is NOT_APPLIED:
        assert refund("o1").id == "re_2"
    else:
        with pytest.raises(InDoubt):
            refund("o1")
    assert len(ran) == runs


def test_a_replayable_effect_is_driven_again_with_the_same_key_downstream(helix, name):
    bank = {}

    @helix.fence(name, key=lambda order: order, replayable=True)
    def refund(order: str) -> str:
        known = len(bank)
        effect = bank.setdefault(current().downstream_key, f"re_{known}")
        if current().attempt == 1:
            raise TimeoutError
        current().effect = effect
        return effect

    with pytest.raises(TimeoutError):
        refund("o1")
    assert refund.outcome("o1").effect == "re_0"
    assert len(bank) == 1


def test_outside_of_a_fence_there_is_no_current_one():
    with pytest.raises(Exception, match="inside a fence"):
        current()


@pytest.mark.parametrize("key", [None, "", "unknown", " Unknown ", ("shop", None), ()])
def test_calls_without_a_key_are_refused_unless_accepted_and_never_merged(
    helix, database, name, key, caplog
):
    ran = []

    def act() -> int:
        ran.append(1)
        return len(ran)

    with pytest.raises(InvalidIdentity, match="unknown="):
        helix.fence(name, key=lambda: key)(act)()
    accepted = helix.fence(name, key=lambda: key, unknown="accept")(act)
    with caplog.at_level(logging.WARNING, "helixqueue.fence"):
        assert [accepted(), accepted()] == [1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    stored = database.rows("select identity from helix.fence where name = %s", name)
    assert stored == [(None,)] * 2


@pytest.mark.parametrize("key", [1.5, True, object(), ("a", b"b")])
def test_clocks_and_other_unsteady_things_are_no_keys(helix, name, key):
    with pytest.raises(InvalidIdentity, match="strings, integers or UUIDs"):
        helix.fence(name, key=lambda: key)(lambda: None)()


def test_twin_spellings_of_a_key_are_one_fence(helix, name):
    ran = []

    @helix.fence(name, key=lambda sample: sample, payload=lambda _: None)
    def act(sample) -> None:
        ran.append(sample)

    act("Sämple")
    act("Sa\u0308mple")
    assert ran == ["Sämple"]


def test_a_block_is_fenced_and_its_result_kept(helix, name):
    for turn in range(3):
        with helix.fence(name, key=("o1", 2), payload={"cents": 5}, result=Refund) as fence:
            assert fence.first is (turn == 0)
            if fence.first:
                fence.seal(Refund(id=fence.downstream_key, cents=5), effect="re_1")
            else:
                with pytest.raises(Exception, match="the first result stays"):
                    fence.seal(None)
        assert fence.result == Refund(id=fence.downstream_key, cents=5)
        assert (fence.effect, fence.receipt[:3]) == ("re_1", "r1:")


def test_a_zombies_result_is_not_served(helix, database, name):
    entered = helix.fence(name, key="k", replayable=True)
    with pytest.raises(LeaseLost) as lost, entered as zombie:
        let_time_pass(database, fence_of(database, name).key, deadline=True)
        with helix.fence(name, key="k", replayable=True) as owner:
            owner.seal("right")
        zombie.seal("from the grave")
    assert lost.value.owner == helix.fences.actor
    with helix.fence(name, key="k") as again:
        assert again.result == "right"


def test_heartbeats_keep_a_slow_effect_alive(helix, database, name):
    """Ten times longer than its lease, and nobody takes it for dead."""
    with helix.fence(name, key="k", ttl=Times(lease=0.15)) as fence:
        born = fence_of(database, name).deadline
        until(lambda: (fence_of(database, name).deadline - born).total_seconds() > 1.0)
        assert not fence.lost
        fence.seal("slow")
    with helix.fence(name, key="k") as again:
        assert again.result == "slow"


def test_a_heartbeat_that_fails_is_not_the_last(helix, database, name):
    run, failed = helix.fences.pulse._run, []

    def once(call):
        if not failed:
            failed.append(call)
            raise RuntimeError("nobody thought of this one")
        return run(call)

    helix.fences.pulse._run = once
    with helix.fence(name, key="k", ttl=Times(lease=0.3)):
        born = fence_of(database, name).deadline
        until(lambda: fence_of(database, name).deadline > born)
        assert failed


def test_a_call_that_hangs_past_its_limit_is_in_doubt_and_its_late_seal_counts(
    helix, database, name
):
    """Otherwise a hung call would be in progress for ever, and nobody could decide."""
    with helix.fence(name, key="k", ttl=Times(lease=0.2, limit=0.3)) as fence:

        def another():
            with helix.fence(name, key="k", wait=0):
                pytest.fail("ran twice")

        def doubted():
            try:
                another()
            except InProgress:
                return False
            except InDoubt:
                return True

        until(doubted)
        fence.seal("late")
    with helix.fence(name, key="k") as again:
        assert again.result == "late"


def test_a_holder_that_was_replaced_learns_so_from_its_heartbeat(helix, database, name):
    with pytest.raises(LeaseLost), helix.fence(name, key="k", ttl=Times(lease=0.3)) as fence:
        with database.connect("operator") as connection:
            connection.execute("select helix.recover_v1('ann', 'restored')")
        until(lambda: fence.lost)


FORKED = """
import os, sys, time
from helixqueue import HelixQueue
from helixqueue.fence import Times
from helixqueue.store import fences
with HelixQueue(sys.argv[1], tenant="a") as helix:
    def beats(key):
        with helix.fence(sys.argv[2], key=key, ttl=Times(lease=0.3)):
            deadlines = set()
            for _ in range(200):
                rows = helix.fences.run(fences.listed(name=sys.argv[2]))
                deadlines |= {row.deadline for row in rows if row.identity == key}
                if len(deadlines) > 2:
                    return True
                time.sleep(0.01)
        return False
    with helix.fence(sys.argv[2], key="parent", ttl=Times(lease=0.3)):
        child = os.fork()
        if child == 0:
            os._exit(0 if beats("child") else 1)
        _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_has_a_heartbeat_of_its_own(database, name):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, database.dsn(direct=True), name],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_callers_own_error_is_not_hidden_by_ours(database, name):
    with HelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:

        @helix.fence(name, key=lambda: "k")
        def act() -> None:
            helix.close()  # the doubt cannot be written
            raise TimeoutError("the bank did not answer")

        with pytest.raises(TimeoutError):
            act()


# In the caller's own transaction.


@pytest.fixture
def table(database):
    table = f"effect_{next(_numbers)}"
    with database.connect("helix_bootstrap") as connection:
        connection.execute(f"create table public.{table} (n int)".encode())
        connection.execute(f"grant all on public.{table} to public".encode())
    return table


def effects(database, table):
    return database.value(f"select count(*) from public.{table}")


def test_a_local_effect_and_its_fence_commit_together_or_not_at_all(helix, database, name, table):
    def act(connection):
        with helix.fence(name, key="k", within=connection) as fence:
            if fence.first:
                connection.execute(f"insert into public.{table} values (1)".encode())
                fence.seal("inserted")
        return fence.result

    with database.connect("pool") as connection:
        with connection.transaction(force_rollback=True):
            assert act(connection) == "inserted"
        assert (effects(database, table), counted(helix, name)) == (0, {"executed": 1})
        with connection.transaction():
            assert act(connection) == "inserted"
        with connection.transaction():
            assert act(connection) == "inserted"
        with pytest.raises(NotInTransaction):
            act(connection)
    assert effects(database, table) == 1


@pytest.mark.parametrize("kind", ["psycopg", "session", "connection"])
def test_a_local_effect_that_fails_is_undone_though_the_caller_commits(
    helix, database, name, table, kind
):
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(database.dsn())
    )
    insert = f"insert into public.{table} values (1)"
    if kind == "psycopg":
        opened = psycopg.connect(database.dsn(), prepare_threshold=None)
    else:
        opened = Session(engine) if kind == "session" else engine.connect()
    with opened as within:

        def act(*, fail):
            with helix.fence(name, key="k", within=within) as fence:
                if fence.first:
                    within.execute(insert if kind == "psycopg" else sqlalchemy.text(insert))
                    if fail:
                        raise ValueError("boom")
                    fence.seal(1)

        with pytest.raises(ValueError, match="boom"):
            act(fail=True)
        within.commit()
        assert effects(database, table) == 0
        act(fail=False)
        within.commit()
        act(fail=False)
        within.commit()
    engine.dispose()
    assert effects(database, table) == 1


def test_a_decorated_function_gets_its_connection_from_its_arguments(helix, database, name, table):
    @helix.fence(
        name, key=lambda _, n: n, payload=lambda _, n: n, within=lambda connection, _: connection
    )
    def act(connection, n) -> int:
        connection.execute(f"insert into public.{table} values (%s)".encode(), (n,))
        return n

    with database.connect("pool") as connection:
        for _ in range(3):
            with connection.transaction():
                assert act(connection, 7) == 7
    assert effects(database, table) == 1


# Killed between marker and seal.

KILLED = """
import os, signal, sys
from helixqueue import HelixQueue
from helixqueue.fence import guard
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
_, dsn, name, where = sys.argv
with HelixQueue(dsn, tenant="a") as helix:
    @helix.fence(name, key=lambda: "k")
    def act() -> str:
        print("effect", flush=True)
        if where == "in the effect":
            die()
        if where == "before the seal":
            guard._leave = die
        return "done"
    if where == "before the claim":
        guard._enter = die
    act()
    die()
"""


@pytest.mark.parametrize(
    ("where", "then"),
    [
        ("before the claim", "runs"),
        ("in the effect", "doubt"),
        ("before the seal", "doubt"),
        ("after the seal", "repeats"),
    ],
)
def test_a_process_killed_between_marker_and_seal_leaves_a_doubt_and_no_second_run(
    helix, database, name, where, then
):
    """And one that is killed before or after leaves none."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), database.dsn(direct=True), name, where],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    told = "" if then == "runs" else "effect\n"
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, told), done.stderr
    ran = []

    @helix.fence(name, key=lambda: "k", wait=0)
    def act() -> str:
        ran.append(1)
        return "again"

    if then == "doubt":
        with pytest.raises(InProgress):
            act()
        let_time_pass(database, fence_of(database, name).key, deadline=True)
        with pytest.raises(InDoubt):
            act()
        assert ran == []
    else:
        assert act() == ("again" if then == "runs" else "done")
        assert ran == ([1] if then == "runs" else [])


def test_two_surfaces_that_write_one_record_have_one_effect(database, helix, name):
    """A batch worker and an API, or two regions after a failover: the key is the record's."""
    effects = []

    @helix.fence(name, key=lambda record: record)
    def by_worker(record: str) -> dict[str, int]:
        effects.append("worker")
        return {"n": len(effects)}

    async def by_api():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as api:

            @api.fence(name, key=lambda record: record)
            async def write(record: str) -> dict[str, int]:
                effects.append("api")
                return {"n": len(effects)}

            return await write("r1")

    assert by_worker("r1") == asyncio.run(by_api()) == {"n": 1}
    assert effects == ["worker"]


# The async twin.


def test_the_async_client_tells_the_same_story(database, name):
    async def story():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            ran = []

            async def find(order):
                return Applied(Refund(id="found", cents=order))

            @helix.fence(name, key=lambda order: order, probe=find, wait=60)
            async def refund(order: int) -> Refund:
                ran.append(order)
                await asyncio.sleep(0)
                if order == 2:
                    raise TimeoutError
                return Refund(id=f"re_{len(ran)}", cents=order)

            first = await asyncio.gather(*(refund(1) for _ in range(100)))
            assert {one.id for one in first} == {"re_1"}
            with pytest.raises(TimeoutError):
                await refund(2)
            assert (await refund.outcome(2)).result == Refund(id="found", cents=2)
            assert ran == [1, 2]
            async with helix.fence(name, key="block", payload=1) as fence:
                fence.seal([])
            async with helix.fence(name, key="block", payload=1) as fence:
                assert (fence.first, fence.result) == (False, [])
            with pytest.raises(TypeError, match="HelixQueue"):
                helix.fence(name, key="x")(lambda: None)

    asyncio.run(story())


def test_a_cancelled_async_effect_is_in_doubt(database, name):
    async def story():
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            going = asyncio.Event()

            @helix.fence(name, key=lambda: "k")
            async def act() -> None:
                going.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(act())
            await going.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(InDoubt):
                await act()

    asyncio.run(story())


def test_a_cancel_that_arrives_during_the_seal_does_not_stop_it(database, name):
    async def story():
        locker = database.connect("helix_bootstrap", autocommit=False)
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:

            @helix.fence(name, key=lambda: "k")
            async def act() -> str:
                lock = "select 1 from helix.fence where name = %s for update"
                locker.execute(lock, (name,))
                return "done"

            task = asyncio.create_task(act())
            waits = (
                "select 1 from pg_stat_activity where wait_event_type = 'Lock' "
                "and query like '%%seal_fence_v1%%' and datname = %s"
            )
            while not database.rows(waits, database.name):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.sleep(0)
            locker.rollback()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await act() == "done"
        locker.close()

    asyncio.run(story())
    assert fence_of(database, name).state == "SEALED"


def test_an_async_local_effect_is_undone_with_its_fence(database, name, table):
    async def story():
        engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: psycopg.AsyncConnection.connect(database.dsn()),
        )
        insert = sqlalchemy.text(f"insert into public.{table} values (1)")
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            for fail in (True, False, False):
                async with AsyncSession(engine) as session:
                    try:
                        async with helix.fence(name, key="k", within=session) as fence:
                            if fence.first:
                                await session.execute(insert)
                                if fail:
                                    raise ValueError("boom")
                    except ValueError:
                        assert fail
                    await session.commit()
        await engine.dispose()

    asyncio.run(story())
    assert effects(database, table) == 1


def test_a_local_effect_through_asyncpg(database, name, table):
    async def story():
        sockets = str(database.server.socket_dir)
        connection = await asyncpg.connect(user="pool", host=sockets, database=database.name)
        async with AsyncHelixQueue(database.dsn(), tenant="a", pooled=POOLED) as helix:
            for fail in (True, False, False):
                async with connection.transaction():
                    try:
                        fence = helix.fence(name, key="k", within=connection, result=list[int])
                        async with fence as held:
                            if held.first:
                                await connection.execute(f"insert into public.{table} values (1)")
                                if fail:
                                    raise ValueError("boom")
                                held.seal([1, 2])
                        assert held.result == [1, 2]
                    except ValueError:
                        assert fail
        await connection.close()

    asyncio.run(story())
    assert effects(database, table) == 1
