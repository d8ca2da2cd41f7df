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

from helixqueue.demo.sheet import Intake, submit_sheet
from helixqueue.ledger.replay import Replayed, replay
from helixqueue.operate.check import Result, check
from helixqueue.store.database import Database
from helixqueue.store.statements import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helixqueue.embedded import Postgres

WORKERS = ("ada", "bo", "cem", "dita")
PATIENCE_SECONDS = 45.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Sample:
    name: str
    state: str
    tries: int
    effects: int
    workers: str


@dataclass(frozen=True)
class Shown:
    """Everything the demo can show at its end."""

    intake: Intake
    samples: list[Sample]
    refusals: list[tuple[str, str, str]]  # sample, who came too late, why refused
    story: list[tuple[Any, ...]]  # the frozen worker's batch, step by step
    replayed: Replayed
    checked: list[Result]

    @property
    def once(self) -> bool:
        return all(one.effects == 1 and one.state == "COMPLETED" for one in self.samples)

    @property
    def proven(self) -> bool:
        return (
            self.once
            and bool(self.refusals)
            and self.replayed.clean
            and all(result.holds for result in self.checked)
        )


def run(postgres: Postgres, say: Callable[[str], None]) -> Shown:
    _create_effects(postgres)
    with Database.connect(postgres.dsn) as database:
        intake = submit_sheet(database)
        say(f"submitted a sheet of {intake.rows} rows")
        with _workers(postgres.dsn) as workers:
            killed, frozen = workers[:2]
            _await(database, "running_by", WORKERS[0])
            killed.kill()
            say(f"killed worker {WORKERS[0]} in the middle of a batch")
            [(batch,)] = _await(database, "running_by", WORKERS[1])
            frozen.send_signal(signal.SIGSTOP)
            say(f"froze worker {WORKERS[1]} in the middle of a batch")
            _await(database, "completed_by_other", batch)
            frozen.send_signal(signal.SIGCONT)
            say(f"woke worker {WORKERS[1]} up, after its batch was done by another")
            _await(database, "refused", batch)
            _await(database, "all_done")
        return _look(postgres, database, intake, batch)


def _create_effects(postgres: Postgres) -> None:
    with psycopg.connect(postgres.migrator_dsn) as connection:
        connection.execute(_sql("create_effects"))


@contextmanager
def _workers(dsn: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "helixqueue.demo.worker", dsn]
    workers = [subprocess.Popen([*command, name], stdout=subprocess.DEVNULL) for name in WORKERS]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _await(database: Database, statement: str, *args: object) -> list[tuple[Any, ...]]:
    """Ask until there is an answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        rows = database.connection.execute(_sql(statement), args).fetchall()
        if rows:
            return rows
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"the demo waited {PATIENCE_SECONDS:.0f} s for {statement!r} in vain")


def _look(postgres: Postgres, database: Database, intake: Intake, batch: int) -> Shown:
    ask = database.connection.execute
    samples = [Sample(*row) for row in ask(_sql("samples")).fetchall()]
    refusals = [tuple(row) for row in ask(_sql("refusals")).fetchall()]
    story = ask(_sql("story"), (batch,)).fetchall()
    # The role that migrates sees what checking needs to see.
    with psycopg.connect(postgres.migrator_dsn) as connection:
        replayed = replay(connection)
        checked = check(connection)
    return Shown(intake, samples, refusals, story, replayed, checked)


def _sql(name: str) -> str:
    return statements("helixqueue.demo", "demo.sql")[name].sql
