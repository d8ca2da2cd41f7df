"""kill -9 of the server under load: what was acknowledged is there, and the rest goes on (G5)."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import psycopg

from helixqueue.engine import calls
from helixqueue.errors import Unavailable
from helixqueue.postgres.database import Database as Store
from helixqueue.records.submission import SubmissionRow
from helixqueue.states import State
from tests.support.engine_traffic import (
    assert_consistent,
    connect_operator,
    open_queue,
    run_in_processes,
)
from tests.support.lab import completion, wait_until

if TYPE_CHECKING:
    from uuid import UUID

    from helixqueue.records.lease import WriteResult

T = TypeVar("T")
SUBMITTERS, WORKERS = 2, 4
BATCHES = 1_200
KILLS = 3
LIMIT_S = 80.0
ENDED = "select count(*) from helix.ended"


@dataclass
class Journal:
    """What one client was told. Only answers count, not what it hopes."""

    submitted: list[UUID] = field(default_factory=list)
    decisions: Counter[str] = field(default_factory=Counter)
    completed: dict[int, str] = field(default_factory=dict)  # batch, result
    answers: Counter[str] = field(default_factory=Counter)
    cut_off: int = 0


class Client:
    """Makes a call until it is answered, with the same words each time."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.journal = Journal()
        self.finish = time.monotonic() + LIMIT_S
        self.db: Store | None = None

    def run(self, call: calls.Call[T]) -> T:
        while True:
            assert time.monotonic() < self.finish, "the server did not come back in time"
            try:
                if self.db is None:
                    self.db = Store.connect(self.dsn)
                return self.db.run(call)
            except Unavailable:
                self.journal.cut_off += 1
                if self.db is not None:
                    self.db.close()
                self.db = None
                time.sleep(0.02)

    def close(self) -> Journal:
        if self.db is not None:
            self.db.close()
        return self.journal


def keep_submitting(dsn: str, number: int) -> Journal:
    client = Client(dsn)
    names = [f"s{number}-{place}" for place in range(BATCHES // SUBMITTERS)]
    for first in range(0, len(names), 3):
        rows = [SubmissionRow(name, '{"tube":1}') for name in names[first : first + 3]]
        call = calls.submit(tenant="a", queue="q", profile="text-v1", rows=rows)
        answer = client.run(call)
        client.journal.submitted += [item.receipt.batch_id for item in answer if item.receipt]
        client.journal.decisions.update(item.decision for item in answer)
    return client.close()


def keep_working(dsn: str, number: int) -> Journal:
    """Claim, settle with the next claim, until everything is done."""
    client = Client(dsn)
    journal = client.journal
    name = f"w{number}"
    settlements = []
    results: dict[int, str] = {}
    while True:
        claimed = client.run(
            calls.claim(
                worker=name,
                request=uuid.uuid4(),
                queues=["q"],
                count=3,
                start=True,
                settle=settlements,
            )
        )
        note(journal, claimed.settled, results)
        results = {
            lease.batch: f'{{"by":"{name}","number":{lease.token.number}}}'
            for lease in claimed.leases
        }
        settlements = [completion(lease, results[lease.batch]) for lease in claimed.leases]
        if not settlements and everything_is_done(dsn):
            return client.close()


def everything_is_done(dsn: str) -> bool:
    """Asked as an operator; no while the server is away."""
    try:
        with connect_operator(dsn) as reader:
            return reader.execute(ENDED).fetchone() == (BATCHES,)
    except psycopg.OperationalError:
        return False


def note(journal: Journal, answers: tuple[WriteResult, ...], results: dict[int, str]) -> None:
    for answer in answers:
        journal.answers[answer.answer] += 1
        # A repeat says that the call before it, whose answer was lost, did it.
        if answer.answer in ("ok", "repeat"):
            assert answer.state is State.COMPLETED
            journal.completed[answer.batch] = results[answer.batch]


def either(role: str, dsn: str, number: int) -> Journal:
    return {"submit": keep_submitting, "work": keep_working}[role](dsn, number)


def test_everything_acknowledged_survives_kill_9_of_the_server(own_database):
    server = own_database.server
    dsn = own_database.dsn("pool", direct=True)
    with Store.connect(dsn) as db:
        open_queue(db, lease_seconds=1.0, max_attempts=1000)
    roles = [("submit", dsn, n) for n in range(SUBMITTERS)]
    roles += [("work", dsn, n) for n in range(WORKERS)]

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(run_in_processes, either, roles)
        for kill in range(1, KILLS + 1):
            wait_until(
                lambda share=kill / (KILLS + 1): (
                    finished(own_database) >= share * BATCHES or load.done()
                ),
                "the load to get on",
            )
            assert not load.done(), "the load was over before the server was killed"
            server.kill()
        journals = load.result(LIMIT_S)

    assert sum(journal.cut_off for journal in journals) >= KILLS
    submitted = [item for journal in journals for item in journal.submitted]
    assert len(set(submitted)) == len(submitted) == BATCHES
    assert own_database.value("select count(*) from helix.locate(%s)", submitted) == BATCHES
    # Each completion that a worker was told of stands there, with that worker's own result.
    found = [item for journal in journals for item in journal.completed.items()]
    stands = own_database.rows(
        "select w.batch, r.result::text from helix.work w"
        " join helix.result r on r.batch = w.batch and r.version = w.version"
        " where w.state = 'COMPLETED'"
    )
    assert len(dict(found)) == len(found)
    assert set(found) <= set(stands)
    assert len(stands) == BATCHES
    # Only a worker that was cut off and then reaped may not know of its own completion.
    refused = sum(journal.answers["refused"] for journal in journals)
    assert len(stands) - len(found) <= refused
    assert_consistent(own_database)


def finished(database):
    """How many are done; none while the server is away."""
    try:
        return database.value(ENDED)
    except psycopg.OperationalError:
        return 0
