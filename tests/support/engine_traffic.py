"""Submit, claim and settle through the engine's Python calls, in one process or in fifty."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from helixqueue.engine import calls
from helixqueue.ledger.replay import replay
from helixqueue.operate.check import check
from helixqueue.postgres.database import Database as Store
from helixqueue.records.submission import SubmissionRow, SubmittedRow
from tests.support.lab import POOLED, TIMEOUT_S, completion, wait_until
from tests.support.processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from helixqueue.records.lease import LeaseRow
    from tests.support.database import Database

T = TypeVar("T")
PAYLOAD = '{"tube":1}'
RESULT = '{"reads":7}'
TOGETHER_S = 120.0
UNFINISHED = (
    "select count(*) from helix.work where state not in ('COMPLETED', 'FAILED', 'CANCELLED')"
)


def open_store(dsn: str) -> Store:
    return Store.connect(dsn, pooled=POOLED)


def open_queue(db: Store, *tenants: str, queue: str = "q", **settings: Any) -> None:
    """Declare the queue for each tenant; by default without back-off."""
    settings = {"backoff_seconds": 0, **settings}
    for tenant in tenants or ("a",):
        db.run(calls.set_queue(tenant=tenant, queue=queue, **settings))


def submit(
    db: Store, identities: Iterable[str], tenant: str = "a", queue: str = "q", **options: Any
) -> list[SubmittedRow]:
    rows = [SubmissionRow(identity, PAYLOAD, **options) for identity in identities]
    return db.run(calls.submit(tenant=tenant, queue=queue, profile="text-v1", rows=rows))


def claim(
    db: Store,
    count: int = 1,
    worker: str = "w",
    *,
    queue: str = "q",
    start: bool = True,
    seconds: float | None = None,
) -> list[LeaseRow]:
    call = calls.claim(
        worker=worker,
        request=uuid.uuid4(),
        queues=[queue],
        count=count,
        start=start,
        lease_seconds=seconds,
    )
    return list(db.run(call).leases)


def connect_operator(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection as the operator, who may read tables."""
    return psycopg.connect(
        make_conninfo(dsn, user="operator"), autocommit=True, prepare_threshold=None
    )


def drain(db: Store, worker: str = "drain", queue: str = "q") -> int:
    """Complete every batch, including leases of dead workers and delayed batches."""
    done = 0
    finish = time.monotonic() + TIMEOUT_S
    with connect_operator(db.connection.info.dsn) as reader:
        while reader.execute(UNFINISHED).fetchone() != (0,):
            assert time.monotonic() < finish, f"stuck after {done}: {unfinished_rows(reader)}"
            leases = claim(db, 200, worker, queue=queue)
            if leases:
                answers = db.run(
                    calls.settle(worker=worker, settlements=[completion(lease) for lease in leases])
                )
                done += sum(answer.answer == "ok" for answer in answers)
                finish = time.monotonic() + TIMEOUT_S
    return done


def unfinished_rows(reader: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The states of unfinished batches, for the error message."""
    return reader.execute(
        "select w.state::text, w.pending, w.cause::text, w.queue, w.limit_key, w.actor, count(*),"
        " min(w.batch) from helix.work w where w.state in ('PENDING', 'ASSIGNED', 'RUNNING')"
        " group by 1, 2, 3, 4, 5, 6"
        " union all select 'held', null, null, k.queue, k.key, null, k.held, null"
        " from helix.key_limit k"
    ).fetchall()


def wait_until_blocked(database: Database, count: int, call: str) -> None:
    """Wait until `count` sessions wait for a lock inside a call of this name."""
    wait_until(
        lambda: (
            database.value(
                "select count(*) from pg_stat_activity where datname = %s and state = 'active'"
                " and wait_event_type = 'Lock' and query like %s",
                database.name,
                f"%{call}%",
            )
            == count
        ),
        f"{count} x {call} to wait for a lock",
    )


def wait_until_expired(database: Database, *leases: LeaseRow) -> None:
    """Wait until the deadlines have passed by the database's clock."""
    batches = [lease.batch for lease in leases]
    wait_until(
        lambda: database.value(
            "select count(*) = %s from helix.work where batch = any (%s)"
            " and state in ('ASSIGNED', 'RUNNING') and deadline < clock_timestamp()",
            len(batches),
            batches,
        ),
        "the leases to run out",
    )


def assert_consistent(database: Database) -> None:
    """Assert that replay and check are clean, at the end of a test."""
    with database.connect("helix_bootstrap") as connection:
        replayed = replay(connection)
        assert replayed.clean, replayed.violations[:10]
        results = check(connection)
        broken = [(row.name, row.count, row.witnesses) for row in results if not row.holds]
        assert not broken, broken


def run_in_processes(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """Run `work` in one process per set of arguments; all begin at the same time.

    `work` must be a module-level function: each process imports it.
    """
    barrier = PROCESSES.Barrier(len(arguments))
    with ProcessPoolExecutor(
        len(arguments), mp_context=PROCESSES, initializer=_meet_at, initargs=(barrier,)
    ) as pool:
        return [
            future.result() for future in [pool.submit(_begin, work, each) for each in arguments]
        ]


def run_in_threads(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
    """The same with threads, for work of one call each."""
    barrier = Barrier(len(arguments))

    def begin(each: tuple[Any, ...]) -> T:
        barrier.wait(TOGETHER_S)
        return work(*each)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(begin, arguments))


_barrier: Any = None


def _meet_at(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603 - a process is initialised once
    _barrier = barrier


def _begin(work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    wait_for_all()
    return work(*arguments)


def wait_for_all() -> None:
    """Wait until all processes of a group have reached this point."""
    _barrier.wait(TOGETHER_S)


def proven(database: Database) -> None:
    """Check and replay find nothing but the function of the tests that lets time pass."""
    with database.connect("helix_migrator") as connection:
        assert replay(connection).clean
        wrong = [item.witnesses for item in check(connection) if not item.holds]
    assert all("test_pass_time" in str(witness) for found in wrong for witness in found), wrong
