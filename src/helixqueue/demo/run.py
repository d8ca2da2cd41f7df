"""The demo's course: submit, compete, kill one worker, freeze another, wait, prove."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sheet import TENANT, Row, submit_sheet
from helixqueue.engine import reads
from helixqueue.errors import HelixError
from helixqueue.ledger.replay import ReplayResult, replay
from helixqueue.operate.check import CheckResult, check
from helixqueue.postgres.database import Database
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.embedded import Postgres
    from helixqueue.records.batch import BatchDetail

KILLED, FROZEN = "ada", "bo"
WORKERS = (KILLED, FROZEN, "cem", "dita")
PATIENCE_SECONDS = 45.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Sample:
    name: str
    state: str
    tries: int
    effects: int
    workers: list[str]


@dataclass(frozen=True)
class Refusal:
    sample: str
    worker: str  # who came too late
    owner: str  # who had the batch next
    why: str


@dataclass(frozen=True)
class Shown:
    """Everything the demo can show at its end."""

    sheet: list[Row]
    samples: list[Sample]
    refusals: list[Refusal]
    story: BatchDetail  # of the frozen worker's batch
    replayed: ReplayResult
    checked: list[CheckResult]

    @property
    def once(self) -> bool:
        return all(one.effects == 1 and one.state == "COMPLETED" for one in self.samples)

    @property
    def proven(self) -> bool:
        return (
            self.once
            and any(one.worker == FROZEN for one in self.refusals)
            and self.replayed.clean
            and all(result.holds for result in self.checked)
        )


def run(postgres: Postgres, say: Callable[[str], None]) -> Shown:
    create_effects(postgres)
    with (
        HelixQueue(postgres.dsn, TENANT, actor="sheet") as helix,
        Database.connect(postgres.dsn) as database,
    ):
        with _workers(postgres.dsn) as workers:
            say(f"{len(workers)} workers wait for samples: {', '.join(workers)}")
            rows = submit_sheet(helix)
            say(f"submitted a sheet of {len(rows)} rows, and the workers compete for it")
            batch = _break_things(database, workers[KILLED], workers[FROZEN], say)
            _await(database, "all_done")
        return _look(postgres, database, rows, batch)


def _break_things(
    database: Database,
    killed: subprocess.Popen[bytes],
    frozen: subprocess.Popen[bytes],
    say: Callable[[str], None],
) -> int:
    """Kill one in the middle of a batch and freeze another; gives the frozen one's batch."""
    [(_, sample)] = _await(database, "running_by", KILLED)
    killed.kill()
    say(f"killed worker {KILLED} in the middle of {sample}")
    [(batch, sample)] = _await(database, "running_by", FROZEN)
    frozen.send_signal(signal.SIGSTOP)
    say(f"froze worker {FROZEN} in the middle of {sample}")
    [(heir,)] = _await(database, "completed", batch)
    say(f"{heir} took {sample} over and completed it")
    frozen.send_signal(signal.SIGCONT)
    say(f"woke worker {FROZEN} up, which now tries to complete {sample} as well")
    _await(database, "refused", batch)
    say(f"the database refused what {FROZEN} wrote")
    return int(batch)


def create_effects(postgres: Postgres) -> None:
    """Where the demo's workers write; what the engine protects, and nothing else does."""
    with psycopg.connect(postgres.migrator_dsn) as connection:
        connection.execute(_sql("create_effects"))


@contextmanager
def _workers(dsn: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "helixqueue.demo.worker", dsn]
    workers = {name: subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in WORKERS}
    try:
        for name, worker in workers.items():
            # All are there before the sheet is, so that each gets its share.
            if worker.stdout is None or not worker.stdout.readline():
                raise HelixError(f"worker {name} of the demo did not start; its words are above")
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


def _await(database: Database, statement: str, *args: object) -> list[tuple[Any, ...]]:
    """Ask until there is an answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        rows = database.connection.execute(_sql(statement), args).fetchall()
        if rows:
            return rows
        time.sleep(POLL_SECONDS)
    raise HelixError(
        f"the demo waited {PATIENCE_SECONDS:.0f} s for {statement!r} in vain; is the machine very "
        "busy? Run it again"
    )


def _look(postgres: Postgres, database: Database, rows: list[Row], batch: int) -> Shown:
    ask = database.connection.execute
    samples = [Sample(*row) for row in ask(_sql("samples")).fetchall()]
    refusals = [Refusal(*row) for row in ask(_sql("refusals")).fetchall()]
    [(batch_id,)] = ask(_sql("public_id"), (batch,)).fetchall()
    story = database.run(reads.batch_detail(batch_id))
    if story is None:  # pragma: no cover - it was completed a moment ago
        raise AssertionError(f"batch {batch_id} has no story")
    # The role that migrates sees what checking needs to see.
    with psycopg.connect(postgres.migrator_dsn) as connection:
        replayed = replay(connection)
        checked = check(connection)
    return Shown(rows, samples, refusals, story, replayed, checked)


def _sql(name: str) -> str:
    return statements("helixqueue.demo", "demo.sql")[name].sql
