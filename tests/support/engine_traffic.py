"""Submit, claim and settle through the engine's Python calls, in one process or in fifty."""

from __future__ import annotations

import os
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
from helixqueue.records.lease import LeaseRef, LeaseRow, Settlement
from helixqueue.records.submission import SubmissionRow, SubmittedRow
from tests.support.processes import PROCESSES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.support.database import Database

T = TypeVar("T")
POOLED = bool(os.environ.get("HELIX_TEST_POOLER"))
PAYLOAD = '{"tube":1}'
RESULT = '{"reads":7}'
# How long a condition may take to come true on a machine that is busy with something else.
PATIENCE_S = 60.0
TOGETHER_S = 120.0
UNFINISHED = (
    "select count(*) from helix.work where state not in ('COMPLETED', 'FAILED', 'CANCELLED')"
)


def store(dsn: str) -> Store:
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


def held(leases: Iterable[LeaseRow]) -> list[LeaseRef]:
    return [LeaseRef(lease.batch, lease.token) for lease in leases]


def completed(lease: LeaseRow | LeaseRef, result: str = RESULT) -> Settlement:
    return Settlement(lease.batch, lease.token, "completed", result)


def failed(lease: LeaseRow | LeaseRef, *, permanent: bool = False) -> Settlement:
    return Settlement(lease.batch, lease.token, "failed", failure="Broken", permanent=permanent)


def operator(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection as the operator, who may read tables."""
    return psycopg.connect(
        make_conninfo(dsn, user="operator"), autocommit=True, prepare_threshold=None
    )


def drain(db: Store, worker: str = "drain", queue: str = "q") -> int:
    """Complete every batch, including leases of dead workers and delayed batches."""
    done = 0
    finish = time.monotonic() + PATIENCE_S
    with operator(db.connection.info.dsn) as reader:
        while reader.execute(UNFINISHED).fetchone() != (0,):
            assert time.monotonic() < finish, f"stuck after {done}: {stuck(reader)}"
            leases = claim(db, 200, worker, queue=queue)
            if leases:
                answers = db.run(
                    calls.settle(worker=worker, settlements=[completed(lease) for lease in leases])
                )
                done += sum(answer.answer == "ok" for answer in answers)
                finish = time.monotonic() + PATIENCE_S
    return done


def stuck(reader: psycopg.Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The states of unfinished batches, for the error message."""
    return reader.execute(
        "select w.state::text, w.pending, w.cause::text, w.queue, w.limit_key, w.actor, count(*),"
        " min(w.batch) from helix.work w where w.state in ('PENDING', 'ASSIGNED', 'RUNNING')"
        " group by 1, 2, 3, 4, 5, 6"
        " union all select 'held', null, null, k.queue, k.key, null, k.held, null"
        " from helix.key_limit k"
    ).fetchall()


def until(ask: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """Ask until there is an answer that is true."""
    finish = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < finish, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.002)


def until_waiting(database: Database, count: int, call: str) -> None:
    """Wait until `count` sessions wait for a lock inside a call of this name."""
    until(
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


def until_overdue(database: Database, *leases: LeaseRow) -> None:
    """Wait until the deadlines have passed by the database's clock."""
    batches = [lease.batch for lease in leases]
    until(
        lambda: database.value(
            "select count(*) = %s from helix.work where batch = any (%s)"
            " and state in ('ASSIGNED', 'RUNNING') and deadline < clock_timestamp()",
            len(batches),
            batches,
        ),
        "the leases to run out",
    )


def proven(database: Database) -> None:
    """Assert that replay and check are clean, at the end of a test."""
    with database.connect("helix_bootstrap") as connection:
        replayed = replay(connection)
        assert replayed.clean, replayed.violations[:10]
        results = check(connection)
        broken = [(row.name, row.count, row.witnesses) for row in results if not row.holds]
        assert not broken, broken


def together(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
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


def in_threads(work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]) -> list[T]:
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
    meet()
    return work(*arguments)


def meet() -> None:
    """Wait until all processes of a group have reached this point."""
    _barrier.wait(TOGETHER_S)
