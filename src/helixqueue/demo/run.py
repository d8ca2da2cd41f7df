"""The course of `helixq demo`: submit, compete, kill one worker, freeze another, wait, prove."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from helixqueue.client.sync import HelixQueue
from helixqueue.demo.sample_sheet import QUEUE, TENANT, SheetRow, submit_sheet
from helixqueue.engine import reads
from helixqueue.errors import HelixError
from helixqueue.ledger.replay import ReplayResult, replay
from helixqueue.operate.check import CheckResult, check
from helixqueue.postgres.database import Database
from helixqueue.postgres.statements import statements

if TYPE_CHECKING:
    from helixqueue.embedded import Postgres
    from helixqueue.records.batch import BatchDetail

KILLED, FROZEN = "ada", "bo"
WORKERS = (KILLED, FROZEN, "cem", "dita")
WAIT_SECONDS = 45.0
POLL_SECONDS = 0.02
MINE = {"tenant": TENANT, "queue": QUEUE}


@dataclass(frozen=True)
class DemoSample:
    identity: str
    state: str
    attempts: int
    effects: int
    workers: list[str]


@dataclass(frozen=True)
class RefusedWrite:
    sample: str
    worker: str  # the worker that wrote too late
    owner: str  # the worker that held the batch next
    why: str


@dataclass(frozen=True)
class DemoResult:
    sheet: list[SheetRow]
    samples: list[DemoSample]
    refusals: list[RefusedWrite]
    frozen_batch: BatchDetail  # the batch that the frozen worker lost
    replayed: ReplayResult
    checked: list[CheckResult]

    @property
    def each_once(self) -> bool:
        return all(sample.effects == 1 and sample.state == "COMPLETED" for sample in self.samples)

    @property
    def proven(self) -> bool:
        return (
            self.each_once
            and any(refusal.worker == FROZEN for refusal in self.refusals)
            and self.replayed.clean
            and all(result.holds for result in self.checked)
        )


def run(postgres: Postgres, progress: Callable[[str], None]) -> DemoResult:
    create_effects(postgres)
    with (
        HelixQueue(postgres.dsn, TENANT, actor="sheet") as helix,
        Database.connect(postgres.dsn) as database,
    ):
        with _workers(postgres.dsn) as workers:
            progress(f"started {len(workers)} workers: {', '.join(workers)}")
            rows = submit_sheet(helix)
            progress(f"submitted a sheet of {len(rows)} rows; the workers compete for them")
            batch = _inject_faults(database, workers[KILLED], workers[FROZEN], progress)
            _await_rows(database, "all_done")
        return _collect(postgres, database, rows, batch)


def _inject_faults(
    database: Database,
    killed: subprocess.Popen[bytes],
    frozen: subprocess.Popen[bytes],
    progress: Callable[[str], None],
) -> int:
    """Kill one worker in the middle of a batch and freeze another; return the latter's batch."""
    [(_, sample)] = _await_rows(database, "running_by", worker=KILLED)
    killed.kill()
    progress(f"killed worker {KILLED} while it ran {sample}")
    [(batch, sample)] = _await_rows(database, "running_by", worker=FROZEN)
    frozen.send_signal(signal.SIGSTOP)
    progress(f"froze worker {FROZEN} while it ran {sample}")
    [(successor,)] = _await_rows(database, "completed", batch=batch)
    progress(f"worker {successor} took over {sample} and completed it")
    frozen.send_signal(signal.SIGCONT)
    progress(f"resumed worker {FROZEN}, which now tries to complete {sample} as well")
    _await_rows(database, "refused", batch=batch)
    progress(f"the database refused the write of {FROZEN}")
    return int(batch)


def create_effects(postgres: Postgres) -> None:
    """Create the table that the demo's workers write to; only leases protect it."""
    with psycopg.connect(postgres.migrator_dsn) as connection:
        connection.execute(_sql("create_effects"))


@contextmanager
def _workers(dsn: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "helixqueue.demo.worker", dsn]
    workers = {name: subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in WORKERS}
    try:
        for name, worker in workers.items():
            # Every worker is ready before the sheet is submitted, so that each gets some batches.
            if worker.stdout is None or not worker.stdout.readline():
                raise HelixError(f"worker {name} of the demo did not start; see its output above")
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()


def _await_rows(database: Database, statement: str, **arguments: object) -> list[tuple[Any, ...]]:
    """Run the statement until it returns rows."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        rows = database.connection.execute(_sql(statement), MINE | arguments).fetchall()
        if rows:
            return rows
        time.sleep(POLL_SECONDS)
    raise HelixError(
        f"the demo waited {WAIT_SECONDS:.0f} s for {statement!r}; the machine may be overloaded: "
        "run the demo again"
    )


def _collect(
    postgres: Postgres, database: Database, rows: list[SheetRow], batch: int
) -> DemoResult:
    execute = database.connection.execute
    samples = [DemoSample(*row) for row in execute(_sql("samples"), MINE).fetchall()]
    refusals = [RefusedWrite(*row) for row in execute(_sql("refusals"), MINE).fetchall()]
    [(batch_id,)] = execute(_sql("public_id"), {"batch": batch}).fetchall()
    detail = database.run(reads.batch_detail(batch_id))
    if detail is None:  # pragma: no cover - it was completed a moment ago
        raise AssertionError(f"batch {batch_id} does not exist")
    # Only the owner of the schema may read everything that `check` needs.
    with psycopg.connect(postgres.migrator_dsn) as connection:
        replayed = replay(connection)
        checked = check(connection)
    return DemoResult(rows, samples, refusals, detail, replayed, checked)


def _sql(name: str) -> str:
    return statements("helixqueue.demo", "demo.sql")[name].sql
